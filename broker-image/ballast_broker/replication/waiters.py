"""Keeps requests that wait for an offset to be reached, in ascending order of the offsets. PURE.

Bounded: entries of requests that timed out are removed before they outnumber those still waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from ballast_wire.errors import ErrorCode


class Waiter(Protocol):
    @property
    def answered(self) -> bool: ...
    def answer(self, error: ErrorCode) -> None: ...


def _offset_of(entry: tuple[int, Waiter]) -> int:
    return entry[0]


class Waiters(list[tuple[int, Waiter]]):
    """Nearly all entries come and leave in order. Those that timed out are removed all at once, when they are half of
    the list. A list because every partition has two of these: an empty deque is ten times as large."""

    __slots__ = ("_left_behind",)

    def __init__(self) -> None:
        super().__init__()
        self._left_behind = 0  # an upper bound: some may have been taken since

    def add(self, offset: int, waiter: Waiter) -> None:
        if not self or self[-1][0] <= offset:
            self.append((offset, waiter))
            return
        # Only a duplicate of an older batch waits for less than the last entry.
        self.insert(bisect_right(self, offset, key=_offset_of), (offset, waiter))

    def take(self, reached: int) -> list[Waiter]:
        """Take those whose offset is reached; some may have been answered already."""
        if not self or self[0][0] > reached:
            return []
        count = bisect_right(self, reached, key=_offset_of)
        taken = [waiter for _, waiter in self[:count]]
        del self[:count]
        return taken

    def take_all(self) -> list[Waiter]:
        taken = [waiter for _, waiter in self]
        self.clear()
        return taken

    def gave_up(self) -> None:
        """One waiter was answered before its offset was reached."""
        self._left_behind += 1
        if self._left_behind * 2 > len(self):
            self[:] = [entry for entry in self if not entry[1].answered]
            self._left_behind = 0
