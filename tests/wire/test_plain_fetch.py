"""The shortcut for consumers without a session says what the parser and encoder for all shapes say, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.generic import NO_SESSION, FetchTopics, fetch_request

from ballast_wire.fast.fetch import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    FetchAnswer,
    FetchPartition,
    encode_fetch_response,
    parse_fetch,
)
from ballast_wire.fast.plain_fetch import MOST, PlainAnswer, answer_plain_fetch, parse_plain_fetch
from ballast_wire.fast.reader import MalformedRequest

VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=30)


def body(
    version: int, topics: FetchTopics, *, replica: int = -1, session: tuple[int, int] = NO_SESSION, rack: str = ""
) -> bytes:
    """As it lies behind the client's id, so with the header's tags where it has them."""
    request = fetch_request(version, topics, replica=(replica, -1), session=session, rack=rack)
    return (b"\x00" if version >= FIRST_FLEXIBLE else b"") + request


def same(view: memoryview, version: int) -> bool:
    """Whether the shortcut took it; raises where it then says something else."""
    plain = parse_plain_fetch(view, 0, version)
    if plain is None:
        return False
    try:
        full = parse_fetch(view, 1 if version >= FIRST_FLEXIBLE else 0, version)
    except MalformedRequest:
        if version < FIRST_WITH_TOPIC_ID:
            with pytest.raises(UnicodeDecodeError):  # seen later: a name is no text, or a rack that nobody has
                (b"".join(asked[0] for asked in plain.asked) + bytes(view[-40:])).decode()
        return True
    told = [
        (topic.bytes if isinstance(topic, UUID) else topic.encode(), *asked[:6])
        for topic, every in full.topics
        for asked in every
    ]
    assert plain.asked == told
    assert plain[:5] == (full.max_wait_ms, full.min_bytes, full.max_bytes, full.isolation, full.rack)
    assert (full.replica_id, full.session_id, full.session_epoch, full.forgotten) == (-1, 0, -1, [])
    return True


ASKED = st.tuples(INT32, INT32, INT64, INT32, INT64, INT32).map(lambda asked: FetchPartition(*asked))


def topics_of(names: st.SearchStrategy[str], *, at_least: int = 1, at_most: int = 3) -> st.SearchStrategy[FetchTopics]:
    partitions = st.lists(ASKED, min_size=at_least, max_size=3)
    unique = (lambda topic: topic[0], lambda topic: topic[1])
    return st.lists(st.tuples(names, st.uuids(), partitions), min_size=at_least, max_size=at_most, unique_by=unique)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, topics_of(NAMES), st.text(max_size=20))
def test_consumers_without_a_session_are_taken(version: int, topics: FetchTopics, rack: str) -> None:
    assert same(memoryview(body(version, topics, rack=rack)), version)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, st.integers(1, MOST), st.integers(1, 3))
def test_of_as_many_partitions_as_a_byte_counts(version: int, partitions: int, topics: int) -> None:
    asked = [FetchPartition(number, -1, number, -1, -1, 1) for number in range(partitions)]
    names = [(f"topic-{number}", UUID(int=number), asked) for number in range(topics)]
    assert same(memoryview(body(version, names)), version)
    too_many = [*asked, *(FetchPartition(MOST + number, -1, 0, -1, -1, 1) for number in range(MOST))]
    assert not same(memoryview(body(version, [("topic", UUID(int=1), too_many)])), version)


@pytest.mark.spec("CLI-10")
@given(
    VERSIONS,
    topics_of(st.text(max_size=150), at_least=0),
    st.sampled_from([-1, 0, 3]),
    st.sampled_from([(0, -1), (0, 0), (7, 4)]),
)
def test_other_shapes_are_left_alone(version: int, topics: FetchTopics, replica: int, session: tuple[int, int]) -> None:
    if same(memoryview(body(version, topics, replica=replica, session=session)), version):
        assert topics
        assert all(partitions for _, _, partitions in topics)


@pytest.mark.spec("CLI-10")
@given(VERSIONS, topics_of(NAMES))
def test_a_topic_that_is_named_twice_is_left_alone(version: int, topics: FetchTopics) -> None:
    assert not same(memoryview(body(version, [*topics, topics[0]])), version)


@pytest.mark.spec("CLI-08")
@given(VERSIONS, topics_of(NAMES, at_most=2), st.data())
def test_bytes_that_were_changed_mean_the_same_to_both(version: int, topics: FetchTopics, data: st.DataObject) -> None:
    frame = bytearray(body(version, topics, rack="r"))
    for _ in range(data.draw(st.integers(1, 2))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    same(memoryview(frame)[: data.draw(st.integers(0, len(frame)))], version)


@dataclass
class InFile:
    size: int


Found = tuple[int, tuple[int, int, int], int]
FOUND = st.tuples(INT32, st.tuples(INT64, INT64, INT64), st.integers(-1, 2**27))  # nine of them fit into one answer
UNIQUE_TOPICS = st.lists(
    st.tuples(st.text(max_size=150), st.uuids(), st.lists(FOUND, min_size=1, max_size=3)),
    min_size=1, max_size=3, unique_by=(lambda topic: topic[0], lambda topic: topic[1]),
)  # fmt: skip


@pytest.mark.spec("CLI-10")
@given(VERSIONS, INT32, st.booleans(), UNIQUE_TOPICS)
def test_the_answer_is_the_encoders_answer(
    version: int, correlation: int, committed: bool, topics: list[tuple[str, UUID, list[Found]]]
) -> None:
    found, expected = [], []
    for name, topic_id, partitions in topics:
        topic = topic_id if version >= FIRST_WITH_TOPIC_ID else name
        answers = []
        for partition, offsets, size in partitions:
            data = InFile(size) if size >= 0 else None
            aborted: list[tuple[int, int]] | None = [] if committed else None
            answers.append(FetchAnswer(partition, 0, *offsets, aborted, -1, data))
            found.append((PlainAnswer(version, topic, partition), offsets, data))
        expected.append((topic, answers))
    parts = answer_plain_fetch(version, correlation, committed, found)
    whole = encode_fetch_response(version, correlation, expected)
    assert [part for part in parts if part != b""] == [part for part in whole if part != b""]
