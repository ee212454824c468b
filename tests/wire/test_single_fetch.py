"""The shortcut for one partition without a session says what the parser and encoder for all shapes say, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_wire.fast.fetch import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    FetchAnswer,
    encode_fetch_response,
    parse_fetch,
)
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.fast.single_fetch import SingleFetchAnswer, parse_single_fetch
from ballast_wire.messages import message

Request = message("FetchRequest")
VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=30)
NO_HIGH_WATERMARK = 2**63 - 1


def body(version: int, topics: list, *, replica: int = -1, session: tuple[int, int] = (0, -1), rack: str = "") -> bytes:
    """As it lies behind the client's id. A topic: name, id, [(partition, epoch, offset, last epoch, start, most)]."""
    partition_of = Request.FetchTopic.FetchPartition
    request = Request(
        version=version,
        replica_id=replica,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            Request.FetchTopic(
                version=version,
                topic=name,
                topic_id=topic_id,
                partitions=[
                    partition_of(
                        version=version,
                        partition=p,
                        current_leader_epoch=epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=last,
                        log_start_offset=start,
                        partition_max_bytes=most,
                        high_watermark=NO_HIGH_WATERMARK,
                    )
                    for p, epoch, offset, last, start, most in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        forgotten_topics_data=[],
        rack_id=rack,
        **({"replica_state": Request.ReplicaState(replica_id=replica, replica_epoch=-1)} if replica >= 0 else {}),
    )
    return (b"\x00" if version >= FIRST_FLEXIBLE else b"") + bytes(request.encode(version=version))


def same(view: memoryview, version: int) -> bool:
    """Whether the shortcut took it; raises where it then says something else."""
    single = parse_single_fetch(view, 0, version)
    if single is None:
        return False
    try:
        full = parse_fetch(view, 1 if version >= FIRST_FLEXIBLE else 0, version)
    except MalformedRequest:
        if version < FIRST_WITH_TOPIC_ID:
            with pytest.raises(UnicodeDecodeError):  # seen later: the name is no text, or a rack that nobody has
                (single.topic + bytes(view[-40:])).decode()
        return True
    ((topic, (asked,)),) = full.topics
    assert single.topic == (topic.bytes if isinstance(topic, UUID) else topic.encode())
    assert single[1:5] == (full.max_wait_ms, full.min_bytes, full.max_bytes, full.isolation)
    assert single[5:] == (*asked[:6], full.rack)
    assert (full.replica_id, full.session_id, full.session_epoch, full.forgotten) == (-1, 0, -1, [])
    return True


ASKED = st.tuples(INT32, INT32, INT64, INT32, INT64, INT32)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, NAMES, st.uuids(), ASKED, st.text(max_size=20))
def test_one_partition_is_taken(version: int, name: str, topic_id: UUID, asked: tuple, rack: str) -> None:
    assert same(memoryview(body(version, [(name, topic_id, [asked])], rack=rack)), version)


@pytest.mark.spec("CLI-10")
@given(
    VERSIONS,
    st.lists(st.tuples(st.text(max_size=150), st.uuids(), st.lists(ASKED, max_size=2)), max_size=2),
    st.sampled_from([-1, 0, 3]),
    st.sampled_from([(0, -1), (0, 0), (7, 4)]),
)
def test_other_shapes_are_left_alone(version: int, topics: list, replica: int, session: tuple[int, int]) -> None:
    if same(memoryview(body(version, topics, replica=replica, session=session)), version):
        assert [len(partitions) for _, _, partitions in topics] == [1]


@pytest.mark.spec("CLI-08")
@given(VERSIONS, ASKED, st.data())
def test_bytes_that_were_changed_mean_the_same_to_both(version: int, asked: tuple, data: st.DataObject) -> None:
    frame = bytearray(body(version, [("topic", UUID(int=7), [asked])], rack="r"))
    for _ in range(data.draw(st.integers(1, 2))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    same(memoryview(frame)[: data.draw(st.integers(0, len(frame)))], version)


@dataclass
class InFile:
    size: int


@pytest.mark.spec("CLI-10")
@given(
    VERSIONS, INT32, st.text(max_size=150), st.uuids(), INT32, st.tuples(INT64, INT64, INT64), st.integers(-1, 2**30)
)
def test_the_answer_is_the_encoders_answer(
    version: int, correlation: int, name: str, topic_id: UUID, partition: int, offsets: tuple, size: int
) -> None:
    topic = topic_id if version >= FIRST_WITH_TOPIC_ID else name
    data = InFile(size) if size >= 0 else None
    answer = FetchAnswer(partition, 0, *offsets, data=data)
    expected = encode_fetch_response(version, correlation, [(topic, [answer])])
    parts = SingleFetchAnswer(version, topic, partition).parts(correlation, offsets, data)
    assert [part for part in parts if part != b""] == [part for part in expected if part != b""]
