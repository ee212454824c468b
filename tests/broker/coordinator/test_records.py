"""What is written and read by hand is what Kafka's schemas say."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.coordinator import records
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
