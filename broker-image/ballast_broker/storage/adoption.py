"""Copies the current log into a future log segment by segment, faster than appending batch after batch.

The rest of a segment is copied as raw bytes, together with its indexes and the producer state, and then adopted as a
whole: a sealed segment to its end, the active one to where it ended when the copy began. The few batches after that go
through `append_as_follower`, rolling where the current log rolled. Part of `Log`: the loop thread only, except
`FileCopy.piece`, `SegmentCopy.finish_files` and `sync`, which run in a thread while nobody else writes to that file.
A crash in between leaves a future log that loads like any other after an unclean shutdown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.seams import Disk, File
from ballast_broker.storage import lookup
from ballast_broker.storage.batch_header import walk
from ballast_broker.storage.epochs import LeaderEpochs
from ballast_broker.storage.flushing import note_unflushed, sync_beside_log, write_epochs
from ballast_broker.storage.index import OFFSET_ENTRY, SparseIndex
from ballast_broker.storage.producer_snapshots import replay, snapshot_path
from ballast_broker.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log

PROBE = ".ballast-probe"


def beginning(source: Log) -> int:
    """Where a future log begins: at the source's first segment, which may lie before the log start offset."""
    return source.bases[0]


def bytes_after(log: Log, offset: int) -> int:
    """Bytes from `offset` to the log's end. Comparable between two logs that are cut into different segments."""
    with log.disk_faults():
        located = lookup.locate(log, offset)
    if located is None:
        return 0
    segment, done = located
    return sum(later.size for later in log.segments[log.segments.index(segment) :]) - done


def continues_by_file(source: Log, future: Log) -> bool:
    """Whether the future log's last segment is the beginning of the same file in the source, byte for byte."""
    end, written = future.end_offset, future.active
    segment = source.segments[source.segment_number(end)]
    if segment.base_offset != written.base_offset or segment.size <= written.size:
        return False
    if not written.size:
        return end == segment.base_offset
    return lookup.locate(source, end) == (segment, written.size)


class FileCopy:
    """Copies a file's bytes from `position` to `end` into the same place of another file."""

    def __init__(self, disk: Disk, source: str, target: File, position: int, end: int) -> None:
        self._disk = disk
        self.position = position
        self.end = end
        self.target = target
        try:
            self._source: File = disk.open(source, writable=False)
        except OSError:
            target.close()
            raise

    @property
    def left_bytes(self) -> int:
        return self.end - self.position

    def piece(self, size: int) -> Callable[[], int]:
        """A callable that copies at most `size` more bytes and returns how many: fewer if the source was truncated."""

        def copy() -> int:
            wanted = min(size, self.left_bytes)
            copied = self._disk.copy_range(self._source, self.position, self.target, self.position, wanted)
            self.position += copied
            return copied

        return copy

    def close(self) -> None:
        self._source.close()
        self.target.close()


class CopyAhead:
    """Copies a later segment ahead of its turn, into a `.cleaned` file in the future log's folder, which every start
    removes. The file is no part of the log until a `SegmentCopy` takes it over."""

    def __init__(self, segment: Segment, future: Log) -> None:
        disk = future.context.disk
        self.segment = segment
        self._future = future
        self._disk = disk
        self.file = FileCopy(disk, segment.path(), disk.empty_file(self._path()), 0, segment.size)

    def _path(self, kind: str = LOG_SUFFIX + CLEANED_SUFFIX) -> str:
        return f"{self._future.folder.path}/{self.segment.base_offset:020d}{kind}"

    def become_segment(self, end: int) -> FileCopy:
        """Replace the empty active segment that the future log has at this base offset."""
        self._future.active.close()
        self._disk.rename(self._path(), self._path(LOG_SUFFIX))
        self.file.end = end
        return self.file

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a disk that has failed; nobody needs what was copied
            self.file.close()

    def drop(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # the folder is gone with the move, or the disk has failed
            self._disk.remove(self._path())


class SegmentCopy:
    """Copies the rest of one segment to a future log that continues it; adoption takes that log to `end_offset`.

    `ahead` is the part of this segment that was copied before.
    """

    def __init__(self, source: Log, future: Log, ahead: CopyAhead | None = None) -> None:
        number = source.segment_number(future.end_offset)
        self._segment: Segment = source.segments[number]
        self._sealed = self._segment is not source.active
        self.following = source.segments[number + 1] if self._sealed else None
        self.end_offset = source.bases[number + 1] if self._sealed else source.end_offset
        self._source = source
        self._future = future
        self._disk = source.context.disk
        self._start = future.active.size
        self._end = self._segment.size
        self._whole = self._sealed and not self._start
        self._aborted = [each for each in self._segment.aborted.entries() if each.last_offset < self.end_offset]
        # The producer state at `end_offset`: the source will have moved on when the copy is done.
        self._producers = None if self._sealed else source.producers.copy()
        self._adopted: Segment | None = None
        self._without_gap = False
        self._index_tails: list[_IndexTail] = []
        if not self._whole:
            self._max_timestamp = lookup.trusting_index(source, self._segment, self._segment.largest_timestamp)
            self._offset_of_max_timestamp = self._segment.offset_of_max_timestamp
            self._bytes_since_index_entry = self._segment.bytes_since_index_entry
            self._index_tails = self._look_at_indexes()
        future.invalidate_write_state()
        if ahead is not None:
            self.file = ahead.become_segment(self._end)
        else:
            target = self._disk.open(future.active.path(), create=True)
            self.file = FileCopy(self._disk, self._segment.path(), target, self._start, self._end)

    @property
    def size_bytes(self) -> int:
        return self._end - self._start

    def _look_at_indexes(self) -> list[_IndexTail]:
        segment, target = self._segment, self._future.active
        offsets, times = segment.offset_index, segment.time_index
        latest = target.time_index.last()
        return [
            _IndexTail(offsets, offsets.floor(self._start - 1, column=1) + 1, target.offset_index),
            _IndexTail(times, times.floor(latest[0] if latest else -1) + 1, target.time_index),
        ]

    def finish_files(self) -> None:
        """Copy the small files beside the log. All of them are flushed with the future log before it takes over."""
        if self.file.target.size() != self._end:  # not always: ftruncate waits for writeback
            self.file.target.truncate(self._end)
        target = self._future.active
        for tail in self._index_tails:
            tail.copy()
        if self._whole:
            index = _copy_small(self._disk, self._segment.path(INDEX_SUFFIX), target.path(INDEX_SUFFIX))
            _copy_small(self._disk, self._segment.path(TIME_INDEX_SUFFIX), target.path(TIME_INDEX_SUFFIX))
            self._without_gap = self._reaches_end(index)
        if self._sealed:
            _copy_small(
                self._disk,
                snapshot_path(self._source.folder, self.end_offset),
                snapshot_path(self._future.folder, self.end_offset),
            )

    def _reaches_end(self, index: bytes) -> bool:
        """Whether the batches reach `end_offset`, with no gap left by compaction. Walks from the last index entry."""
        position = OFFSET_ENTRY.unpack(index[-OFFSET_ENTRY.size :])[1] if len(index) >= OFFSET_ENTRY.size else 0
        end = -1
        for _, header in walk(self.file.target, max(position, 0), self._end):
            end = header.base_offset + header.last_offset_delta + 1
        return end == self.end_offset

    def sync(self) -> Segment | None:
        """Call after adoption. Returns the future log's segment if it is a whole sealed one, which is durable now."""
        self.file.target.sync()
        if self._adopted is not None:
            sync_beside_log(self._future, self._adopted, sealed=True)
        return self._adopted

    def give_up(self) -> None:
        """The source was truncated below what was copied. Drop the copy: a start would take it for a part of the log,
        and it would occupy the disk until it is copied again. So it would the snapshot, which tells of other records.
        """
        self.file.target.truncate(self._start)
        if self._sealed:
            self._future.snapshots.remove(self.end_offset)

    def adopt(self) -> None:
        """Make the copied bytes part of the future log."""
        future, end = self._future, self.end_offset
        if self._whole:
            self._adopt_segment()
        else:
            self._extend_segment()
        future.segments[-1].aborted.replace(self._aborted)
        future.size_bytes += self._end - self._start
        future.end_offset = end
        future.known_positions.clear()
        _take_over_epochs(future, [entry for entry in self._source.epochs.entries if entry[1] < end])
        self._adopt_producers()
        if self._whole:
            if self._without_gap:  # the segment copied next may reach the disk before this one
                note_unflushed(future, end)
            future.new_segment(end)
        future.invalidate_write_state()
        roll_with(self._source, future)

    def _adopt_segment(self) -> None:
        future, segment = self._future, self._segment
        future.active.close()
        adopted = Segment(
            self._disk, future.context.open_files, future.folder, segment.base_offset, self._end,
            segment.index_size_limit,
        )  # fmt: skip
        adopted.created_ms = segment.created_ms
        adopted.first_timestamp = segment.first_timestamp
        future.segments = [*future.segments[:-1], adopted]
        self._adopted = adopted

    def _extend_segment(self) -> None:
        target = self._future.active
        for tail in self._index_tails:
            tail.adopt()
        if not self._start:
            target.first_timestamp = self._segment.first_timestamp
        target.max_timestamp = self._max_timestamp
        target.offset_of_max_timestamp = self._offset_of_max_timestamp
        target.bytes_since_index_entry = self._bytes_since_index_entry
        target.size = self._end

    def _adopt_producers(self) -> None:
        future, end = self._future, self.end_offset
        if self._producers is not None:
            future.producers.replace_by(self._producers, end)
        elif self._disk.exists(snapshot_path(future.folder, end)):
            future.snapshots.offsets = sorted({*future.snapshots.offsets, end})
            future.snapshots.load(future.producers, end)
        if future.producers.map_end_offset < end:
            replay(future.producers, future.segments, end)
        future.producers.map_end_offset = end

    def close(self) -> None:
        self.file.close()


class _IndexTail:
    """The source's index entries for the copied bytes, appended to those that the future log has."""

    def __init__(self, source: SparseIndex, first: int, target: SparseIndex) -> None:
        source.spill()
        target.spill()
        self._source = source
        self._first = first
        self._count = source.count - first
        self._target = target
        self._at = target.count

    def copy(self) -> None:
        self._target.write_encoded(self._at, self._source.read_encoded(self._first, self._count))

    def adopt(self) -> None:
        self._target.stored(self._at + self._count)


def _copy_small(disk: Disk, source: str, target: str) -> bytes:
    """Copy a file and return its content. If the source has none, remove what an earlier attempt left at the target."""
    try:
        data = disk.read_bytes(source)
    except FileNotFoundError:
        if disk.exists(target):
            disk.remove(target)
        return b""
    file = disk.empty_file(target)
    try:
        file.pwrite(data, 0)
    finally:
        file.close()
    return data


def roll_with(source: Log, future: Log) -> None:
    """Begin a new segment where the current log did."""
    end = future.end_offset
    if end != future.active.base_offset and end in source.bases:
        future.roll()


def skip_gap(source: Log, future: Log) -> None:
    """The source has no more batches before its end: it was cut inside of the last one, or that was compacted away."""
    future.truncations += 1  # its records no longer reach its end
    future.end_offset = future.producers.map_end_offset = source.end_offset
    roll_with(source, future)


def take_over_state(source: Log, future: Log) -> None:
    """Copy the state that does not follow from the records alone; both logs end at the same offset."""
    _take_over_epochs(future, source.epochs.entries)
    future.producers.replace_by(source.producers, future.end_offset)
    future.cleaned_to = source.cleaned_to
    future.update_config(source.config)
    take_over_start(source, future)


def take_over_start(source: Log, future: Log) -> None:
    """Take over the source's high watermark and log start offset, as far as the future log reaches by now."""
    future.update_high_watermark(source.high_watermark)
    start = min(source.start_offset, future.high_watermark)
    if start > future.start_offset:
        future.advance_log_start_offset(start)


def _take_over_epochs(future: Log, entries: list[tuple[int, int]]) -> None:
    """Skips the write if nothing changed: replacing a file may block on the disk, and appends with it."""
    if future.epochs.entries != entries:
        future.epochs = LeaderEpochs(entries)
        future.epochs.changed = True
    write_epochs(future)


def cannot_write(disk: Disk, directory: str) -> bool:
    """Whether a small write to the directory fails."""
    path = f"{directory}/{PROBE}"
    try:
        disk.write_atomically(path, b"?")
        disk.remove(path)
    except OSError:
        return True
    return False
