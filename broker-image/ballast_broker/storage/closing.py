"""Closes all logs at shutdown: per directory, first closes them, then makes them durable, in threads, in shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.seams import Disk
from ballast_broker.storage.directories import LogDirectory, all_but_silent
from ballast_broker.storage.errors import LogDirectoryFailure, OutOfHandles
from ballast_broker.storage.log import Log

if TYPE_CHECKING:
    from ballast_broker.storage.manager import LogManager

CLOSED_AT_ONCE = 64
logger = logging.getLogger(__name__)


async def close_directories(manager: LogManager, broker_epoch: int) -> None:
    """Flush everything, write checkpoints and the clean-shutdown mark, release the locks. Directories that hang come
    last, so that the others are shut down cleanly whatever becomes of these."""
    loop = asyncio.get_running_loop()
    online = [directory for directory in manager.all_directories if directory.online]
    closing = {each: loop.create_task(close_logs(each, manager.held.all_in(each), manager.disk)) for each in online}
    leaving = []
    while closing:
        await all_but_silent(closing)
        closed = [directory for directory, task in closing.items() if task.done()]
        for directory in closed:
            closing.pop(directory).result()
        await manager.maintenance.done(closed)
        await manager.maintenance.checkpoint_everything()
        leaving += [loop.create_task(_leave(manager, directory, broker_epoch)) for directory in closed]
        if closing:
            silent = ", ".join(each.path for each in closing)
            logger.error("log directories that are not closed yet, as they do not answer: %s", silent)
            await asyncio.wait(closing.values(), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*leaving)


async def _leave(manager: LogManager, directory: LogDirectory, broker_epoch: int) -> None:
    # A clean start believes the checkpoints. The disk may have fallen silent over one, or it could not be opened.
    await manager.maintenance.done([directory])
    if directory.online and directory.is_settled and all(file.is_written for file in directory.checkpoints):
        await directory.threads.run(lambda: _mark(directory, broker_epoch))
    directory.unlock()


def _mark(directory: LogDirectory, broker_epoch: int) -> None:
    try:
        directory.write_clean_shutdown_mark(broker_epoch)
    except OSError as error:
        directory.failure_for(error)


async def close_logs(directory: LogDirectory, logs: list[Log], disk: Disk) -> None:
    shares = [logs[first : first + CLOSED_AT_ONCE] for first in range(0, len(logs), CLOSED_AT_ONCE)]
    for share in shares:
        await directory.threads.run(lambda share=share: _each(share, Log.close))  # type: ignore[misc]
    if len(shares) > 1:
        # Otherwise each of thousands of syncs would wait for a commit of the file system's journal; after this there is
        # nothing left to commit.
        await directory.threads.run(lambda: _write_back(directory, disk))
    for share in shares:
        await directory.threads.run(lambda share=share: _each(share, Log.flush))  # type: ignore[misc]


def _each(logs: list[Log], do: Callable[[Log], object]) -> None:
    for log in logs:
        try:
            do(log)
        except OutOfHandles as error:
            logger.error("%s: the next start recovers %s", error, log.topic_partition)
            log.directory.is_settled = False
        except LogDirectoryFailure:
            return


def _write_back(directory: LogDirectory, disk: Disk) -> None:
    if directory.online:
        try:
            disk.write_back(directory.path)
        except OSError as error:
            directory.failure_for(error)
