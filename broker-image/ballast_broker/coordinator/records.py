"""Encodes and decodes the records of `__consumer_offsets`: Kafka's keys and values.

A key begins with two bytes that tell its type (0 and 1: an offset, 2: a group), a value with its version. Types that
this broker does not know (share and streams groups) decode to None and are left alone. Offsets are coded by hand: a log
has many, and a new coordinator has to read them all before it can answer. Groups are encoded by hand: each generation
of a group is one record, of perhaps a thousand members.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID, TopicPartition, uuid_of
from ballast_wire.varint import read_unsigned_varint

OFFSET_KINDS = (0, 1)
OFFSET_KIND = 1
GROUP_KIND = 2
CONSUMER_KINDS = (3, 4, 5, 6, 7, 8, 16)
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_BEFORE_IDS = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
TOPIC_ID_TAG = b"\1\0\x10"  # one tagged field: its tag, its size
TOPIC_ID_SIZE = 16
_short = struct.Struct(">h")
_int = struct.Struct(">i")
_long = struct.Struct(">q")
_timeouts = struct.Struct(">ii")  # of a rebalance, of a session
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
        metadata = committed.metadata.encode()
        end = b"\0" if committed.topic_id == ZERO_UUID else TOPIC_ID_TAG + committed.topic_id.bytes
        time = _long.pack(committed.commit_timestamp_ms)
        return b"".join((start, unsigned_varint(len(metadata) + 1), metadata, time, end))
    value = message("OffsetCommitValue")(
        offset=committed.offset,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return bytes(value.encode(OFFSET_VALUE_VERSION_WITH_EXPIRY))


def offset_entries(group_id: str, offsets: Offsets) -> Iterator[tuple[bytes, bytes | None]]:
    for partition, offset in offsets.items():
        yield offset_key(group_id, partition), offset_value(offset)


def group_value(group: Group, assignments: dict[str, bytes] | None = None) -> bytes:
    """Encode the group; `assignments` are those about to be distributed."""
    start = (
        _short.pack(GROUP_VALUE_VERSION),
        _text(group.protocol_type or ""),
        _int.pack(group.generation),
        _nullable(group.protocol_name),
        _nullable(group.leader_id),
        _long.pack(group.state_timestamp_ms),
        _int.pack(len(group.members)),
    )
    members = (
        part
        for member in group.members.values()
        for part in _member(
            member,
            member.metadata_for(group.protocol_name),
            member.assignment if assignments is None else assignments.get(member.member_id, b""),
        )
    )
    return b"".join((*start, *members))


def _member(member: Member, subscription: bytes, assignment: bytes) -> tuple[bytes, ...]:
    return (
        _text(member.member_id),
        _nullable(member.group_instance_id),
        _text(member.client_id),
        _text(member.client_host),
        _timeouts.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
        _int.pack(len(subscription)),
        subscription,
        _int.pack(len(assignment)),
        assignment,
    )


def decode_key(key: bytes) -> OffsetKey | GroupKey | int | None:
    """A bare number is a key type of the consumer protocol (`consumers/records.py`)."""
    (kind,) = _short.unpack_from(key)
    if kind in OFFSET_KINDS:
        group_id, position = _read_text(key, 2)
        topic, position = _read_text(key, position)
        return OffsetKey(group_id, TopicPartition(topic, _int.unpack_from(key, position)[0]))
    if kind in CONSUMER_KINDS:
        return int(kind)
    return GroupKey(_read_text(key, 2)[0]) if kind == GROUP_KIND else None


def decode_offset(value: bytes) -> CommittedOffset:
    (version,) = _short.unpack_from(value)
    if version == OFFSET_VALUE_VERSION:
        return _decode_offset_with_id(value)
    if version == OFFSET_VALUE_VERSION_BEFORE_IDS:
        _, offset, leader_epoch = _offset_start.unpack_from(value)
        metadata, position = _read_text(value, _offset_start.size)
        return CommittedOffset(offset, leader_epoch, metadata, _long.unpack_from(value, position)[0])
    v = message("OffsetCommitValue").decode(value)
    return CommittedOffset(v.offset, v.leader_epoch, v.metadata, v.commit_timestamp, v.expire_timestamp)


def _decode_offset_with_id(value: bytes) -> CommittedOffset:
    _, offset, leader_epoch = _offset_start.unpack_from(value)
    length, start = read_unsigned_varint(value, _offset_start.size)
    end = start + length - 1
    if not start <= end <= len(value):
        raise ValueError("a text reaches past its end")
    (committed_ms,) = _long.unpack_from(value, end)
    topic_id = _topic_id(value, end + _long.size)
    return CommittedOffset(offset, leader_epoch, value[start:end].decode(), committed_ms, topic_id=topic_id)


def _topic_id(value: bytes, position: int) -> UUID:
    """Read the topic id from a value's tagged fields; unknown ones of later releases are skipped."""
    found = ZERO_UUID
    count, position = read_unsigned_varint(value, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(value, position)
        size, position = read_unsigned_varint(value, position)
        if position + size > len(value):
            raise ValueError("a field reaches past the end")
        if tag == 0 and size == TOPIC_ID_SIZE:
            found = uuid_of(value[position : position + size])
        position += size
    return found


def decode_group(group_id: str, value: bytes, now_ms: int) -> Group:
    """The group as stored: stable with its members, whose sessions start afresh, or empty."""
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


def _nullable(text: str | None) -> bytes:
    return _short.pack(-1) if text is None else _text(text)


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + _short.unpack_from(data, position)[0]
    if not start <= end <= len(data):
        raise ValueError("a text reaches past its end")
    return data[start:end].decode(), end
