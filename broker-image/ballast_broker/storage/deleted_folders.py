"""Handles `-delete` folders found at startup: removes them, unless one is all that an interrupted swap has left.

A swap first renames the current log's folder away, then the future log's into its place (DIR-31). If the future log's
disk failed between the two, the broker crashed and that disk is missing, the renamed folder is the replica's only log
here. Only the metadata tells it from one that was really deleted. Loop thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from uuid import UUID

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import Disk
from ballast_broker.storage.checkpoint import PARTITION_METADATA, parse_partition_metadata
from ballast_broker.storage.directories import DELETE_SUFFIX, STRAY_SUFFIX
from ballast_broker.storage.errors import CorruptFile
from ballast_wire.names import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)


class DeletedFolders:
    def __init__(
        self, disk: Disk, remove_later: Callable[[list[str], int], None], config_of: Callable[[str], LogConfig]
    ) -> None:
        self._disk = disk
        self._remove_later = remove_later
        self._config_of = config_of
        self._found: dict[str, TopicPartition] = {}

    def found(self, folders: Mapping[str, TopicPartition]) -> None:
        self._found.update(folders)

    def partitions(self) -> set[TopicPartition]:
        return set(self._found.values())

    def remove_those_of(self, there: Collection[TopicPartition]) -> None:
        """Remove the folders of partitions that have a log; the others wait for the metadata."""
        self._remove([path for path, topic_partition in self._found.items() if topic_partition in there])

    def settle(self, is_here: Callable[[TopicPartition, UUID], bool]) -> Iterator[tuple[str, TopicPartition]]:
        """`is_here`: whether the metadata places a replica of this partition and topic id on this broker. Sets those
        folders aside and yields them with their new path; removes the others."""
        for path, topic_partition in list(self._found.items()):
            if not is_here(topic_partition, self._topic_id(path)):
                continue
            del self._found[path]
            aside = path.removesuffix(DELETE_SUFFIX) + STRAY_SUFFIX
            try:
                self._disk.rename(path, aside)
            except OSError as error:
                logger.error("%s cannot be set aside, and stays: %s", path, error)
                continue
            logger.warning("%s is set aside: it may be all that is left of a log whose disk failed as it moved", aside)
            yield aside, topic_partition
        self._remove(list(self._found))

    def _topic_id(self, path: str) -> UUID:
        try:
            return parse_partition_metadata(self._disk.read_bytes(os.path.join(path, PARTITION_METADATA)))
        except (OSError, CorruptFile):
            return ZERO_UUID

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            topic = self._found.pop(path).topic
            self._remove_later([path], self._config_of(topic).file_delete_delay_ms)
