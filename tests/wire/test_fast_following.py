"""The follower's fetch by hand against the message engine: the same bytes out, the same answer in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_wire.fast.following import VERSION, AskedPartition, FetchRequest
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.messages import message

INT = st.integers(-1, 2**31 - 1)
LONG = st.integers(-1, 2**63 - 1)
TOPIC_ID = st.uuids().filter(lambda value: value.int != 0)
ASKED = st.builds(AskedPartition, INT, INT, LONG, INT, LONG, INT)
REQUESTS = st.builds(
    FetchRequest, INT, LONG, INT, INT, INT, INT, INT,
    st.lists(st.tuples(TOPIC_ID, st.lists(ASKED, max_size=4)), max_size=3),
    st.lists(st.tuples(TOPIC_ID, st.lists(INT, max_size=200)), max_size=3),
)  # fmt: skip


def as_message(request: FetchRequest) -> Any:
    kind = message("FetchRequest")
    partition = kind.FetchTopic.FetchPartition
    return kind(
        replica_state=kind.ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            kind.FetchTopic(
                topic_id=topic_id,
                partitions=[
                    partition(
                        partition=each.partition,
                        current_leader_epoch=each.current_leader_epoch,
                        fetch_offset=each.fetch_offset,
                        last_fetched_epoch=each.last_fetched_epoch,
                        log_start_offset=each.log_start_offset,
                        partition_max_bytes=each.max_bytes,
                    )
                    for each in partitions
                ],
            )
            for topic_id, partitions in request.topics
        ],
        forgotten_topics_data=[
            kind.ForgottenTopic(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in request.forgotten
        ],
    )


@pytest.mark.spec("REP-02", "REP-03")
@given(REQUESTS)
def test_the_request_says_what_the_engine_reads(request: FetchRequest) -> None:
    decoded = message("FetchRequest").decode(request.encode(), version=VERSION)
    assert (
        decoded.to_dict()
        == message("FetchRequest").decode(as_message(request).encode(VERSION), version=VERSION).to_dict()
    )
    assert decoded.replica_state.replica_epoch == request.replica_epoch
    assert [topic.topic_id for topic in decoded.topics] == [topic_id for topic_id, _ in request.topics]


@given(TOPIC_ID, LONG, LONG, st.binary(max_size=300), st.none() | st.tuples(INT, LONG), st.integers(0, 3))
def test_the_answer_is_read_as_the_engine_wrote_it(
    topic_id: UUID, high_watermark: int, start: int, records: bytes, diverging: tuple[int, int] | None, aborted: int
) -> None:
    kind = message("FetchResponse")
    topic_kind = kind.FetchableTopicResponse
    data = topic_kind.PartitionData(
        partition_index=3,
        error_code=1,
        high_watermark=high_watermark,
        log_start_offset=start,
        records=records,
        aborted_transactions=[
            topic_kind.PartitionData.AbortedTransaction(producer_id=number, first_offset=5) for number in range(aborted)
        ],
    )
    if diverging is not None:
        data.diverging_epoch = topic_kind.PartitionData.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    response = kind(session_id=9, error_code=2, responses=[topic_kind(topic_id=topic_id, partitions=[data])])
    found = FetchRequest.decode_response(memoryview(response.encode(VERSION)))
    assert (found.error_code, found.session_id, found.responses[0].topic_id) == (2, 9, topic_id)
    [partition] = found.responses[0].partitions
    assert partition[:4] == (3, 1, high_watermark, start)
    assert bytes(partition.records or b"") == records
    assert partition.diverging_epoch == diverging


def test_an_answer_that_ends_too_early_is_refused() -> None:
    kind = message("FetchResponse")
    response = kind(session_id=9, error_code=0, responses=[kind.FetchableTopicResponse(topic_id=UUID(int=7))])
    body = response.encode(VERSION)
    with pytest.raises(MalformedRequest):
        FetchRequest.decode_response(memoryview(body)[:-3])
    with pytest.raises(ValueError, match="version"):
        FetchRequest(1, 1, 1, 1, 1, 1, 1, [], []).encode(12)
