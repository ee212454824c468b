"""Folders that a start finds `-delete`: they are removed, but for one that a swap has left as all that there is.

The current log's folder is renamed away first and the copy's into its place then (DIR-31). Where the copy's disk failed
at that moment, the broker died of it and that disk is away, what was renamed is the only log of a replica that is here.
Only the metadata tells it from what was really deleted. Loop thread only.
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


class RenamedAway:
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
        """They have a log; the others wait for the metadata."""
        self._remove([path for path, topic_partition in self._found.items() if topic_partition in there])

    def settle(self, is_here: Callable[[TopicPartition, UUID], bool]) -> Iterator[tuple[str, TopicPartition]]:
        """By the metadata: whether this broker has a replica of this partition of the topic of this id. Answers those
        that were set aside, by their path now."""
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
            logger.warning("%s may be all that is left of a log whose disk failed as it moved: set aside", aside)
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
