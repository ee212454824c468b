"""A group's committed offsets and their expiration. PURE.

As in Kafka, the offsets of an empty group expire `retention_ms` after it became empty, those of a live consumer group
once it no longer subscribes to the topic, and those of a standalone committer `retention_ms` after the commit. An
expiry time set by an old client replaces the retention but, like it, applies only to offsets not in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from ballast_broker.coordinator.group import Group, GroupState
from ballast_wire.names import ZERO_UUID, TopicPartition


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1  # only records of very old clients carry one
    topic_id: UUID = ZERO_UUID  # the topic's id at commit time; all zeros: unknown

    def is_of(self, topic_id: UUID) -> bool:
        """Whether it belongs to this topic, rather than to an earlier one of the same name."""
        return self.topic_id in (ZERO_UUID, topic_id)


Offsets = dict[TopicPartition, CommittedOffset]


def expired(group: Group | None, offsets: Offsets, retention_ms: int, wall_ms: int) -> Iterator[TopicPartition]:
    for partition, committed in offsets.items():
        since = _retained_since(group, partition, committed)
        if since is None:
            continue
        due_ms = committed.expire_timestamp_ms if committed.expire_timestamp_ms >= 0 else since + retention_ms
        if wall_ms >= due_ms:
            yield partition


def expired_of_consumers(
    read: frozenset[str], offsets: Offsets, retention_ms: int, wall_ms: int
) -> Iterator[TopicPartition]:
    """The expired offsets of a consumer-protocol group whose members `read` these topics; counted from the commit."""
    for partition, committed in offsets.items():
        due_ms = committed.expire_timestamp_ms
        if due_ms < 0:
            due_ms = committed.commit_timestamp_ms + retention_ms
        if wall_ms >= due_ms and partition.topic not in read:
            yield partition


def _retained_since(group: Group | None, partition: TopicPartition, committed: CommittedOffset) -> int | None:
    """When the retention period began; None: this offset is in use."""
    if group is None or group.protocol_type is None:
        return committed.commit_timestamp_ms
    if group.is_in(GroupState.EMPTY):
        became_empty = group.state_timestamp_ms
        return became_empty if became_empty >= 0 else committed.commit_timestamp_ms
    subscribed = group.subscribed
    in_use = not group.is_in(GroupState.STABLE) or subscribed is None or partition.topic in subscribed
    return None if in_use else committed.commit_timestamp_ms
