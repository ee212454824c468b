"""What the coordinator keeps in `__consumer_offsets`: Kafka's keys and values, to bytes and back.

A key begins with two bytes that say what it is (0 and 1: an offset, 2: a group), a value with its version.
Keys of kinds that this broker does not know (newer group types) are answered with None and left alone.
Offsets, of which a log has many, are written and read by hand: who takes over waits for all of them to be read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

OFFSET_KINDS = (0, 1)
OFFSET_KIND = 1
GROUP_KIND = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
_short = struct.Struct(">h")
_int = struct.Struct(">i")
_long = struct.Struct(">q")
_offset_start = struct.Struct(">hqi")  # version, offset, leader epoch


class OffsetKey(NamedTuple):
    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group_id: str


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    return _short.pack(OFFSET_KIND) + _text(group_id) + _text(partition.topic) + _int.pack(partition.partition)


def group_key(group_id: str) -> bytes:
    return _short.pack(GROUP_KIND) + _text(group_id)


def offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp_ms < 0:
        start = _offset_start.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch)
        return start + _text(committed.metadata) + _long.pack(committed.commit_timestamp_ms)
    value = message("OffsetCommitValue")(
        offset=committed.offset,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return bytes(value.encode(OFFSET_VALUE_VERSION_WITH_EXPIRY))


def offset_entries(group_id: str, offsets: Offsets) -> list[tuple[bytes, bytes | None]]:
    return [(offset_key(group_id, partition), offset_value(offset)) for partition, offset in offsets.items()]


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
    (kind,) = _short.unpack_from(key)
    if kind in OFFSET_KINDS:
        group_id, position = _read_text(key, 2)
        topic, position = _read_text(key, position)
        return OffsetKey(group_id, TopicPartition(topic, _int.unpack_from(key, position)[0]))
    return GroupKey(_read_text(key, 2)[0]) if kind == GROUP_KIND else None


def decode_offset(value: bytes) -> CommittedOffset:
    if _short.unpack_from(value)[0] == OFFSET_VALUE_VERSION:
        _, offset, leader_epoch = _offset_start.unpack_from(value)
        metadata, position = _read_text(value, _offset_start.size)
        return CommittedOffset(offset, leader_epoch, metadata, _long.unpack_from(value, position)[0])
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


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _short.pack(len(encoded)) + encoded


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + _short.unpack_from(data, position)[0]
    if not start <= end <= len(data):
        raise ValueError("a text reaches past its end")
    return data[start:end].decode(), end
