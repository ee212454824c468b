"""What the coordinator keeps in `__consumer_offsets`: Kafka's keys and values, to bytes and back.

A key begins with two bytes that say what it is (0 and 1: an offset, 2: a group), a value with its version.
Keys of kinds that this broker does not know (newer group types) are answered with None and left alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

OFFSET_KINDS = (0, 1)
OFFSET_KIND = 1
GROUP_KIND = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3


class OffsetKey(NamedTuple):
    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group_id: str


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = message("OffsetCommitKey")(group=group_id, topic=partition.topic, partition=partition.partition)
    return struct.pack(">h", OFFSET_KIND) + bytes(key.encode(version=0, header=False))


def group_key(group_id: str) -> bytes:
    return struct.pack(">h", GROUP_KIND) + bytes(message("GroupMetadataKey")(group=group_id).encode(0, header=False))


def offset_value(committed: CommittedOffset) -> bytes:
    expires = committed.expire_timestamp_ms >= 0
    value = message("OffsetCommitValue")(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return bytes(value.encode(OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_VALUE_VERSION))


def group_value(group: Group, assignments: dict[str, bytes] | None = None) -> bytes:
    """The group as it is to be found again; `assignments` are those about to be given out."""
    kind = message("GroupMetadataValue")
    members = [
        kind.MemberMetadata(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            rebalance_timeout=m.rebalance_timeout_ms,
            session_timeout=m.session_timeout_ms,
            subscription=m.metadata_for(group.protocol_name),
            assignment=m.assignment if assignments is None else assignments.get(m.member_id, b""),
        )
        for m in group.members.values()
    ]
    value = kind(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return bytes(value.encode(GROUP_VALUE_VERSION))


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    (kind,) = struct.unpack_from(">h", key, 0)
    if kind in OFFSET_KINDS:
        decoded = message("OffsetCommitKey").decode(key[2:], version=0, header=False)
        return OffsetKey(decoded.group, TopicPartition(decoded.topic, decoded.partition))
    if kind == GROUP_KIND:
        return GroupKey(message("GroupMetadataKey").decode(key[2:], version=0, header=False).group)
    return None


def decode_offset(value: bytes) -> CommittedOffset:
    v = message("OffsetCommitValue").decode(value)
    return CommittedOffset(v.offset, v.leader_epoch, v.metadata, v.commit_timestamp, v.expire_timestamp)


def decode_group(group_id: str, value: bytes, now_ms: int) -> Group:
    """The group as stored: stable with its members, who have a whole session to be heard of, or empty."""
    v = message("GroupMetadataValue").decode(value)
    group = Group(
        group_id,
        state=GroupState.STABLE if v.members else GroupState.EMPTY,
        state_timestamp_ms=v.current_state_timestamp,
        generation=v.generation,
        protocol_type=v.protocol_type or None,
        protocol_name=v.protocol,
    )
    for m in v.members:
        timeout_ms = m.rebalance_timeout if m.rebalance_timeout >= 0 else m.session_timeout
        member = Member(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            rebalance_timeout_ms=timeout_ms,
            session_timeout_ms=m.session_timeout,
            protocols=(Protocol(v.protocol or "", bytes(m.subscription)),),
            assignment=bytes(m.assignment),
            deadline_ms=now_ms + m.session_timeout,
            is_new=False,
        )
        group.add(member)
    group.leader_id = v.leader if v.leader in group.members else group.leader_id
    group.note_subscriptions()
    return group
