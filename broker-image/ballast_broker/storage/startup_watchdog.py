"""Runs startup work on all directories concurrently, and gives up those whose disk hangs.

Recovery may take hours, so elapsed time does not identify a hanging disk. Threads that use no CPU time do: they are
blocked in a single system call. No directory is given up while another one makes progress, or while the directory
that the node cannot do without hangs as well. Loop thread only, except what is passed to `Threads`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ballast_broker.seams import Disk, Threads
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.directory_threads import SILENT_AFTER_S

T = TypeVar("T")
PATIENCE_S = 30.0
LOOK_AGAIN_S = 1.0
logger = logging.getLogger(__name__)


async def run_on_all(
    directories: Iterable[LogDirectory],
    needed: LogDirectory,
    disk: Disk,
    threads: Threads,
    work: Callable[[LogDirectory, Threads], Awaitable[None]],
) -> None:
    """Wait until each directory is done or has been given up. An exception of `work` is raised at once."""
    loop = asyncio.get_running_loop()
    watches = {each: _ProgressWatch(each, disk, threads) for each in directories}
    tasks = {each: asyncio.ensure_future(work(each, look)) for each, look in watches.items()}
    try:
        while going := [each for each, task in tasks.items() if not task.done()]:
            await asyncio.wait(
                [tasks[each] for each in going], timeout=LOOK_AGAIN_S, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in tasks.values():
                if task.done():
                    task.result()
            going = [each for each in going if not tasks[each].done()]
            for each in going:
                watches[each].look(loop.time())
            silent = [each for each in going if watches[each].still_s >= PATIENCE_S]
            if needed not in silent and not any(watches[each].goes_on for each in going):
                for each in silent:
                    tasks.pop(each).cancel()
                    watches[each].give_up()
    finally:
        for task in tasks.values():
            task.cancel()


class _ProgressWatch:
    """The `Threads` of one directory; measures for how long its working threads have made no progress."""

    def __init__(self, directory: LogDirectory, disk: Disk, threads: Threads) -> None:
        self.still_s = 0.0
        self.goes_on = False  # makes progress; False also while its work is queued
        self._directory = directory
        self._disk = disk
        self._threads = threads
        self._tickets = itertools.count()
        self._working: dict[int, Callable[[], float]] = {}  # processor time of each thread
        self._under_way: set[asyncio.Task[Any]] = set()
        self._before: tuple[float, object] = (asyncio.get_running_loop().time(), None)

    async def run(self, work: Callable[[], T]) -> T:
        ticket = next(self._tickets)

        def watched() -> T:
            self._working[ticket] = self._disk.processor_time()
            try:
                return work()
            finally:
                del self._working[ticket]

        working = asyncio.get_running_loop().create_task(self._threads.run(watched))
        self._under_way.add(working)
        working.add_done_callback(self._answered)
        return await asyncio.shield(working)

    def look(self, now_s: float) -> None:
        working = dict(self._working)
        seen = {ticket: processor_time() for ticket, processor_time in working.items()}
        (looked_s, before), self._before = self._before, (now_s, seen)
        was_s, waits = self.still_s, bool(seen) and seen == before
        # More than that means that the loop itself was blocked.
        self.still_s = was_s + min(now_s - looked_s, 2 * LOOK_AGAIN_S) if waits else 0.0
        self.goes_on = bool(seen) and self.still_s < PATIENCE_S
        if was_s < SILENT_AFTER_S <= self.still_s:
            logger.error("log directory %s does not answer: the start waits for it", self._directory.path)

    def give_up(self) -> None:
        self._directory.given_up = self._directory.threads.silent = True
        text = f"it has not answered for {PATIENCE_S:g} s at the start"
        self._directory.fail(TimeoutError(errno.ETIMEDOUT, text, self._directory.path))

    def _answered(self, working: asyncio.Task[Any]) -> None:
        self._under_way.discard(working)
        working.cancelled() or working.exception()  # mark as retrieved: perhaps nobody awaits it any more
        if self._directory.given_up and not self._under_way:
            self._directory.threads.silent = False
            logger.error("log directory %s answers: restart the broker to take it in", self._directory.path)
