"""Limits how many files storage keeps open: segments open theirs when used, and this closes those not used lately.

Loop thread only. Guarantees: a file with references (a slice being sent) is never closed under its reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol


class Closable(Protocol):
    used_lately: bool

    def close_if_idle(self) -> bool:
        """Close the file unless somebody holds it; True if it is closed (now or already)."""

    def path(self) -> str: ...
    def abandon(self) -> None:
        """The file is useless: close it now, or once nobody holds it."""


LEAST: Final = 64


def _raised(_path: str, error: OSError) -> None:
    raise error


class OpenFiles:
    """Second chance: each use sets a flag (cheap); the sweep at the limit clears flags and closes files without one. If
    all files are held it closes nothing, and does not run again until an eighth more are open."""

    def __init__(self, limit: int = 8192, on_failure: Callable[[str, OSError], None] = _raised) -> None:
        """`on_failure` is told of a file that could not be closed: who needs room is not to blame for its disk."""
        self.limit = limit
        self._on_failure = on_failure
        self._opened: OrderedDict[Closable, None] = OrderedDict()  # in the order of opening
        self._held = 0  # how many were open when a sweep found all held

    def __len__(self) -> int:
        return len(self._opened)

    def opened(self, item: Closable) -> None:
        """Make room first, so that the sweep does not close the new item."""
        if len(self._opened) >= max(self.limit, self._held * 9 // 8):
            self._sweep()
        item.used_lately = True
        self._opened[item] = None

    def _sweep(self) -> None:
        for _ in range(2 * len(self._opened)):
            item = self._opened.popitem(last=False)[0]
            if not item.used_lately and self._closes(item):
                if len(self._opened) < self.limit:
                    self._held = 0
                    return
                continue
            item.used_lately = False
            self._opened[item] = None
        self._held = len(self._opened)

    def _closes(self, item: Closable) -> bool:
        try:
            return item.close_if_idle()
        except OSError as error:
            self._on_failure(item.path(), error)
            return True

    def make_room(self) -> None:
        """No file descriptor is left, perhaps since others use so many: lower the limit by a quarter, for good."""
        self.limit = min(self.limit, max(LEAST, len(self._opened) * 3 // 4))
        if len(self._opened) >= self.limit:
            self._sweep()

    def abandon(self, is_lost: Callable[[str], bool]) -> None:
        """A disk has failed; `is_lost` tells by its path whether a file is there."""
        for item in [item for item in self._opened if is_lost(item.path())]:
            item.abandon()

    def forget(self, item: Closable) -> None:
        """Its file was closed by its owner."""
        self._opened.pop(item, None)
