"""The shortcut for one batch of one partition says what the parser and the encoder for all shapes say, or nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.generic import ProduceTopics, produce_request

from ballast_wire.fast.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    ProduceAnswer,
    encode_produce_response,
    parse_produce,
)
from ballast_wire.fast.single_produce import FIRST_VERSION, SingleAnswer, parse_single_produce

VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=30)
BEFORE = b"before"


def body(version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: ProduceTopics) -> bytes:
    """As it lies behind the client's id, so with the header's tags where it has them."""
    return (b"\x00" if version >= FIRST_FLEXIBLE else b"") + produce_request(
        version, transactional_id, acks, timeout_ms, topics
    )


@pytest.mark.spec("CLI-10")
@given(VERSIONS, st.integers(-1, 1), INT32, NAMES, st.uuids(), INT32, st.integers(1, 70_000))
def test_one_batch_of_one_partition_is_taken(
    version: int, acks: int, timeout_ms: int, name: str, topic_id: UUID, partition: int, size: int
) -> None:
    records = (b"0123456789" * (size // 10 + 1))[:size]
    frame = BEFORE + body(version, None, acks, timeout_ms, [(name, topic_id, [(partition, records)])])
    single = parse_single_produce(memoryview(frame), len(BEFORE), version)
    assert single is not None
    topic = topic_id.bytes if version >= FIRST_WITH_TOPIC_ID else name.encode()
    assert (*single[:4], bytes(single[4])) == (topic, acks, timeout_ms, partition, records)


@pytest.mark.spec("CLI-08", "CLI-10")
@pytest.mark.parametrize("version", [LAST_VERSION + 1, 99, 32_767])
def test_a_version_that_nobody_knows_is_not_taken(version: int) -> None:
    frame = body(LAST_VERSION, None, 1, 1000, [("", UUID(int=7), [(3, b"records")])])
    assert parse_single_produce(memoryview(frame), 0, LAST_VERSION) is not None
    assert parse_single_produce(memoryview(frame), 0, version) is None


PARTITIONS = st.lists(st.tuples(INT32, st.none() | st.binary(max_size=300)), max_size=2)
TOPICS = st.lists(st.tuples(st.text(max_size=150), st.uuids(), PARTITIONS), max_size=2)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, st.none() | st.text(max_size=5), TOPICS)
def test_other_shapes_are_left_alone(version: int, transactional_id: str | None, topics: ProduceTopics) -> None:
    frame = BEFORE + body(version, transactional_id, 1, 1000, topics)
    single = parse_single_produce(memoryview(frame), len(BEFORE), version)
    if single is not None:
        assert transactional_id is None
        assert [len(partitions) for _, _, partitions in topics] == [1]
        assert bytes(single[4]) == topics[0][2][0][1]


@pytest.mark.spec("CLI-08")
@given(VERSIONS, st.binary(max_size=120), st.data())
def test_bytes_that_were_changed_mean_the_same_to_both(version: int, records: bytes, data: st.DataObject) -> None:
    frame = bytearray(body(version, None, 1, 1000, [("topic", UUID(int=7), [(3, records)])]))
    for _ in range(data.draw(st.integers(1, 2))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    view = memoryview(frame)[: data.draw(st.integers(0, len(frame)))]
    single = parse_single_produce(view, 0, version)
    if single is None:
        return
    full = parse_produce(view, 1 if version >= FIRST_FLEXIBLE else 0, version)
    ((topic, ((partition, batches),)),) = full.topics
    raw, *rest = single
    # Bytes that are no UTF-8 lie there as they came, and mean other letters to both.
    assert (UUID(bytes=raw) if version >= FIRST_WITH_TOPIC_ID else raw.decode(errors="replace")) == topic
    assert rest == [full.acks, full.timeout_ms, partition, batches]


@pytest.mark.spec("CLI-10")
@given(VERSIONS, INT32, st.text(max_size=150), st.uuids(), INT32, INT64, INT64, INT64)
def test_the_answer_is_the_encoders_answer(
    version: int, correlation: int, name: str, topic_id: UUID, partition: int, first: int, time: int, start: int
) -> None:
    topic = topic_id if version >= FIRST_WITH_TOPIC_ID else name
    answer = ProduceAnswer(partition, 0, first, time, start)
    expected = encode_produce_response(version, correlation, [(topic, [answer])])
    assert SingleAnswer(version, topic, partition).frame(correlation, first, time, start) == expected
