"""Runs one directory's blocking work in threads, so that a disk that hangs blocks only those who use it.

A directory may use a limited number of the shared threads at once; further work queues. A directory whose work has
been running for long is *silent*: until it answers, the event loop defers whatever can wait. Loop thread only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ballast_broker.seams import Threads

T = TypeVar("T")
AT_ONCE = 4
# A large segment takes some seconds to be synced.
SILENT_AFTER_S = 5.0


class DirectoryThreads:
    """The `Threads` of a directory. Calls `told(silent, now_s)` when it falls silent or answers again."""

    def __init__(self, threads: Threads, told: Callable[[bool, float], None]) -> None:
        self.silent = False
        self._threads = threads
        self._told = told
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tickets = itertools.count()
        self._under_way: dict[int, float] = {}  # ticket → when it began, the oldest first
        self._watch: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self._answered.set()

    async def run(self, work: Callable[[], T]) -> T:
        """Cancelling the caller does not cancel the work: it occupies its place until the thread is done."""
        await self._room.acquire()
        loop, ticket = asyncio.get_running_loop(), next(self._tickets)
        self._under_way[ticket] = loop.time()
        working = loop.create_task(self._threads.run(work))
        working.add_done_callback(partial(self._done, ticket))
        if self._watch is None:
            self._look_at(loop.time() + SILENT_AFTER_S)
        return await asyncio.shield(working)

    async def answers(self) -> None:
        """Wait until the directory is not silent."""
        while self.silent:
            await self._answered.wait()

    def _done(self, ticket: int, _: asyncio.Task[object]) -> None:
        del self._under_way[ticket]
        self._room.release()
        if self.silent and not self._is_overdue(now_s := asyncio.get_running_loop().time()):
            self.silent = False
            self._answered.set()
            self._told(False, now_s)

    def _is_overdue(self, now_s: float) -> bool:
        return bool(self._under_way) and now_s - next(iter(self._under_way.values())) >= SILENT_AFTER_S

    def _look_at(self, when_s: float) -> None:
        self._watch = asyncio.get_running_loop().call_at(when_s, self._look, when_s)

    def _look(self, when_s: float) -> None:
        self._watch = None
        now_s = asyncio.get_running_loop().time()
        if now_s - when_s > SILENT_AFTER_S / 2:  # the loop was blocked: let completed work report first
            self._look_at(now_s + SILENT_AFTER_S / 10)
            return
        if self._is_overdue(now_s) and not self.silent:
            self.silent = True
            self._answered.clear()
            self._told(True, now_s)
        if self._under_way:
            oldest_s = next(iter(self._under_way.values()))
            self._look_at(max(oldest_s, now_s - SILENT_AFTER_S / 2) + SILENT_AFTER_S)
