"""Records at which offset each leader epoch began: what followers compare to find where two logs diverge.

Ascending pairs (epoch, start offset). Kept in memory; the checkpoint file is written when a log is flushed, rolled or
closed: after a crash the recovery scan restores from the batch headers what the file does not have yet.
Loop thread only (`render` of a copy may be written by a thread).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ballast_broker.storage.checkpoint import render_epochs

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    __slots__ = ("_entries", "changed", "latest")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries: list[tuple[int, int]] = entries or []
        self.changed = False  # since it was last written
        self.latest: int | None = None  # asked at every append
        self._look_at_latest()

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    def _look_at_latest(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """The leader of `epoch` writes from `start_offset` on; entries that contradict this are replaced."""
        entries = self._entries
        if epoch < 0 or (entries and entries[-1][0] == epoch and start_offset >= entries[-1][1]):
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        self.latest = epoch
        self.changed = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is at most `epoch`, and its end offset; (-1, -1) if unknown."""
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        number = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if number == 0:  # older than any known: it ended where the first known one began
            return epoch, entries[0][1]
        return entries[number - 1][0], entries[number][1]

    def truncate_from_end(self, end_offset: int) -> None:
        entries = self._entries
        while entries and entries[-1][1] >= end_offset:
            entries.pop()
            self.changed = True
        self._look_at_latest()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget what lies before; the epoch current at `start_offset` now begins there."""
        number = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if number and self._entries[number - 1] != (self._entries[number - 1][0], start_offset):
            self._entries[:number] = [(self._entries[number - 1][0], start_offset)]
            self.changed = True
        elif number > 1:
            del self._entries[: number - 1]
            self.changed = True

    def clear(self) -> None:
        self.changed = self.changed or bool(self._entries)
        self._entries = []
        self.latest = None

    def render(self) -> bytes:
        return render_epochs(self._entries)
