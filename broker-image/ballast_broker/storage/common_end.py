"""Finds the offset up to which an existing future log equals the current one, from which a resumed move continues.

The state of both logs is captured on the loop; positions in their files are looked up in a thread, since the files may
be cold and would block all requests. The thread opens files of its own. Both logs may be written to meanwhile.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.open_files import OpenFiles
from ballast_broker.storage.segment import Segment
from ballast_wire.errors import ApiError

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


class CommonEnd:
    def __init__(self, source: Log, future: Log) -> None:
        self._end = _end_by_epochs(source, future)
        self._begin = max(source.bases[0], future.bases[0])
        self._offsets = [offset for offset in (*future.bases, self._end) if self._begin < offset <= self._end]
        self._source = _Files(source)
        self._future = _Files(future)

    def find(self) -> int | None:
        """Compares leader epochs and byte counts: records that compaction has removed since must not come back with the
        copy. None: a file was removed meanwhile, as by retention. Runs in a thread."""
        same = self._begin
        with contextlib.suppress(ApiError):  # a failing disk or a corrupt file ends the common part, too
            try:
                known = self._ahead(same) if self._offsets else 0
                for offset in self._offsets:
                    if self._ahead(offset) != known:
                        return same
                    same = offset
            except FileNotFoundError:
                return None if self._source.have_gone() or self._future.have_gone() else same
            return self._end
        return same

    def _ahead(self, offset: int) -> int:
        """How many bytes more the source has after `offset`: constant over a range in which both logs are equal."""
        return self._source.bytes_after(offset) - self._future.bytes_after(offset)


class _Files:
    """A log's files as they are now."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._bases = list(log.bases)
        self._segments = list(log.segments)
        self._sizes = [segment.size for segment in log.segments]
        with log.disk_faults():
            index = log.active.offset_index
            index.spill()  # the file is preallocated, so its size does not tell the count
            self._entries_of_last = index.count

    def have_gone(self) -> bool:
        """Whether some of them were removed since."""
        return not set(self._segments) <= set(self._log.segments)

    def bytes_after(self, offset: int) -> int:
        """Bytes from `offset` to the log's end. Comparable between two logs that are cut into different segments."""
        with _disk_faults(self._log):
            for number in range(max(0, bisect_right(self._bases, offset) - 1), len(self._segments)):
                position = self._position(number, offset)
                if position is not None:
                    return sum(self._sizes[number:]) - position
        return 0

    def _position(self, number: int, offset: int) -> int | None:
        """The position of the first batch that ends at or after the offset."""
        found = self._segments[number]
        if not self._sizes[number]:
            return None
        if offset <= found.base_offset:
            return 0
        segment = Segment(
            found.disk, OpenFiles(), found.folder, found.base_offset, self._sizes[number], found.index_size_limit
        )
        segment.suffix = found.suffix
        if number == len(self._segments) - 1:
            segment.offset_index.stored(self._entries_of_last)
        try:
            try:
                place = segment.find(offset)
            except CorruptFile:  # the next reader rebuilds the index; here scan instead
                segment.offset_index.stored(0)
                place = segment.find(offset)
        finally:
            segment.close()
        return None if place is None else place[0]


@contextlib.contextmanager
def _disk_faults(log: Log) -> Iterator[None]:
    """Like `Log.disk_faults`, but a missing file does not take the directory offline."""
    gone: FileNotFoundError | None = None
    with log.disk_faults():
        try:
            yield
        except FileNotFoundError as error:
            gone = error
    if gone is not None:
        raise gone


def has_all_of(log: Log, other: Log) -> bool:
    """Whether `log` has everything that `other`, of the same replica, has (by their leader epochs)."""
    return other.end_offset <= log.start_offset or _end_by_epochs(log, other) == other.end_offset


def _end_by_epochs(source: Log, future: Log) -> int:
    end = future.end_offset
    for epoch, start_offset in reversed(future.epochs.entries):
        known, known_end = source.epoch_end_offset(epoch)
        if known == epoch:
            return min(end, known_end)
        end = start_offset  # the current log does not know that epoch
    return min(end, source.end_offset)
