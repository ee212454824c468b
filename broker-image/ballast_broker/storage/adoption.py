"""How a future log comes to have what the current one has, faster than by appending batch after batch.

A sealed segment is copied as files (log, indexes, the producers' state at its end) and then adopted as a whole; what
follows goes through `append_as_follower`, rolled where the current log rolled. Part of `Log`: the loop thread only,
except `SegmentCopy.piece` and `finish_files`, which run in a thread while nobody else writes to the future log.
A crash in between leaves a future log that loads like any other after an unclean stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.seams import Disk, File
from ballast_broker.storage.epochs import LeaderEpochs
from ballast_broker.storage.producer_snapshots import snapshot_path
from ballast_broker.storage.segment import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log

PROBE = ".ballast-probe"


def beginning(source: Log) -> int:
    """Where a future log begins: at the first file, which may lie before the log start offset."""
    return source.bases[0]


class SegmentCopy:
    """One sealed segment on its way: the one that begins where the future log ends, whose last segment is empty."""

    def __init__(self, source: Log, future: Log) -> None:
        number = source.segment_number(future.end_offset)
        self._segment: Segment = source.segments[number]
        self._next_offset = source.bases[number + 1]
        self._source = source
        self._future = future
        self._disk = source.context.disk
        self._position = 0
        self._from: File = self._disk.open(self._segment.path(), writable=False)
        self._to: File = self._disk.open(future.active.path(), create=True)

    @property
    def left_bytes(self) -> int:
        return self._segment.size - self._position

    def piece(self, size: int) -> Callable[[], int]:
        """What copies the next `size` bytes at most; answers how many it were."""

        def copy() -> int:
            wanted = min(size, self.left_bytes)
            copied = self._disk.copy_range(self._from, self._position, self._to, self._position, wanted)
            if copied != wanted:
                raise OSError(f"{self._segment.path()} is shorter than it was")
            self._position += copied
            return copied

        return copy

    def finish_files(self) -> None:
        """The small files beside the log. All of them are flushed with the future log before it serves."""
        self._to.truncate(self._segment.size)
        target = self._future.active
        for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            _copy_small(self._disk, self._segment.path(kind), target.path(kind))
        _copy_small(
            self._disk,
            snapshot_path(self._source.folder, self._next_offset),
            snapshot_path(self._future.folder, self._next_offset),
        )

    def sync(self) -> None:
        self._to.sync()

    def adopt(self) -> None:
        """From now on the segment belongs to the future log."""
        future, segment, end = self._future, self._segment, self._next_offset
        old = future.active
        old.close()
        adopted = Segment(
            self._disk, future.context.open_files, future.folder, segment.base_offset, segment.size,
            segment.index_size_limit,
        )  # fmt: skip
        adopted.created_ms = segment.created_ms
        adopted.first_timestamp = segment.first_timestamp
        future.segments = [*future.segments[:-1], adopted]
        future.size_bytes += segment.size
        future.end_offset = end
        future.epochs = LeaderEpochs([entry for entry in self._source.epochs.entries if entry[1] < end])
        future.epochs.changed = True
        future.write_epochs()
        if self._disk.exists(snapshot_path(future.folder, end)):
            future.snapshots.offsets = sorted({*future.snapshots.offsets, end})
            future.snapshots.load(future.producers, end)
        future.producers.map_end_offset = end
        future.new_segment(end)
        future.invalidate_write_state()

    def close(self) -> None:
        self._from.close()
        self._to.close()


def _copy_small(disk: Disk, source: str, target: str) -> None:
    """Some of these files need not exist, and then none is left of an earlier attempt either."""
    try:
        data = disk.read_bytes(source)
    except FileNotFoundError:
        if disk.exists(target):
            disk.remove(target)
        return
    file = disk.open(target, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
    finally:
        file.close()


def roll_with(source: Log, future: Log) -> None:
    """Begin a new segment where the current log did."""
    end = future.end_offset
    if end != future.active.base_offset and end in source.bases:
        future.roll()


def take_over_state(source: Log, future: Log) -> None:
    """What does not follow from the records alone; both logs end at the same offset."""
    future.epochs = LeaderEpochs(source.epochs.entries)
    future.epochs.changed = True
    future.write_epochs()
    if len(source.producers) or len(future.producers):
        future.producers.load(source.producers.render(), source.end_offset)
    future.producers.map_end_offset = future.end_offset
    future.update_config(source.config)
    future.update_high_watermark(source.high_watermark)
    if source.start_offset > future.start_offset:
        future.advance_log_start_offset(source.start_offset)


def cannot_write(disk: Disk, directory: str) -> bool:
    """Whether a small write to the directory fails."""
    path = f"{directory}/{PROBE}"
    try:
        disk.write_atomically(path, b"?")
        disk.remove(path)
    except OSError:
        return True
    return False
