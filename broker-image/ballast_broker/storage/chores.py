"""What is to be done to one directory's files, soon or after a while: deleted ones removed, logs that rolled flushed.

Each directory has its own two tasks, so that none waits for another one's disk. Loop thread only; the work itself is
done in the directory's threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import itertools
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ballast_broker.handles import are_out
from ballast_broker.seams import Clock, Disk
from ballast_broker.storage.errors import LogDirectoryFailure, OutOfHandles

if TYPE_CHECKING:
    from ballast_broker.storage.directories import LogDirectory
    from ballast_broker.storage.log import Log

LONGEST_SLEEP_S = 3600.0
# What keeps a file or folder where it is, and tells nothing of the disk: somebody's rights or mount, or, on NFS, what
# is still open (it gets another name there, in the same folder).
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.EBUSY)
REMOVE_AGAIN_MS = 600_000
# A folder of many large files takes minutes, and who is so long in one call passes for a disk that does not answer.
REMOVE_AT_ONCE_S = 1.0
FLUSH_AT_ONCE_S = 1.0  # likewise: after an unclean stop it may be a thousand segments
FLUSH_AGAIN_S = 5.0
logger = logging.getLogger(__name__)


class Chores:
    """`flushed`: told whenever a log was."""

    def __init__(self, directory: LogDirectory, disk: Disk, clock: Clock, flushed: Callable[[], None]) -> None:
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._flushed = flushed
        self._removals: list[tuple[float, int, list[str]]] = []  # (when, tie breaker, paths)
        self._within: dict[str, dict[int, list[str]]] = {}  # the same paths, by their folder and tie breaker
        self._ticket = itertools.count()
        self._flushes: dict[int, Log] = {}
        self._removal_added = asyncio.Event()
        self._flush_added = asyncio.Event()

    async def run(self) -> None:
        """Does them until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remove_when_due())
            group.create_task(self._flush_when_asked())

    # Removing

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        """All of them in one folder."""
        due, ticket = self._clock.monotonic() + delay_ms / 1000, next(self._ticket)
        heapq.heappush(self._removals, (due, ticket, paths))
        self._within.setdefault(os.path.dirname(paths[0]), {})[ticket] = paths
        self._removal_added.set()

    @property
    def removals_waiting(self) -> int:
        return sum(len(paths) for _, _, paths in self._removals)

    def forget_removals_under(self, folder: str) -> None:
        """The folder goes as a whole. Thousands do at once, so nobody else's removals are looked at."""
        for paths in self._within.pop(folder, {}).values():
            paths.clear()

    def folder_was_renamed(self, before: str, after: str) -> None:
        waiting = self._within.pop(before, {})
        for paths in waiting.values():
            paths[:] = [after + path.removeprefix(before) for path in paths]
        if waiting:
            self._within.setdefault(after, {}).update(waiting)

    async def _remove_when_due(self) -> None:
        while True:
            self._removal_added.clear()
            wait_s = LONGEST_SLEEP_S
            if self._removals:
                wait_s = self._removals[0][0] - self._clock.monotonic()
            if wait_s > 0:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._removal_added.wait()
                except TimeoutError:
                    pass
                continue
            await self._remove_first()

    async def remove_everything_waiting(self) -> None:
        """Without waiting for the delay."""
        for _ in range(len(self._removals)):
            while await self._remove_first():
                pass

    async def _remove_first(self) -> bool:
        """Whether there was no time for all of it: the rest is the first now."""
        _, ticket, paths = heapq.heappop(self._removals)
        if paths:
            folder = os.path.dirname(paths[0])
            del self._within[folder][ticket]
            if not self._within[folder]:
                del self._within[folder]
        rest, left = await self._directory.threads.run(lambda: self._remove(list(paths)))
        if rest:
            self.remove_later(rest, 0)
        if left:
            self.remove_later(left, REMOVE_AGAIN_MS)
        return bool(rest)

    def _remove(self, paths: list[str]) -> tuple[list[str], list[str]]:
        """Answers what there was no time for, and what is in somebody's way."""
        left: list[str] = []
        until_s = self._clock.monotonic() + REMOVE_AT_ONCE_S
        for number, path in enumerate(paths):
            if number and self._clock.monotonic() >= until_s:
                return paths[number:], left
            try:
                if not self._disk.is_directory(path):
                    self._disk.remove(path)
                elif self._is_emptied(path, until_s):
                    self._disk.remove_tree(path)
                else:
                    return paths[number:], left
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in _IN_THE_WAY or are_out(error):
                    logger.error("%s cannot be removed, and stays: %s", path, error)
                    left.append(path)
                else:
                    self._directory.fail(error)
        return [], left

    def _is_emptied(self, folder: str, until_s: float) -> bool:
        """False when the time is over. What cannot be removed is left to who removes the folder, and says why."""
        with contextlib.suppress(OSError):
            for name in self._disk.list(folder):
                self._disk.remove(f"{folder}/{name}")
                if self._clock.monotonic() >= until_s:
                    return False
        return True

    # Flushing

    def flush_later(self, log: Log) -> None:
        """It has rolled."""
        self._flushes[id(log)] = log
        self._flush_added.set()

    async def flush(self, logs: Iterable[Log]) -> None:
        """All of them, as far as they go."""
        for log in logs:
            await self._flush(log)

    async def _flush_when_asked(self) -> None:
        while True:
            await self._flush_added.wait()
            self._flush_added.clear()
            while self._flushes:
                _, log = self._flushes.popitem()
                if log.directory.online:  # else it may be without a segment: its disk failed when it was cut
                    await self._flush(log, log.active.base_offset)
                self._flushed()

    async def _flush(self, log: Log, up_to: int | None = None) -> None:
        try:
            while not await self._directory.threads.run(lambda: log.flush(up_to, for_s=FLUSH_AT_ONCE_S)):
                if not log.directory.online:
                    break
        except OutOfHandles:  # the operator is told, and the log is flushed a little later
            asyncio.get_running_loop().call_later(FLUSH_AGAIN_S, self.flush_later, log)
        except LogDirectoryFailure as error:
            logger.error("flushing %s failed: %s", log.topic_partition, error)
        except OSError as error:  # pragma: no cover - Log.flush turns these into failures
            self._directory.fail(error)
