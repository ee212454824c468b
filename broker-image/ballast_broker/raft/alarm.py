"""Calls the Raft core when its deadline is due, and extends the deadlines if the event loop was blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.raft.core import RaftCore

STALL_S = 0.1
MAX_FORGIVEN_STALLS = 3


class Alarm:
    """One timer, at the core's deadline. If it fires late, all deadlines are first extended by the delay, a bounded
    number of times in a row."""

    def __init__(self, core: RaftCore, now: Callable[[], float], run: Callable[[], None]) -> None:
        self._core = core
        self._now = now
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("inf")
        self._stalls = 0

    def set(self) -> None:
        due = self._core.deadline
        if due == self._due:
            return
        self.stop()
        self._due = due
        if due != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        now, due = self._now(), self._due
        self._timer, self._due = None, float("inf")
        if now - due > STALL_S and self._stalls < MAX_FORGIVEN_STALLS:
            self._stalls += 1
            self._core.postpone(now - due + STALL_S)
        else:
            self._stalls = 0
        self._core.tick(now)
        self._run()
