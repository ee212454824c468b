"""The hand-written codecs of the coordinators' records match Kafka's schemas."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.coordinator import records
from ballast_broker.coordinator.consumers import records as consumer_records
from ballast_broker.coordinator.consumers.group import Current, CurrentChange, MemberState, Partitions, TargetChange
from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_broker.coordinator.records import OffsetKey
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID, TopicPartition

pytestmark = pytest.mark.spec("CLI-04")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(text, text, int32)
def test_keys(group_id: str, topic: str, partition: int) -> None:
    key = message("OffsetCommitKey")(group=group_id, topic=topic, partition=partition)
    schema = struct.pack(">h", 1) + bytes(key.encode(version=0, header=False))
    assert records.offset_key(group_id, TopicPartition(topic, partition)) == schema
    assert records.decode_key(schema) == OffsetKey(group_id, TopicPartition(topic, partition))
    schema = struct.pack(">h", 2) + bytes(message("GroupMetadataKey")(group=group_id).encode(0, header=False))
    assert records.group_key(group_id) == schema
    assert records.decode_key(schema) == records.GroupKey(group_id)


@given(int64, int32, text, int64, st.sampled_from([0, 1, 2, 3, 4]), st.one_of(st.just(ZERO_UUID), st.uuids()))
def test_values(offset: int, leader_epoch: int, metadata: str, committed_ms: int, version: int, topic_id: UUID) -> None:
    fields: dict[str, Any] = {"offset": offset, "metadata": metadata, "commit_timestamp": committed_ms}
    if version >= 3:
        fields["leader_epoch"] = leader_epoch
    if version >= 4 and topic_id != ZERO_UUID:
        fields["topic_id"] = topic_id
    schema = bytes(message("OffsetCommitValue")(**fields).encode(version))
    committed = CommittedOffset(
        offset,
        leader_epoch if version >= 3 else -1,
        metadata,
        committed_ms,
        topic_id=fields.get("topic_id", ZERO_UUID),
    )
    assert records.decode_offset(schema) == committed
    if version == 4:
        assert records.offset_value(committed) == schema


optional = st.none() | text
members = st.builds(
    Member,
    text,
    optional,
    text,
    text,
    int32,
    int32,
    st.tuples(st.builds(Protocol, st.just("p"), st.binary())),
    st.binary(),
)


@given(
    text,
    int32,
    st.none() | st.just("p"),
    optional,
    int64,
    st.lists(members, max_size=3, unique_by=lambda m: m.member_id),
)
def test_groups(
    kind: str, generation: int, protocol: str | None, leader: str | None, stored_ms: int, of_group: list[Member]
) -> None:
    group = Group("g", GroupState.STABLE, state_timestamp_ms=stored_ms, generation=generation, protocol_name=protocol)
    group.protocol_type = kind
    for member in of_group:
        group.add(member)
    group.leader_id = leader
    given_out = {member.member_id: member.assignment + b"!" for member in of_group[1:]}
    for assignments in (None, given_out):
        schema = message("GroupMetadataValue")
        value = schema(
            protocol_type=kind,
            generation=generation,
            protocol=protocol,
            leader=leader,
            current_state_timestamp=stored_ms,
            members=[
                schema.MemberMetadata(
                    member_id=m.member_id,
                    group_instance_id=m.group_instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    rebalance_timeout=m.rebalance_timeout_ms,
                    session_timeout=m.session_timeout_ms,
                    subscription=m.protocols[0].metadata if protocol else b"",
                    assignment=m.assignment if assignments is None else assignments.get(m.member_id, b""),
                )
                for m in of_group
            ],
        )
        assert records.group_value(group, assignments) == bytes(value.encode(3))


def test_fields_of_later_releases_are_passed_over() -> None:
    topic_id = UUID(int=5)
    value = records.offset_value(CommittedOffset(1, 2, "m", 3, topic_id=topic_id))
    end = value.index(records.TOPIC_ID_TAG)
    more = b"\x02" + value[end + 1 :] + b"\x07\x03abc"
    assert records.decode_offset(value[:end] + more) == CommittedOffset(1, 2, "m", 3, topic_id=topic_id)


@pytest.mark.parametrize("topic_id", [ZERO_UUID, UUID(int=5)])
@pytest.mark.parametrize("cut", range(1, 12))
def test_what_ends_too_early_is_refused(cut: int, topic_id: UUID) -> None:
    key = records.offset_key("group", TopicPartition("topic", 1))
    value = records.offset_value(CommittedOffset(1, 2, "m", 3, topic_id=topic_id))
    with pytest.raises((ValueError, struct.error)):
        records.decode_key(key[:-cut])
    with pytest.raises((ValueError, IndexError, struct.error)):
        records.decode_offset(value[:-cut])


SOME_TOPICS: Partitions = {UUID(int=1): frozenset((3, 1, 2)), UUID(int=2**128 - 1): frozenset((2**31 - 1,))}
MANY_TOPICS: Partitions = {UUID(int=number): frozenset(range(number)) for number in range(1, 200)}


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize(
    ("assigned", "revoking"), [({}, {}), (SOME_TOPICS, {}), ({}, SOME_TOPICS), (MANY_TOPICS, SOME_TOPICS)]
)
def test_partitions_of_consumer_group_members(assigned: Partitions, revoking: Partitions, state: MemberState) -> None:
    epoch, previous = 2**31 - 1, -1

    def rows(kind: Any, partitions: Partitions) -> list[Any]:
        return [kind(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in partitions.items()]

    value = message("ConsumerGroupTargetAssignmentMemberValue")
    target = TargetChange("m", assigned)
    key, data = consumer_records.encode("g", target)
    assert data == bytes(value(topic_partitions=rows(value.TopicPartition, assigned)).encode(0))
    assert consumer_records.decode(7, key, data) == ("g", target)

    value = message("ConsumerGroupCurrentMemberAssignmentValue")
    current = CurrentChange("m", Current(epoch, previous, state, assigned, revoking))
    key, data = consumer_records.encode("g", current)
    schema = value(
        member_epoch=epoch,
        previous_member_epoch=previous,
        state=state,
        assigned_partitions=rows(value.TopicPartitions, assigned),
        partitions_pending_revocation=rows(value.PendingPartitions, revoking),
    )
    assert data == bytes(schema.encode(0))
    assert consumer_records.decode(8, key, data) == ("g", current)
