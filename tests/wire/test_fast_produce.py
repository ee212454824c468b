"""Produce by hand says byte for byte what the generic codec says, in every version."""

from __future__ import annotations

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.generic import ProduceTopics, produce_request

from ballast_wire.errors import ErrorCode
from ballast_wire.fast.produce import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_ERROR_MESSAGES,
    FIRST_WITH_LEADER,
    FIRST_WITH_START_OFFSET,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    NodeEndpoint,
    ProduceAnswer,
    encode_produce_response,
    parse_produce,
)
from ballast_wire.fast.reader import MOST_TEXT_BYTES, MalformedRequest
from ballast_wire.messages import message

Response = message("ProduceResponse")
VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.lists(st.tuples(INT32, st.none() | st.binary(max_size=300)), max_size=3)
TOPICS = st.lists(st.tuples(st.text(max_size=150), st.uuids(), PARTITIONS), max_size=3)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, st.none() | st.text(max_size=20), st.integers(-1, 1), INT32, TOPICS)
def test_requests_are_read_as_the_generic_codec_wrote_them(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: ProduceTopics
) -> None:
    frame = b"before" + produce_request(version, transactional_id, acks, timeout_ms, topics)
    parsed = parse_produce(memoryview(frame), 6, version)
    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == (transactional_id, acks, timeout_ms)
    found = [
        (t.topic, [(p.partition, None if p.batches is None else bytes(p.batches)) for p in t.partitions])
        for t in parsed.topics
    ]
    assert found == [
        (topic_id if version >= FIRST_WITH_TOPIC_ID else name, partitions) for name, topic_id, partitions in topics
    ]


@pytest.mark.spec("LOG-03")
def test_batches_stay_where_they_are_in_the_buffer() -> None:
    frame = bytearray(produce_request(9, None, 1, 1000, [("t", UUID(int=1), [(0, b"batch")])]))
    (topic,) = parse_produce(memoryview(frame), 0, 9).topics
    batches = topic.partitions[0].batches
    assert batches is not None
    assert batches.obj is frame
    batches[0] = ord("B")
    assert b"Batch" in frame


@pytest.mark.spec("CLI-08")
@given(VERSIONS, TOPICS, st.data())
def test_a_truncated_request_is_refused(version: int, topics: ProduceTopics, data: st.DataObject) -> None:
    body = produce_request(version, None, 1, 1000, topics)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedRequest):
        parse_produce(memoryview(body)[:cut], 0, version)


@pytest.mark.spec("CLI-08")
@given(VERSIONS, st.binary(max_size=200))
def test_noise_is_refused_or_read(version: int, noise: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_produce(memoryview(noise), 0, version)


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize("version", [3, 9])
def test_a_count_of_two_billion_costs_no_memory(version: int) -> None:
    count = b"\xff\xff\xff\xff\x07" if version >= FIRST_FLEXIBLE else struct.pack(">i", 2**31 - 1)
    nothing = b"\x00" if version >= FIRST_FLEXIBLE else b"\xff\xff"
    with pytest.raises(MalformedRequest):
        parse_produce(memoryview(nothing + struct.pack(">hi", 1, 1000) + count), 0, version)


@pytest.mark.spec("CLI-08", "CLI-10")
def test_a_text_is_no_longer_than_all_versions_can_say_it() -> None:
    longest = "t" * MOST_TEXT_BYTES
    body = produce_request(FIRST_FLEXIBLE, None, 1, 1000, [(longest, UUID(int=0), [])])
    assert parse_produce(memoryview(body), 0, FIRST_FLEXIBLE).topics[0].topic == longest
    body = produce_request(FIRST_FLEXIBLE, None, 1, 1000, [(longest + "t", UUID(int=0), [])])
    with pytest.raises(MalformedRequest, match="longer than 32767"):
        parse_produce(memoryview(body), 0, FIRST_FLEXIBLE)


ANSWERS = st.lists(
    st.builds(
        ProduceAnswer,
        partition=INT32,
        error=st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_RECORD]),
        first_offset=INT64,
        log_append_time=INT64,
        log_start_offset=INT64,
        message=st.none() | st.text(max_size=140),
        leader_id=st.integers(-1, 9),
        leader_epoch=st.integers(0, 9),
        record_errors=st.lists(st.tuples(INT32, st.text(max_size=9)), max_size=2),
    ),
    max_size=3,
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, INT32, st.text(max_size=70), INT32, st.none() | st.text(max_size=9)), max_size=3
)


def expected_answer(answer: ProduceAnswer, version: int) -> dict[str, object]:
    tells = version >= FIRST_WITH_LEADER and answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with_messages = version >= FIRST_WITH_ERROR_MESSAGES
    return {
        "index": answer.partition,
        "error_code": answer.error,
        "base_offset": answer.first_offset,
        "log_append_time_ms": answer.log_append_time,
        "log_start_offset": answer.log_start_offset if version >= FIRST_WITH_START_OFFSET else -1,
        "error_message": answer.message if with_messages else None,
        "record_errors": list(answer.record_errors) if with_messages else [],
        "leader": (answer.leader_id, answer.leader_epoch) if tells else (-1, -1),
    }


def decoded_answer(partition: object) -> dict[str, object]:
    found = {
        name: getattr(partition, name)
        for name in ("index", "error_code", "base_offset", "log_append_time_ms", "log_start_offset", "error_message")
    }
    errors = getattr(partition, "record_errors", None) or []
    leader = getattr(partition, "current_leader", None)
    return found | {
        "record_errors": [(e.batch_index, e.batch_index_error_message) for e in errors],
        "leader": (-1, -1) if leader is None else (leader.leader_id, leader.leader_epoch),
    }


@pytest.mark.spec("CLI-10")
@given(VERSIONS, INT32, st.lists(st.tuples(st.text(max_size=150), st.uuids(), ANSWERS), max_size=2), ENDPOINTS)
def test_responses_are_read_by_the_generic_codec(
    version: int,
    correlation_id: int,
    topics: list[tuple[str, UUID, list[ProduceAnswer]]],
    endpoints: list[NodeEndpoint],
) -> None:
    with_id = version >= FIRST_WITH_TOPIC_ID
    given_topics = [(topic_id if with_id else name, answers) for name, topic_id, answers in topics]
    frame = encode_produce_response(version, correlation_id, given_topics, endpoints)
    head = 9 if version >= FIRST_FLEXIBLE else 8
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, correlation_id)
    decoded = Response.decode(frame[head:], version=version)
    found = [
        (t.topic_id if with_id else t.name, [decoded_answer(p) for p in t.partition_responses])
        for t in decoded.responses
    ]
    assert found == [(key, [expected_answer(a, version) for a in answers]) for key, answers in given_topics]
    if version >= FIRST_WITH_LEADER:
        assert [(e.node_id, e.host, e.port, e.rack) for e in decoded.node_endpoints] == endpoints
    # The codec writes the same bytes again: nothing is left over, nothing is said twice.
    assert bytes(decoded.encode(version=version)) == frame[head:]
