"""Implements a segment's two sparse indexes: offset → position, timestamp → offset. Kafka's format, big-endian.

Entries are written with pwrite and looked up with pread, never through a memory map: a full or failing disk then
answers with an error for its own partitions instead of a SIGBUS that kills the whole broker (DIR-41, DIR-42), and an
index costs no file descriptor. The newest entries are buffered and written in groups; the recovery scan rebuilds the
index of every segment that was not flushed, so a crash loses none that matters. Loop thread only.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from ballast_broker.handles import are_out
from ballast_broker.seams import Disk
from ballast_broker.storage.errors import CorruptFile

OFFSET_ENTRY: Final = struct.Struct(">Ii")
TIME_ENTRY: Final = struct.Struct(">qI")
_SPILL_ENTRIES: Final = 128
_PAGE_ENTRIES: Final = 512
_COLUMNS: Final = (itemgetter(0), itemgetter(1))


class SparseIndex:
    """Entries of two ascending integers: the first `_stored` in the file, later ones in memory."""

    __slots__ = ("_disk", "_entry", "_page", "_page_start", "_path", "_pending", "_preallocated", "_stored", "capacity")

    def __init__(
        self, disk: Disk, path: Callable[[], str], entry: struct.Struct, size_limit: int, *, new: bool = False
    ) -> None:
        """`new`: there is no file until `preallocate` or `trim` creates it."""
        self._disk = disk
        self._path = path
        self._entry = entry
        self._stored = 0 if new else -1  # -1: unknown, ask for the file's size
        self._pending: list[tuple[int, int]] = []
        self._page: list[tuple[int, int]] = []
        self._page_start = 0
        self._preallocated = False  # the file has its full length
        self.capacity = max(1, size_limit // entry.size)

    @property
    def count(self) -> int:
        return self._on_file() + len(self._pending)

    def _on_file(self) -> int:
        if self._stored < 0:
            size = self._disk.size(self._path())
            if size % self._entry.size:
                raise CorruptFile(f"{self._path()} has {size} bytes, no multiple of {self._entry.size}")
            self._stored = size // self._entry.size
        return self._stored

    def append(self, first: int, second: int) -> int:
        """Append an entry; returns for how many more there is room."""
        pending = self._pending
        pending.append((first, second))
        waiting = len(pending)
        room = self.capacity - waiting - (self._stored if self._stored >= 0 else self._on_file())
        if waiting >= _SPILL_ENTRIES:
            self._spill_if_it_can_be_opened()
        return room

    def _spill_if_it_can_be_opened(self) -> None:
        """The batch is in the log already, so do not fail for want of file descriptors: the next append retries."""
        try:
            self.spill()
        except OSError as error:
            if not are_out(error):
                raise

    def spill(self) -> None:
        """Write the entries buffered in memory."""
        if not self._pending:
            return
        start = self._on_file()
        pack = self._entry.pack
        data = b"".join([pack(first, second) for first, second in self._pending])
        self.write_encoded(start, data)
        self._stored = start + len(self._pending)
        self._pending = []

    def trim(self) -> None:
        """Write all entries and cut the file behind them: how an index is left at roll and at clean shutdown."""
        self.spill()
        self._preallocated = False
        size = self._on_file() * self._entry.size
        if size == 0:
            self._disk.empty_file(self._path()).close()
        elif self._disk.size(self._path()) != size:
            file = self._disk.open(self._path())
            try:
                file.truncate(size)
            finally:
                file.close()

    def preallocate(self) -> None:
        """Grow the active segment's index file to its full (sparse) length: once, and again after a restart."""
        if self._preallocated:
            return
        stored = self._on_file()
        file = self._disk.open(self._path()) if stored else self._disk.empty_file(self._path())
        try:
            file.truncate(max(stored, self.capacity) * self._entry.size)
        finally:
            file.close()
        self._preallocated = True

    def keep_first(self, count: int) -> None:
        """Forget the entries after the first `count`."""
        stored = self._on_file()
        if count >= stored:
            del self._pending[count - stored :]
            return
        self._pending = []
        self._stored = count
        self.drop_cache()
        self.trim()

    # Raw entries, for a log that takes over those of another one. Any thread; both indexes must be spilled before.

    def read_encoded(self, first: int, count: int) -> bytes:
        size = self._entry.size
        file = self._disk.open(self._path(), writable=False)
        try:
            data = file.pread(count * size, first * size)
        finally:
            file.close()
        if len(data) != count * size:
            raise CorruptFile(f"{self._path()} is shorter than it was")
        return data

    def write_encoded(self, first: int, data: bytes) -> None:
        """Write entries to the file. They count only once `stored` is called."""
        file = self._disk.open(self._path(), create=True)
        try:
            file.pwrite(data, first * self._entry.size)
        finally:
            file.close()

    def stored(self, count: int) -> None:
        """The file has this many entries now. Loop thread."""
        self._stored = count
        self.drop_cache()

    def drop_cache(self) -> None:
        self._page = []

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Replace all entries, in the file too."""
        self._disk.empty_file(self._path()).close()
        self._stored, self._pending, self._preallocated = 0, entries, False
        self.drop_cache()
        self.spill()

    def at(self, number: int) -> tuple[int, int]:
        stored = self._on_file()
        if number >= stored:
            return self._pending[number - stored]
        start = self._page_start
        if not start <= number < start + len(self._page):
            self._load_page(number // _PAGE_ENTRIES * _PAGE_ENTRIES, stored)
            start = self._page_start
        return self._page[number - start]

    def last(self) -> tuple[int, int] | None:
        if self._pending:
            return self._pending[-1]
        count = self.count
        return self.at(count - 1) if count else None

    def _load_page(self, start: int, stored: int) -> None:
        data = self.read_encoded(start, min(_PAGE_ENTRIES, stored - start))
        self._page = list(self._entry.iter_unpack(data))
        self._page_start = start

    def floor(self, value: int, column: int = 0) -> int:
        """Number of the last entry whose `column` is at most `value`; -1 if there is none."""
        stored = self._stored if self._stored >= 0 else self._on_file()
        if self._pending and self._pending[0][column] <= value:
            return stored + _floor_in(self._pending, value, column)
        page = self._page
        if page and page[0][column] <= value < page[-1][column]:
            return self._page_start + _floor_in(page, value, column)
        return self._floor_on_file(value, column, stored)

    def _floor_on_file(self, value: int, column: int, stored: int) -> int:
        low, high = -1, (stored - 1) // _PAGE_ENTRIES
        if stored == 0:
            return -1
        file = self._disk.open(self._path(), writable=False)
        try:
            size = self._entry.size
            while low < high:  # the last page whose first entry is at most `value`
                middle = (low + high + 1) // 2
                entry = self._entry.unpack(file.pread(size, middle * _PAGE_ENTRIES * size))
                if entry[column] <= value:
                    low = middle
                else:
                    high = middle - 1
        except struct.error as error:
            raise CorruptFile(f"{self._path()} is shorter than it was") from error
        finally:
            file.close()
        if low < 0:
            return -1
        self._load_page(low * _PAGE_ENTRIES, stored)
        return self._page_start + _floor_in(self._page, value, column)


def _floor_in(entries: list[tuple[int, int]], value: int, column: int) -> int:
    return bisect_right(entries, value, key=_COLUMNS[column]) - 1
