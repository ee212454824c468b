"""Retries the roles that a replica could not take for want of a file descriptor to create its log.

Nothing else would trigger a retry: in the metadata all is well. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ballast_broker.storage.errors import OutOfHandles
from ballast_wire.errors import ApiError

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.metadata.image import PartitionRegistration
    from ballast_wire.names import TopicPartition

AGAIN_S = 1.0
Role = tuple[UUID, "PartitionRegistration", "LogConfig", bool]


class LateRoles:
    """If `take` raises `ApiError` the replica is offline."""

    def __init__(self, take: Callable[[TopicPartition, UUID, PartitionRegistration, LogConfig, bool], Any]) -> None:
        self._take = take
        self._waiting: dict[TopicPartition, Role] = {}  # the newest role of each

    def take(self, topic_partition: TopicPartition, role: Role) -> None:
        self._waiting.pop(topic_partition, None)
        try:
            self._take(topic_partition, *role)
        except OutOfHandles:
            self._waiting[topic_partition] = role
            asyncio.get_running_loop().call_later(AGAIN_S, self._again, topic_partition)
        except ApiError:
            return

    def _again(self, topic_partition: TopicPartition) -> None:
        role = self._waiting.get(topic_partition)
        if role is not None:
            self.take(topic_partition, role)

    def forget(self, topic_partition: TopicPartition) -> None:
        self._waiting.pop(topic_partition, None)
