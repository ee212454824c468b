"""Decides which one to keep when startup finds several logs of one partition in the broker's directories.

Never removes records that the kept log lacks. Loop thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.storage.common_end import has_all_of
from ballast_broker.storage.directories import DELETE_SUFFIX, order_of_move
from ballast_broker.storage.errors import LogDirectoryFailure

if TYPE_CHECKING:
    from ballast_broker.storage.deleted_folders import DeletedFolders
    from ballast_broker.storage.folders import Folders
    from ballast_broker.storage.held_logs import HeldLogs
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.placement import Placement

logger = logging.getLogger(__name__)


class FoundLogs:
    def __init__(
        self,
        held: HeldLogs,
        placement: Placement,
        folders: Folders,
        deleted_folders: DeletedFolders,
        set_aside: Callable[[Log], None],
    ) -> None:
        self._held = held
        self._placement = placement
        self._folders = folders
        self._deleted_folders = deleted_folders
        self._set_aside = set_aside
        self._older_copies: list[Log] = []

    def current(self, log: Log) -> None:
        """Of two current logs keep the one that goes further. Two are left by a power failure during a swap: the one
        swapped in goes further, since nothing is written to the other from then on."""
        self._placement.comes(log.directory)
        other = self._held.current.get(log.topic_partition)
        if other is None:
            self._held.add(log)
            return
        if other.topic_id != log.topic_id:
            self._held.add_namesake(log)
            return
        if _reach(other) >= _reach(log):
            log, other = other, log
        self._held.add(log)
        self._give_up(other, log)

    def _give_up(self, log: Log, current: Log) -> None:
        """Remove the log if `current` has all of it, else set it aside: it may be the only copy of its records, in a
        directory that was not in `log.dirs` for a while, so that the replica was recreated elsewhere."""
        here, there = log.folder.path, current.folder.path
        if not has_all_of(current, log):
            logger.warning("two logs of a replica: %s is used; %s, which has other records, is set aside", there, here)
            self._set_aside(log)
            return
        logger.warning("two logs of a replica: %s is used; %s, which has nothing more, is removed", there, here)
        self._placement.goes(log.directory)
        with contextlib.suppress(LogDirectoryFailure):
            self._folders.rename(log, DELETE_SUFFIX)
            self._deleted_folders.found({log.folder.path: log.topic_partition})

    def copy(self, log: Log) -> None:
        """Of two future logs, left by a move that was restarted elsewhere, keep the one begun last: the other's disk
        had failed, or a power failure undid its removal. If the order is unknown, keep the one that goes further."""
        self._placement.comes(log.directory)
        other = self._held.future.get(log.topic_partition)
        if other is not None:
            if (_order(other), *_reach(other)) > (_order(log), *_reach(log)):
                log, other = other, log
            self._older_copies.append(other)
        self._held.add_future(log)

    def settle_older_copies(self) -> None:
        """Remove or set aside the superseded future logs. Call once all directories are loaded."""
        for log in self._older_copies:
            if log.topic_partition in self._held.current:
                self._placement.goes(log.directory)
                self._folders.discard(log)
            else:
                self._set_aside(log)
        self._older_copies = []


def _order(log: Log) -> int:
    return order_of_move(log.folder.path)


def _reach(log: Log) -> tuple[int, int]:
    return -1 if log.latest_epoch is None else log.latest_epoch, log.end_offset
