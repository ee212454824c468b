"""Names and renames the folders of logs, and removes those of discarded logs.

An OSError takes the directory offline. Loop thread only.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ballast_broker.seams import Disk, Random
from ballast_broker.storage.directories import DELETE_SUFFIX, FUTURE_SUFFIX, marked_folder_name, name_of_move
from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.maintenance import Maintenance


class Folders:
    def __init__(self, disk: Disk, random: Random, maintenance: Maintenance) -> None:
        self._disk = disk
        self._random = random
        self._maintenance = maintenance
        self._copies = 0

    def name_of(self, topic_partition: TopicPartition, suffix: str) -> str:
        """`topic-partition`, or a marked name that no other folder has."""
        if not suffix:
            return str(topic_partition)
        return marked_folder_name(topic_partition, self._random.bytes_of(16).hex(), suffix)

    def name_of_copy(self, topic_partition: TopicPartition, broker_epoch: int) -> str:
        self._copies += 1
        return marked_folder_name(
            topic_partition, name_of_move(broker_epoch, self._copies, self._random), FUTURE_SUFFIX
        )

    def rename(self, log: Log, suffix: str) -> None:
        path = f"{log.directory.path}/{self.name_of(log.topic_partition, suffix)}"
        before = log.folder.path
        with log.disk_faults(), log.flush_lock:  # a concurrent flush sees the old name or the new one
            self._disk.rename(before, path)
            log.folder.path = path
        log.directory.checkpoints.changed(log.topic_partition)
        if suffix == DELETE_SUFFIX:
            self._maintenance.forget_removals_under(before)
        elif not suffix:
            self._maintenance.folder_was_renamed(before, path)

    def discard(self, log: Log) -> None:
        log.closed = True
        with contextlib.suppress(LogDirectoryFailure):  # the next start deals with what is left on that disk
            self.rename(log, DELETE_SUFFIX)
        self.retire(log)

    def retire(self, log: Log) -> None:
        """Drop a log whose folder is renamed `-delete` already."""
        log.closed = True
        log.invalidate_write_state()
        log.directory.checkpoints.gone(log.topic_partition)
        for segment in log.segments:
            segment.abandon()
        if log.directory.online:
            self._maintenance.remove_later([log.folder.path], log.config.file_delete_delay_ms)
