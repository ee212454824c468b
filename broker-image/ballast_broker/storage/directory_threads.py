"""What one directory has threads do, so that a disk that does not answer holds nobody but who asks it.

Of the threads that all share a directory has so many at once; others wait for their turn. One whose work has been under
way for long is *silent*: until it answers, nothing that can wait is asked of it on the event loop. Loop thread only.
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
    """`Threads` of a directory. `told(silent, now_s)`: it fell silent, or answers again."""

    def __init__(self, threads: Threads, told: Callable[[bool, float], None]) -> None:
        self.silent = False
        self._threads = threads
        self._told = told
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tickets = itertools.count()
        self._under_way: dict[int, float] = {}  # since when, the oldest first
        self._watch: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self._answered.set()

    async def run(self, work: Callable[[], T]) -> T:
        """Whoever is cancelled does not wait for it, but its place is taken until the thread is done."""
        await self._room.acquire()
        loop, ticket = asyncio.get_running_loop(), next(self._tickets)
        self._under_way[ticket] = loop.time()
        working = loop.create_task(self._threads.run(work))
        working.add_done_callback(partial(self._done, ticket))
        if self._watch is None:
            self._look_at(loop.time() + SILENT_AFTER_S)
        return await asyncio.shield(working)

    async def answers(self) -> None:
        """Returns at once, or when it is silent no more."""
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
        if now_s - when_s > SILENT_AFTER_S / 2:  # the loop stood still: what answered meanwhile says so first
            self._look_at(now_s + SILENT_AFTER_S / 10)
            return
        if self._is_overdue(now_s) and not self.silent:
            self.silent = True
            self._answered.clear()
            self._told(True, now_s)
        if self._under_way:
            oldest_s = next(iter(self._under_way.values()))
            self._look_at(max(oldest_s, now_s - SILENT_AFTER_S / 2) + SILENT_AFTER_S)
