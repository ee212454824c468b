"""Registers the logs that a broker has, by role: a partition's current log, the future log that a move is filling, logs
of different topics with the same name (until the metadata tells which one is meant), and the metadata log.

Does nothing to their files. Loop thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.names import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from ballast_broker.storage.directories import LogDirectory
    from ballast_broker.storage.log import Log


class HeldLogs:
    def __init__(self) -> None:
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        self._namesakes: dict[TopicPartition, list[Log]] = {}
        self.of_metadata: Log | None = None
        self.current: Mapping[TopicPartition, Log] = MappingProxyType(self._current)
        self.future: Mapping[TopicPartition, Log] = MappingProxyType(self._future)

    # Facts

    def all_current(self) -> list[Log]:
        """The logs that checkpoints cover: the metadata log, too, and namesakes not yet decided upon."""
        namesakes = itertools.chain.from_iterable(self._namesakes.values())
        return [*self._current.values(), *namesakes, *([self.of_metadata] if self.of_metadata else [])]

    def named(self, topic_partition: TopicPartition, directory: LogDirectory, *, copies: bool) -> list[Log]:
        """The partition's logs in this directory: current or metadata log or namesake, with `copies` the future one."""
        named = [self._current.get(topic_partition), self._future.get(topic_partition) if copies else None]
        named += self._namesakes.get(topic_partition, ())
        if self.of_metadata is not None and self.of_metadata.topic_partition == topic_partition:
            named.append(self.of_metadata)
        return [log for log in named if log is not None and log.directory is directory]

    def all_in(self, directory: LogDirectory) -> list[Log]:
        """All logs open in this directory: future logs, too, and namesakes not yet decided upon."""
        every = itertools.chain(self.all_current(), self._future.values())
        return [log for log in every if log.directory is directory]

    # Coming

    def add(self, log: Log) -> None:
        """Add as the current log, replacing any other."""
        self._current[log.topic_partition] = log

    def add_future(self, log: Log) -> None:
        self._future[log.topic_partition] = log

    def add_namesake(self, log: Log) -> None:
        self._namesakes.setdefault(log.topic_partition, []).append(log)

    def use_future(self, topic_partition: TopicPartition) -> None:
        """Make the future log the current one."""
        self._current[topic_partition] = self._future.pop(topic_partition)

    # Going

    def take(self, topic_partition: TopicPartition) -> Log | None:
        return self._current.pop(topic_partition, None)

    def take_future(self, topic_partition: TopicPartition) -> Log | None:
        return self._future.pop(topic_partition, None)

    def take_topic(self, topic_partition: TopicPartition, topic_id: UUID) -> list[Log]:
        """Take the future and the current log, if they belong to this topic id."""
        return [
            logs.pop(topic_partition)
            for logs in (self._future, self._current)
            if topic_partition in logs and logs[topic_partition].topic_id == topic_id
        ]

    def take_others(self, topic_partition: TopicPartition, topic_id: UUID) -> list[Log]:
        """TOP-24: keep what belongs to this topic id, take what belongs to any other topic of the name."""
        others = [
            logs.pop(topic_partition)
            for logs in (self._current, self._future)
            if topic_partition in logs and logs[topic_partition].topic_id not in (ZERO_UUID, topic_id)
        ]
        for log in self._namesakes.pop(topic_partition, ()):
            if log.topic_id == topic_id and topic_partition not in self._current:
                self._current[topic_partition] = log
            else:
                others.append(log)
        return others

    def take_namesakes(self) -> dict[TopicPartition, list[Log]]:
        taken, self._namesakes = self._namesakes, {}
        return taken
