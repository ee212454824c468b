"""How many files storage keeps open: segments open theirs when used, and this closes those not used lately.

Loop thread only. Guarantees: a file with references (a slice being sent) is never closed under its reader.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Closable(Protocol):
    used_lately: bool

    def close_if_idle(self) -> bool:
        """Close the file unless somebody holds it; True when it is closed (now or already)."""


class OpenFiles:
    """Second chance: each use sets a flag (cheap), the sweep at the limit clears flags and closes what had none."""

    def __init__(self, limit: int = 8192) -> None:
        self.limit = limit
        self._opened: deque[Closable] = deque()

    def __len__(self) -> int:
        return len(self._opened)

    def opened(self, item: Closable) -> None:
        item.used_lately = True
        self._opened.append(item)
        if len(self._opened) > self.limit:
            self._sweep()

    def _sweep(self) -> None:
        for _ in range(2 * len(self._opened)):
            item = self._opened.popleft()
            if item.used_lately:
                item.used_lately = False
            elif item.close_if_idle():
                if len(self._opened) <= self.limit:
                    return
                continue
            self._opened.append(item)

    def forget(self, item: Closable) -> None:
        """Its file was closed by its owner."""
        try:
            self._opened.remove(item)
        except ValueError:
            return
