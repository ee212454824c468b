"""Does one directory's background work: removes deleted files after their delay, flushes logs that have rolled.

Each directory has its own two tasks, so that none waits for another one's disk. Loop thread only; the work itself runs
in the directory's threads.
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
# Errors that prevent a removal but do not mean that the disk has failed: permissions, a mount, or, on NFS, a file that
# is still open (NFS renames it within its folder).
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.EBUSY)
REMOVE_AGAIN_MS = 600_000
# Removing a folder of many large files takes minutes; in a single call that would look like a disk that hangs.
REMOVE_AT_ONCE_S = 1.0
FLUSH_AT_ONCE_S = 1.0  # likewise: after an unclean shutdown it may be a thousand segments
FLUSH_AGAIN_S = 5.0
logger = logging.getLogger(__name__)


class Chores:
    """Calls `flushed` whenever a log has been flushed."""

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
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remove_when_due())
            group.create_task(self._flush_when_asked())

    # Removing

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        """Remove the paths, all of one folder, after the delay."""
        due, ticket = self._clock.monotonic() + delay_ms / 1000, next(self._ticket)
        heapq.heappush(self._removals, (due, ticket, paths))
        self._within.setdefault(os.path.dirname(paths[0]), {})[ticket] = paths
        self._removal_added.set()

    @property
    def removals_waiting(self) -> int:
        return sum(len(paths) for _, _, paths in self._removals)

    def forget_removals_under(self, folder: str) -> None:
        """The folder is removed as a whole. Costs nothing for other folders: thousands may be removed at once."""
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
        """Remove all pending files now, without waiting for the delay."""
        for _ in range(len(self._removals)):
            while await self._remove_first():
                pass

    async def _remove_first(self) -> bool:
        """Remove the paths that are due first. True if the time slice was too short; the rest comes first now."""
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
        """Returns the paths that there was no time for, and those that cannot be removed for now."""
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
        """False when the time is up. A file that cannot be removed makes `remove_tree` fail, and that says why."""
        with contextlib.suppress(OSError):
            for name in self._disk.list(folder):
                self._disk.remove(f"{folder}/{name}")
                if self._clock.monotonic() >= until_s:
                    return False
        return True

    # Flushing

    def flush_later(self, log: Log) -> None:
        """Flush a log that has rolled."""
        self._flushes[id(log)] = log
        self._flush_added.set()

    async def flush(self, logs: Iterable[Log]) -> None:
        """Flush all of them to their end."""
        for log in logs:
            await self._flush(log)

    async def _flush_when_asked(self) -> None:
        while True:
            await self._flush_added.wait()
            self._flush_added.clear()
            while self._flushes:
                _, log = self._flushes.popitem()
                if log.directory.online:  # else it may have no segment left: its disk failed during truncation
                    await self._flush(log, log.active.base_offset)
                self._flushed()

    async def _flush(self, log: Log, up_to: int | None = None) -> None:
        try:
            while not await self._directory.threads.run(lambda: log.flush(up_to, for_s=FLUSH_AT_ONCE_S)):
                if not log.directory.online:
                    break
        except OutOfHandles:  # reported already; try again a little later
            asyncio.get_running_loop().call_later(FLUSH_AGAIN_S, self.flush_later, log)
        except LogDirectoryFailure as error:
            logger.error("flushing %s failed: %s", log.topic_partition, error)
        except OSError as error:  # pragma: no cover - Log.flush turns these into failures
            self._directory.fail(error)
