"""Encodes and decodes consumer-protocol group records in `__consumer_offsets`: types 3 to 8 and 16. PURE."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from ballast_broker.coordinator.consumers.group import (
    NONE,
    About,
    AboutChange,
    Change,
    Classic,
    Current,
    CurrentChange,
    EpochChange,
    MemberState,
    Partitions,
    PatternChange,
    Resolved,
    TargetChange,
    TargetEpochChange,
    TopicsGoneChange,
)
from ballast_broker.coordinator.group import Protocol
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.reader import Reader
from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.messages import message

VERSION = 0
KINDS = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}
LONGEST_NAME = 2**15 - 1
ABOUT_KIND = 5
NO_TAGS = b"\0"
# One tagged field, number 0, of one byte: null. Without it, Apache Kafka takes the member for a classic one.
NOT_CLASSIC = bytes((1, 0, 1, 0))
_short = struct.Struct(">h")
_int = struct.Struct(">i")
_current_head = struct.Struct(">hiib")  # version, epoch, previous epoch, state


class GroupChange(NamedTuple):
    group_id: str
    change: Change


def encode(group_id: str, change: Change) -> tuple[bytes, bytes | None]:
    kind, naming, value = _ENCODE[type(change)](change)
    name = KINDS[kind]
    key = message(name + "Key")(group_id=group_id, **naming)
    if any(len(text.encode()) > LONGEST_NAME for text in (group_id, *naming.values())):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"A name is longer than the {LONGEST_NAME} bytes of a key.")
    body = bytes(message(name + "Value")(**value).encode(VERSION)) if isinstance(value, dict) else value
    if body is not None and kind == ABOUT_KIND:
        assert isinstance(change, AboutChange)
        assert change.about is not None
        body = body.removesuffix(NO_TAGS) + _classic_tag(change.about.classic)
    return _short.pack(kind) + bytes(key.encode(version=VERSION, header=False)), body


def decode(kind: int, key: bytes, value: bytes | None) -> GroupChange:
    name = KINDS[kind]
    k = message(name + "Key").decode(key[_short.size :], version=VERSION, header=False)
    body = None if value is None else message(name + "Value").decode(value)
    change = _DECODE[kind](k, body)
    if isinstance(change, AboutChange) and change.about is not None and value is not None:
        change = AboutChange(change.member_id, replace(change.about, classic=_classic_of(value)))
    return GroupChange(k.group_id, change)


# -- to bytes ---------------------------------------------------------------------------------------------------------
_Fields = tuple[int, dict[str, Any], dict[str, Any] | bytes | None]


def _epoch(change: EpochChange) -> _Fields:
    if change.epoch is None:
        return 3, {}, None
    return 3, {}, {"epoch": change.epoch, "metadata_hash": change.metadata_hash}


def _about(change: AboutChange) -> _Fields:
    about = change.about
    if about is None:
        return 5, {"member_id": change.member_id}, None
    fields = {
        "instance_id": about.instance_id,
        "rack_id": about.rack_id,
        "client_id": about.client_id,
        "client_host": about.client_host,
        "subscribed_topic_names": sorted(about.topics),
        "subscribed_topic_regex": about.pattern,
        "rebalance_timeout_ms": about.rebalance_timeout_ms,
        "server_assignor": about.assignor,
    }
    return 5, {"member_id": change.member_id}, fields


def _target_epoch(change: TargetEpochChange) -> _Fields:
    return 6, {}, None if change.epoch is None else {"assignment_epoch": change.epoch}


def _target(change: TargetChange) -> _Fields:
    naming = {"member_id": change.member_id}
    if change.partitions is None:
        return 7, naming, None
    return 7, naming, _short.pack(VERSION) + _put(change.partitions) + NO_TAGS


def _current(change: CurrentChange) -> _Fields:
    naming, current = {"member_id": change.member_id}, change.current
    if current is None:
        return 8, naming, None
    head = _current_head.pack(VERSION, current.epoch, current.previous_epoch, current.state)
    return 8, naming, head + _put(current.assigned) + _put(current.revoking) + NO_TAGS


def _put(partitions: Partitions) -> bytes:
    """By hand: a member may have thousands of topics, and the engine takes five times as long."""
    out = bytearray(unsigned_varint(len(partitions) + 1))
    for topic_id, numbers in partitions.items():
        count = len(numbers)
        out += topic_id.bytes + unsigned_varint(count + 1) + struct.pack(f">{count}i", *sorted(numbers)) + NO_TAGS
    return bytes(out)


def _pattern(change: PatternChange) -> _Fields:
    naming, resolved = {"regular_expression": change.pattern}, change.resolved
    if resolved is None:
        return 16, naming, None
    topics = sorted(resolved.topics)
    return 16, naming, {"topics": topics, "metadata_version": resolved.version, "timestamp": resolved.timestamp_ms}


_ENCODE: dict[type, Callable[[Any], _Fields]] = {
    EpochChange: _epoch,
    TopicsGoneChange: lambda change: (4, {}, None),
    AboutChange: _about,
    TargetEpochChange: _target_epoch,
    TargetChange: _target,
    CurrentChange: _current,
    PatternChange: _pattern,
}


# -- and back ---------------------------------------------------------------------------------------------------------
def partitions_of(topics: Iterable[Any]) -> Partitions:
    found = {each.topic_id: frozenset(each.partitions) for each in topics}
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers} or NONE


def _about_of(value: Any) -> About:
    return About(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        pattern=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
    )


def _current_of(value: Any) -> Current:
    known = value.state in iter(MemberState)
    return Current(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=partitions_of(value.assigned_partitions),
        revoking=partitions_of(value.partitions_pending_revocation),
    )


# -- what classic members have, by hand: the codec does not know structs in tagged fields ------------------------------
def _classic_tag(classic: Classic | None) -> bytes:
    if classic is None:
        return NOT_CLASSIC
    body = b"\x01" + _int.pack(classic.session_timeout_ms) + unsigned_varint(len(classic.protocols) + 1)
    for name, metadata in classic.protocols:
        for data in (name.encode(), metadata):
            body += unsigned_varint(len(data) + 1) + data
        body += NO_TAGS
    body += NO_TAGS
    return b"\x01\x00" + unsigned_varint(len(body)) + body


def _classic_of(value: bytes) -> Classic | None:
    reader = Reader(memoryview(value), _short.size)
    for _ in range(4):  # instance id, rack id, client id, host
        reader.bytes_view(compact=True)
    for _ in range(reader.unsigned_varint() - 1):  # topics
        reader.bytes_view(compact=True)
    reader.bytes_view(compact=True)  # the pattern
    reader.int32()  # the rebalance timeout
    reader.bytes_view(compact=True)  # the assignor
    for tag, field in reader.tags():
        if tag == 0 and field[0]:
            return _classic_in(Reader(field, 1))
    return None


def _classic_in(reader: Reader) -> Classic:
    session_timeout_ms, protocols = reader.int32(), []
    for _ in range(reader.unsigned_varint() - 1):
        name, metadata = (bytes(reader.bytes_view(compact=True) or b"") for _ in range(2))
        protocols.append(Protocol(name.decode(), metadata))
        reader.skip_tags()
    return Classic(session_timeout_ms, tuple(protocols))


_DECODE: dict[int, Callable[[Any, Any], Change]] = {
    3: lambda key, value: EpochChange(None) if value is None else EpochChange(value.epoch, value.metadata_hash),
    4: lambda key, value: TopicsGoneChange(),
    5: lambda key, value: AboutChange(key.member_id, None if value is None else _about_of(value)),
    6: lambda key, value: TargetEpochChange(None if value is None else value.assignment_epoch),
    7: lambda key, value: TargetChange(key.member_id, None if value is None else partitions_of(value.topic_partitions)),
    8: lambda key, value: CurrentChange(key.member_id, None if value is None else _current_of(value)),
    16: lambda key, value: PatternChange(
        key.regular_expression,
        None if value is None else Resolved(frozenset(value.topics), value.metadata_version, value.timestamp),
    ),
}
