"""Up to where a future log that was there before has what the current one has: where a move that goes on begins.

What both are like is noted on the loop, the places in their files are looked up in a thread: they may be cold, and all
requests would wait for that disk. Everything is read through files of its own. Both may be written to meanwhile.
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
        """By the leader epochs and byte for byte, for what has been cleaned meanwhile must not come back with the copy.
        None: a file has gone meanwhile, as retention takes them. In a thread."""
        same = self._begin
        with contextlib.suppress(ApiError):  # a disk that fails, or has spoilt one of them, ends it as well
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
        """Where both have the same between two offsets this is the same at both."""
        return self._source.bytes_after(offset) - self._future.bytes_after(offset)


class _Files:
    """Those of a log as they are now."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._bases = list(log.bases)
        self._segments = list(log.segments)
        self._sizes = [segment.size for segment in log.segments]
        with log.disk_faults():
            index = log.active.offset_index
            index.spill()  # its file is longer than what counts
            self._entries_of_last = index.count

    def have_gone(self) -> bool:
        """Some of them, since."""
        return not set(self._segments) <= set(self._log.segments)

    def bytes_after(self, offset: int) -> int:
        """Also where the sizes of files say nothing, for the other log has other files."""
        with _disk_faults(self._log):
            for number in range(max(0, bisect_right(self._bases, offset) - 1), len(self._segments)):
                position = self._position(number, offset)
                if position is not None:
                    return sum(self._sizes[number:]) - position
        return 0

    def _position(self, number: int, offset: int) -> int | None:
        """Of the first batch that ends at or after the offset."""
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
            except CorruptFile:  # whoever reads there next makes the index anew
                segment.offset_index.stored(0)
                place = segment.find(offset)
        finally:
            segment.close()
        return None if place is None else place[0]


@contextlib.contextmanager
def _disk_faults(log: Log) -> Iterator[None]:
    """A file that is not there is no fault of the disk."""
    gone: FileNotFoundError | None = None
    with log.disk_faults():
        try:
            yield
        except FileNotFoundError as error:
            gone = error
    if gone is not None:
        raise gone


def has_all_of(log: Log, other: Log) -> bool:
    """Of two logs of one replica, by their leader epochs: whether nothing is lost with the other one."""
    return other.end_offset <= log.start_offset or _end_by_epochs(log, other) == other.end_offset


def _end_by_epochs(source: Log, future: Log) -> int:
    end = future.end_offset
    for epoch, start_offset in reversed(future.epochs.entries):
        known, known_end = source.epoch_end_offset(epoch)
        if known == epoch:
            return min(end, known_end)
        end = start_offset  # the current log knows nothing of that leader
    return min(end, source.end_offset)
