"""Fetch by hand says byte for byte what the generic codec says, in every version."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.generic import FetchTopics, Forgotten, fetch_request

from ballast_wire.fast.fetch import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_ENDPOINTS,
    FIRST_WITH_LEADER_EPOCH,
    FIRST_WITH_RACK,
    FIRST_WITH_REPLICA_STATE,
    FIRST_WITH_SESSION,
    FIRST_WITH_START_OFFSET,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    EpochEnd,
    FetchAnswer,
    FetchPartition,
    encode_fetch_response,
    parse_fetch,
)
from ballast_wire.fast.produce import NodeEndpoint
from ballast_wire.fast.reader import MOST_ENTRIES, MalformedRequest
from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.headers import skip_header_tags
from ballast_wire.messages import message

Response = message("FetchResponse")
VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FIRST_WITH_DIRECTORY = 17
FIRST_WITH_HIGH_WATERMARK = 18
NO_HIGH_WATERMARK = 2**63 - 1

ASKED = st.builds(
    FetchPartition, INT32, INT32, INT64, INT32, INT64, INT32, directory_id=st.uuids(), high_watermark=INT64
)
TOPICS = st.lists(st.tuples(st.text(max_size=150), st.uuids(), st.lists(ASKED, max_size=3)), max_size=3)
FORGOTTEN = st.lists(st.tuples(st.text(max_size=9), st.uuids(), st.lists(INT32, max_size=3)), max_size=2)


def as_told_in(version: int, p: FetchPartition) -> FetchPartition:
    """What of it this version can say."""
    return p._replace(
        current_leader_epoch=p.current_leader_epoch if version >= FIRST_WITH_LEADER_EPOCH else -1,
        last_fetched_epoch=p.last_fetched_epoch if version >= FIRST_FLEXIBLE else -1,
        log_start_offset=p.log_start_offset if version >= FIRST_WITH_START_OFFSET else -1,
        directory_id=p.directory_id if version >= FIRST_WITH_DIRECTORY and p.directory_id else None,
        high_watermark=p.high_watermark if version >= FIRST_WITH_HIGH_WATERMARK else NO_HIGH_WATERMARK,
    )


@pytest.mark.spec("CLI-10")
@given(VERSIONS, st.tuples(INT32, INT64), st.tuples(INT32, INT32), TOPICS, FORGOTTEN)
def test_requests_are_read_as_the_generic_codec_wrote_them(
    version: int, replica: tuple[int, int], session: tuple[int, int], topics: FetchTopics, gone: Forgotten
) -> None:
    with_session, with_id = version >= FIRST_WITH_SESSION, version >= FIRST_WITH_TOPIC_ID
    gone = gone if with_session else []
    frame = b"before" + fetch_request(version, topics, replica=replica, session=session, gone=gone, rack="rack")
    parsed = parse_fetch(memoryview(frame), 6, version)
    assert parsed[2:6] == (500, 1, 1 << 20, 1)
    assert (parsed.session_id, parsed.session_epoch) == (session if with_session else (0, -1))
    assert parsed.replica_id == replica[0]
    assert parsed.replica_epoch == (replica[1] if version >= FIRST_WITH_REPLICA_STATE else -1)
    assert parsed.rack == ("rack" if version >= FIRST_WITH_RACK else "")
    assert parsed.topics == [
        (topic_id if with_id else name, [as_told_in(version, p) for p in partitions])
        for name, topic_id, partitions in topics
    ]
    assert parsed.forgotten == [(topic_id if with_id else name, numbers) for name, topic_id, numbers in gone]


@pytest.mark.spec("CLI-08")
@given(VERSIONS, TOPICS, st.data())
def test_a_truncated_request_is_refused(version: int, topics: FetchTopics, data: st.DataObject) -> None:
    body = fetch_request(version, topics, rack="rack")
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedRequest):
        parse_fetch(memoryview(body)[:cut], 0, version)


@pytest.mark.spec("CLI-08")
@given(VERSIONS, st.binary(max_size=200))
def test_noise_is_refused_or_read(version: int, noise: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_fetch(memoryview(noise), 0, version)


@dataclass(frozen=True)
class InFile:
    """Stands where a slice of a file would: the encoder needs to know its size only."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


ANSWERS = st.lists(
    st.builds(
        FetchAnswer,
        INT32,
        st.integers(0, 100),
        INT64,
        INT64,
        INT64,
        aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=2),
        preferred_replica=INT32,
        data=st.none() | st.binary(max_size=200) | st.builds(InFile, st.binary(max_size=200)),
        diverging=st.none() | st.builds(EpochEnd, st.integers(0, 9), st.integers(0, 9)),
        leader=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    ),
    max_size=3,
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, INT32, st.text(max_size=70), INT32, st.none() | st.text(max_size=9)), max_size=3
)


def of_tags(count: int) -> bytes:
    """With no topic; its tags are as small as they may be."""
    head = struct.pack(">iiiibii", -1, 100, 1, 1 << 20, 0, 0, -1) + b"\x01\x01\x01"
    return head + unsigned_varint(count) + bytes(2 * count)


@pytest.mark.spec("CLI-08", "CLI-09")
def test_tags_are_things_that_a_request_names() -> None:
    assert parse_fetch(memoryview(of_tags(1000)), 0, FIRST_FLEXIBLE).topics == []
    with pytest.raises(MalformedRequest, match="more than 200000 things"):
        parse_fetch(memoryview(of_tags(MOST_ENTRIES + 1)), 0, FIRST_FLEXIBLE)
    header = unsigned_varint(MOST_ENTRIES + 1) + bytes(2 * MOST_ENTRIES + 2)
    with pytest.raises(MalformedRequest, match="more than 200000 things"):
        skip_header_tags(memoryview(header), 0)


def content(data: object) -> bytes:
    return data.content if isinstance(data, InFile) else data if isinstance(data, bytes) else b""


def expected_answer(answer: FetchAnswer, version: int) -> tuple[object, ...]:
    flexible = version >= FIRST_FLEXIBLE
    return (
        answer.partition,
        answer.error,
        answer.high_watermark,
        answer.last_stable_offset,
        answer.log_start_offset if version >= FIRST_WITH_START_OFFSET else -1,
        answer.aborted,
        answer.preferred_replica if version >= FIRST_WITH_RACK else -1,
        content(answer.data),
        (answer.diverging or (-1, -1)) if flexible else (-1, -1),
        (answer.leader or (-1, -1)) if flexible else (-1, -1),
    )


def decoded_answer(p: Any) -> tuple[object, ...]:
    diverging, leader = getattr(p, "diverging_epoch", None), getattr(p, "current_leader", None)
    aborted = p.aborted_transactions
    return (
        p.partition_index,
        p.error_code,
        p.high_watermark,
        p.last_stable_offset,
        p.log_start_offset,
        None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted],
        p.preferred_read_replica,
        bytes(p.records or b""),
        (-1, -1) if diverging is None else (diverging.epoch, diverging.end_offset),
        (-1, -1) if leader is None else (leader.leader_id, leader.leader_epoch),
    )


@pytest.mark.spec("CLI-10", "LOG-31")
@given(VERSIONS, INT32, st.lists(st.tuples(st.text(max_size=150), st.uuids(), ANSWERS), max_size=2), ENDPOINTS)
def test_responses_are_read_by_the_generic_codec(
    version: int, correlation_id: int, topics: list[tuple[str, UUID, list[FetchAnswer]]], endpoints: list[NodeEndpoint]
) -> None:
    with_id = version >= FIRST_WITH_TOPIC_ID
    given_topics = [(topic_id if with_id else name, answers) for name, topic_id, answers in topics]
    parts = encode_fetch_response(version, correlation_id, given_topics, error=70, session_id=12, leaders=endpoints)
    frame = b"".join(content(part) for part in parts)
    head = 9 if version >= FIRST_FLEXIBLE else 8
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, correlation_id)
    decoded = Response.decode(frame[head:], version=version)
    if version >= FIRST_WITH_SESSION:
        assert (decoded.error_code, decoded.session_id) == (70, 12)
    found = [(t.topic_id if with_id else t.topic, [decoded_answer(p) for p in t.partitions]) for t in decoded.responses]
    assert found == [(key, [expected_answer(a, version) for a in answers]) for key, answers in given_topics]
    if version >= FIRST_WITH_ENDPOINTS:
        assert [(e.node_id, e.host, e.port, e.rack) for e in decoded.node_endpoints] == endpoints
    assert bytes(decoded.encode(version=version)) == frame[head:]


@pytest.mark.spec("LOG-31")
def test_data_in_files_stays_apart() -> None:
    data = InFile(b"batches")
    parts = encode_fetch_response(12, 1, [("t", [FetchAnswer(0, data=data), FetchAnswer(1, data=InFile(b""))])])
    assert [part for part in parts if isinstance(part, InFile)] == [data]
