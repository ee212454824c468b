"""Keeps one segment's `.txnindex`: the aborted transactions whose markers the segment holds. No entries, no file.

Read once, then cached in its on-disk form, 34 bytes an entry. Appends are written through at once; recovery rebuilds
the index of every unflushed segment. Loop thread, or the thread that loads the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ballast_broker.handles import are_out
from ballast_broker.seams import Disk
from ballast_broker.storage.transactions import (
    EndedTransaction,
    check_entries,
    entries_before,
    parse_entries,
    render_entries,
    select,
)


class AbortedIndex:
    __slots__ = ("_data", "_disk", "_path", "late", "there")

    def __init__(self, disk: Disk, path: Callable[[], str]) -> None:
        self._disk = disk
        self._path = path
        self._data: bytearray | None = None
        self.there = False  # whether there are entries, in the file or late
        self.late = b""  # entries not in the file yet because no file descriptor was free

    def _on_file(self) -> bytearray:
        if self._data is None:
            self._data = bytearray(self._disk.read_bytes(self._path()) if self.there else b"")
        return self._data

    def _entries(self) -> bytearray:
        return self._on_file() + self.late if self.late else self._on_file()

    def check(self, base_offset: int) -> None:
        check_entries(self._entries(), base_offset)

    def entries(self) -> list[EndedTransaction]:
        return list(parse_entries(self._entries())) if self.there else []

    def select(self, offset: int, upper_offset: int, found: list[EndedTransaction]) -> bool:
        return select(self._entries(), offset, upper_offset, found)

    def append(self, entry: EndedTransaction | None) -> None:
        """Add the entry of a marker that is in the log; it counts even while `late`. None: only retry the late ones."""
        if not self.there:
            self._data = bytearray()
        if entry is not None:
            self.late += render_entries([entry])
            self.there = True
        try:
            self.catch_up()
        except OSError as error:
            if not are_out(error):
                raise

    def catch_up(self) -> None:
        if not self.late:
            return
        data = self._on_file()
        file = self._disk.open(self._path(), create=True)
        try:
            file.pwrite(self.late, len(data))
        finally:
            file.close()
        data += self.late
        self.late = b""

    def cut(self, offset: int) -> None:
        """Drop the entries of markers at or after `offset`."""
        if not self.there:
            return
        data = self._entries()
        kept = entries_before(data, offset)
        if kept == len(data):
            return
        self._data, self.late = data[:kept], b""
        self._write()

    def replace(self, entries: Iterable[EndedTransaction]) -> None:
        data = bytearray(render_entries(entries))
        if self.there or data:
            self._data, self.late = data, b""
            self._write()

    def adopt(self, entries: Iterable[EndedTransaction]) -> None:
        """Take over entries that are in the file already."""
        self._data = bytearray(render_entries(entries))
        self.there = bool(self._data)

    def _write(self) -> None:
        if not self._data:
            if self._disk.exists(self._path()):
                self._disk.remove(self._path())
            self.there = False
            return
        file = self._disk.empty_file(self._path())
        try:
            file.pwrite(self._data, 0)
        finally:
            file.close()
        self.there = True
