"""Who waits for an offset to be reached, in ascending order of the offsets. PURE.

Bounded by who still waits: of those whose time was over first there are never more than of the others.
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
    """Nearly all come in order and leave in order. What a timeout leaves behind is taken out in one go, when it is
    half of all. A list, for every partition has two: an empty deque is ten times as large."""

    __slots__ = ("_left_behind",)

    def __init__(self) -> None:
        super().__init__()
        self._left_behind = 0  # at most: some of them may have been taken since

    def add(self, offset: int, waiter: Waiter) -> None:
        if not self or self[-1][0] <= offset:
            self.append((offset, waiter))
            return
        # Only a duplicate of an older batch asks for less than the last one.
        self.insert(bisect_right(self, offset, key=_offset_of), (offset, waiter))

    def take(self, reached: int) -> list[Waiter]:
        """Those whose offset is reached; they may be answered already."""
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
        """One of them was answered before its offset was reached."""
        self._left_behind += 1
        if self._left_behind * 2 > len(self):
            self[:] = [entry for entry in self if not entry[1].answered]
            self._left_behind = 0
