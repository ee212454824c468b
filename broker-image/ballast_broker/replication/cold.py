"""Looks up positions in files that are not in the page cache, without blocking the event loop.

A disk that is slow or hangs holds up only those who read from it. A directory's thread reads what a lookup lacks into
the page cache; then the partition's waiting fetches, or the lookup itself, are tried again. Loop thread only, except
the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ballast_broker.seams import NotInMemory
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.replication.replica import Replica
    from ballast_broker.seams import Disk
    from ballast_broker.storage.log import Log

# Those who wanted what was read look it up within this time.
KEPT_S = 1.0
_Missing = tuple[str, int, int]  # path, position, size
T = TypeVar("T")
How = ParamSpec("How")


class ColdLookups:
    def __init__(self) -> None:
        self._reading: dict[_Missing, asyncio.Task[None]] = {}
        self._was_read: set[_Missing] = set()

    def lacks(self, replica: Replica, log: Log, lacking: NotInMemory) -> bool:
        """Start reading what is missing. False if that was read just now and is missing again: it was evicted at once,
        so this time the lookup has to wait for the disk."""
        missing = lacking.path, lacking.position, lacking.size
        if missing in self._was_read:
            return False
        if missing not in self._reading:
            task = asyncio.get_running_loop().create_task(self._read(replica, log, missing))
            self._reading[missing] = task
        return True

    def look(
        self, ask: Callable[Concatenate[Replica, How], T], replica: Replica, *how: How.args, **named: How.kwargs
    ) -> T | asyncio.Task[T]:
        """Call `ask` on the replica: returns its result if all is in memory, else a task for it."""
        log = replica.log
        if log is None:
            return ask(replica, *how, **named)
        try:
            with log.context.disk.not_waiting():
                return ask(replica, *how, **named)
        except NotInMemory as lacking:
            again = self._ask_again(replica, log, lacking, lambda: ask(replica, *how, **named))
            return asyncio.get_running_loop().create_task(again)

    async def _ask_again(self, replica: Replica, log: Log, lacking: NotInMemory, ask: Callable[[], T]) -> T:
        while self.lacks(replica, log, lacking):
            await asyncio.shield(self._reading[lacking.path, lacking.position, lacking.size])
            if replica.log is None or replica.log.closed:  # deleted: its files may be gone
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            try:
                with log.context.disk.not_waiting():
                    return ask()
            except NotInMemory as more:
                lacking = more
        return ask()

    async def _read(self, replica: Replica, log: Log, missing: _Missing) -> None:
        try:
            await log.directory.threads.run(_reader(log.context.disk, *missing))
        except OSError as error:
            log.directory.failure_for(error)
        finally:
            del self._reading[missing]
        self._was_read.add(missing)
        asyncio.get_running_loop().call_later(KEPT_S, self._was_read.discard, missing)
        replica.wake_all()


def _reader(disk: Disk, path: str, position: int, size: int) -> Callable[[], None]:
    def read() -> None:
        with suppress(FileNotFoundError):  # renamed meanwhile, or gone
            file = disk.open(path, writable=False)
            try:
                file.pread(size, position)
            finally:
                file.close()

    return read
