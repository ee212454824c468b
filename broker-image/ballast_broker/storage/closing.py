"""The end of all logs of one directory: closed, then durable, in threads, a share at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ballast_broker.seams import Disk
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.errors import LogDirectoryFailure, OutOfHandles
from ballast_broker.storage.log import Log

CLOSED_AT_ONCE = 64
logger = logging.getLogger(__name__)


async def close_logs(directory: LogDirectory, logs: list[Log], disk: Disk) -> None:
    shares = [logs[first : first + CLOSED_AT_ONCE] for first in range(0, len(logs), CLOSED_AT_ONCE)]
    for share in shares:
        await directory.threads.run(lambda share=share: _each(share, Log.close))  # type: ignore[misc]
    if len(shares) > 1:
        # Each of thousands of syncs would wait for a commit of the file system's journal; after this there is nothing
        # left to commit.
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
            directory.refused(error)
