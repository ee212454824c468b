"""Fetch as a connection sends it: sessions (KIP-227), topic ids, waits. The test decides what replicas return."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.broker.api.asking import Peer

from ballast_broker.api.authorizer import ALLOWS_EVERYTHING
from ballast_broker.api.fetch import Fetch
from ballast_broker.api.fetch_sessions import EVICTION_S, FetchSessions
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.metrics.traffic import Traffic
from ballast_broker.net_reply import Pending
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult
from ballast_broker.replication.watching import Watch
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

Request, Response = message("FetchRequest"), message("FetchResponse")
BY_NAME, BY_ID = 12, 13
TOPIC_ID = UUID(int=42)
FIRST, FINAL = 0, -1
pytestmark = pytest.mark.interpreted  # by `Stage`


class Dice:
    """Randomness that counts up, for session ids."""

    def __init__(self) -> None:
        self.rolled = 0

    def randrange(self, stop: int) -> int:
        assert stop > self.rolled
        self.rolled += 1
        return self.rolled

    def random(self) -> float:
        raise NotImplementedError

    def bytes_of(self, count: int) -> bytes:
        raise NotImplementedError(count)


@dataclass
class Data:
    """Replaces a slice of a log."""

    content: bytes
    released: int = 0
    position: int = 0

    @property
    def size(self) -> int:
        return len(self.content)

    def release(self) -> None:
        self.released += 1


@dataclass
class Stage:
    """One broker with some partitions; `now` is its clock."""

    slots: int = 2
    now: float = 0.0
    logs: dict[TopicPartition, bytes] = field(default_factory=dict)
    names: dict[UUID, str] = field(default_factory=lambda: {TOPIC_ID: "t"})
    parked: asyncio.Future[list[FetchResult]] | None = None
    asked: list[TopicPartition] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    given: list[Data] = field(default_factory=list)

    def __post_init__(self) -> None:
        broker: Any = SimpleNamespace(
            image=lambda: SimpleNamespace(topics=self),
            config=SimpleNamespace(fetch_max_bytes=1 << 20),
            replicas=self,
            traffic=Traffic(),
            authorizer=ALLOWS_EVERYTHING,
        )
        sessions = FetchSessions(self.slots, Dice(), lambda: self.now)
        self.metrics = RequestMetrics()
        self.handler = Fetch(broker, sessions, self.metrics)

    def by_id(self, topic_id: UUID) -> Any:
        name = self.names.get(topic_id)
        return None if name is None else SimpleNamespace(name=name, id=topic_id)

    def by_name(self, name: str) -> Any:
        partitions = {each.partition for each in self.logs if each.topic == name}
        return SimpleNamespace(partitions=partitions) if partitions else None

    def partition(self, topic_partition: TopicPartition) -> object | None:
        return self.logs.get(topic_partition)

    def fetch(self, params: FetchParams, entries: list[FetchEntry]) -> list[FetchResult] | asyncio.Future[Any]:
        self.asked = [entry.topic_partition for entry in entries]
        self.waits.append(params.max_wait_ms)
        return self.parked if self.parked is not None else [self.read(entry) for entry in entries]

    def fetch_watched(self, params: FetchParams, watch: Watch) -> list[FetchResult] | asyncio.Future[Any]:
        return self.fetch(params, list(watch.due))

    def read(self, entry: FetchEntry) -> FetchResult:
        content = self.logs.get(entry.topic_partition)
        if content is None:
            return FetchResult(entry.topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, entry=entry)
        data: Any = Data(content[entry.fetch_offset :])
        self.given.append(data)
        end = len(content)
        return FetchResult(entry.topic_partition, ErrorCode.NONE, end, end, 0, data, entry=entry)

    def ask(self, *partitions: tuple[int, int], version: int = BY_NAME, **fields: Any) -> Any:
        """The reply; partitions as (number, offset) of the topic `t`."""
        asked = [Request.FetchTopic.FetchPartition(partition=p, fetch_offset=o) for p, o in partitions]
        topics = [Request.FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=asked)] if asked else []
        whole = {"max_wait_ms": 500, "session_epoch": FINAL, "topics": topics} | fields
        tags_of_the_header = b"\0" if Request.flexible_version_q(version) else b""
        body = memoryview(tags_of_the_header + bytes(Request(version=version, **whole).encode(version=version)))
        return self.handler.handle(body, 0, version, 7, Peer())

    def answer(self, *partitions: tuple[int, int], version: int = BY_NAME, **fields: Any) -> Any:
        return decoded(self.ask(*partitions, version=version, **fields), version)


def decoded(parts: Any, version: int = BY_NAME) -> Any:
    frame = b"".join(part if isinstance(part, bytes) else part.content for part in parts)
    return Response.decode(frame[9:], version=version)


def told(answer: Any) -> dict[int, tuple[int, bytes]]:
    """(error, data) by partition."""
    return {p.partition_index: (p.error_code, bytes(p.records or b"")) for t in answer.responses for p in t.partitions}


def stage(**contents: bytes) -> Stage:
    return Stage(logs={TopicPartition("t", int(name[1:])): content for name, content in contents.items()})


def test_without_a_session_everything_is_told() -> None:
    scene = stage(p0=b"abc", p1=b"")
    answer = scene.answer((0, 1), (1, 0), (2, 0))
    assert told(answer) == {0: (0, b"bc"), 1: (0, b""), 2: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")}
    assert answer.session_id == 0
    assert scene.metrics.errors == {("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 1}


def test_a_session_tells_what_is_new() -> None:
    scene = stage(p0=b"abc", p1=b"xyz")
    first = scene.answer((0, 3), (1, 3), session_epoch=FIRST)
    assert told(first) == {0: (0, b""), 1: (0, b"")}
    assert first.session_id == 2  # one is added: 0 means none
    assert told(scene.answer(session_id=2, session_epoch=1)) == {}
    scene.logs[TopicPartition("t", 1)] = b"xyz!"
    assert told(scene.answer(session_id=2, session_epoch=2)) == {1: (0, b"!")}
    # The client asks for what comes next; the rest stays as it was.
    assert told(scene.answer((1, 4), session_id=2, session_epoch=3)) == {}
    assert set(scene.asked) == {TopicPartition("t", 0), TopicPartition("t", 1)}


def test_what_is_not_told_is_let_go() -> None:
    scene = stage(p0=b"abc")
    scene.answer((0, 3), session_epoch=FIRST)
    scene.answer(session_id=2, session_epoch=1)
    assert scene.given[-1].released == 1


def test_errors_are_told_until_they_are_over() -> None:
    scene = stage(p0=b"abc")
    scene.answer((0, 3), (1, 0), session_epoch=FIRST)
    unknown = {1: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")}
    assert told(scene.answer(session_id=2, session_epoch=1)) == unknown
    scene.logs[TopicPartition("t", 1)] = b""
    assert told(scene.answer(session_id=2, session_epoch=2)) == {1: (0, b"")}
    assert told(scene.answer(session_id=2, session_epoch=3)) == {}


def test_partitions_are_forgotten() -> None:
    scene = stage(p0=b"abc", p1=b"xyz")
    scene.answer((0, 0), (1, 0), session_epoch=FIRST)
    gone = [Request.ForgottenTopic(topic="t", topic_id=TOPIC_ID, partitions=[0])]
    assert told(scene.answer(session_id=2, session_epoch=1, forgotten_topics_data=gone)) == {1: (0, b"xyz")}
    assert scene.asked == [TopicPartition("t", 1)]


def test_who_got_data_is_last_next_time() -> None:
    scene = stage(p0=b"abc", p1=b"", p2=b"xyz")
    scene.answer((0, 0), (1, 0), (2, 0), session_epoch=FIRST)
    scene.answer(session_id=2, session_epoch=1)
    assert [p.partition for p in scene.asked] == [1, 0, 2]


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "error"),
    [
        (99, 1, BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (2, 5, BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (2, 1, BY_ID, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_a_session_that_does_not_fit_is_refused(session_id: int, epoch: int, version: int, error: ErrorCode) -> None:
    scene = stage(p0=b"abc")
    scene.answer((0, 0), session_epoch=FIRST)
    answer = scene.answer(version=version, session_id=session_id, session_epoch=epoch)
    assert (answer.error_code, answer.responses) == (error, [])


@pytest.mark.spec("REP-03", "CLI-10")
def test_a_session_may_begin_with_nothing() -> None:
    scene = stage(p0=b"abc")
    assert (scene.answer(session_epoch=FIRST).session_id, scene.waits) == (2, [0])
    assert told(scene.answer((0, 0), session_id=2, session_epoch=1)) == {0: (0, b"abc")}
    scene.answer(session_epoch=FIRST)
    assert scene.answer(session_id=3, session_epoch=1).session_id == 0  # as one that follows nothing any more


def test_a_session_is_ended_by_its_client() -> None:
    scene = stage(p0=b"abc")
    scene.answer((0, 0), session_epoch=FIRST)
    assert scene.answer((0, 0), session_id=2, session_epoch=FINAL).session_id == 0
    ended = scene.answer(session_id=2, session_epoch=1)
    assert ended.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_sessions_are_bounded_and_idle_ones_give_way() -> None:
    scene = stage(p0=b"abc")
    assert [scene.answer((0, 0), session_epoch=FIRST).session_id for _ in range(3)] == [2, 3, 0]
    scene.now = EVICTION_S + 1
    scene.answer(session_id=3, session_epoch=1)
    assert scene.answer((0, 0), session_epoch=FIRST).session_id == 4
    assert scene.answer(session_id=2, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert scene.answer(session_id=3, session_epoch=2).error_code == ErrorCode.NONE


def test_topics_by_id() -> None:
    scene = stage(p0=b"abc")
    answer = scene.answer((0, 0), version=BY_ID)
    assert told(answer) == {0: (0, b"abc")}
    assert answer.responses[0].topic_id == TOPIC_ID


def test_an_unknown_id_is_told_at_once_and_found_later() -> None:
    scene = stage(p0=b"abc")
    scene.names.clear()
    first = scene.answer((0, 0), version=BY_ID, session_epoch=FIRST)
    assert told(first) == {0: (ErrorCode.UNKNOWN_TOPIC_ID, b"")}
    assert scene.waits == [0]
    scene.names[TOPIC_ID] = "t"
    assert told(scene.answer(version=BY_ID, session_id=2, session_epoch=1)) == {0: (0, b"abc")}


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("epoch", [FIRST, FINAL])
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_of_a_partition_that_is_named_twice_the_last_counts(version: int, epoch: int) -> None:
    scene = stage(p0=b"abc", p1=b"xyz")
    for _ in range(2):
        answer = scene.answer((0, 0), (1, 1), (0, 2), version=version, session_epoch=epoch)
        found = [(each.partition_index, bytes(each.records)) for each in answer.responses[0].partitions]
        assert found == [(0, b"c"), (1, b"yz")]


@pytest.mark.parametrize("epoch", [FIRST, FINAL])
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_what_can_be_read_is_waited_for_beside_what_is_not_there(version: int, epoch: int) -> None:
    """A consumer that gets a response at once would fetch again at once, without end."""
    scene = stage(p0=b"abc")
    where = [Request.FetchTopic.FetchPartition(partition=0, fetch_offset=3)]
    names = {"t": TOPIC_ID, "u": UUID(int=43)}
    topics = [Request.FetchTopic(topic=name, topic_id=names[name], partitions=where) for name in names]
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == BY_NAME else ErrorCode.UNKNOWN_TOPIC_ID

    def errors(answer: Any) -> list[int]:
        return [each.error_code for topic in answer.responses for each in topic.partitions]

    assert errors(scene.answer(version=version, topics=topics, session_epoch=epoch)) == [ErrorCode.NONE, error]
    if epoch == FIRST:
        assert errors(scene.answer(version=version, session_id=2, session_epoch=1)) == [error]
    assert set(scene.waits) == {500}
    assert scene.asked == [TopicPartition("t", 0)]


def test_of_several_topics_each_is_told_its_own() -> None:
    """Also a topic that was deleted since the first request, and one that was re-created under its name."""
    scene = stage(p0=b"abc", p1=b"xyz")
    other = UUID(int=43)
    scene.names[other] = "u"
    scene.logs[TopicPartition("u", 0)] = b"other"
    topics = [
        Request.FetchTopic(
            topic_id=topic_id, partitions=[Request.FetchTopic.FetchPartition(partition=p) for p in every]
        )
        for topic_id, every in ((TOPIC_ID, (0, 1)), (other, (0,)))
    ]

    def ask() -> dict[tuple[UUID, int], tuple[int, bytes]]:
        answer = scene.answer(version=BY_ID, topics=topics)
        return {
            (t.topic_id, p.partition_index): (p.error_code, bytes(p.records or b""))
            for t in answer.responses
            for p in t.partitions
        }

    every = {(TOPIC_ID, 0): (0, b"abc"), (TOPIC_ID, 1): (0, b"xyz"), (other, 0): (0, b"other")}
    assert ask() == every
    del scene.logs[TopicPartition("t", 0)]
    assert ask() == every | {(TOPIC_ID, 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")}
    del scene.names[TOPIC_ID], scene.logs[TopicPartition("t", 1)]
    unknown = (ErrorCode.UNKNOWN_TOPIC_ID, b"")
    assert ask() == {(TOPIC_ID, 0): unknown, (TOPIC_ID, 1): unknown, (other, 0): (0, b"other")}


@pytest.mark.parametrize(("isolation", "aborted"), [(0, None), (1, [])])
def test_readers_of_committed_data_are_told_that_nothing_was_aborted(isolation: int, aborted: Any) -> None:
    answer = stage(p0=b"abc").answer((0, 0), isolation_level=isolation)
    assert answer.responses[0].partitions[0].aborted_transactions == aborted


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("isolation", [-1, 2, 127])
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
@pytest.mark.parametrize("epoch", [FIRST, FINAL])
def test_who_asks_for_an_isolation_that_there_is_not_reads_nothing(isolation: int, version: int, epoch: int) -> None:
    scene = stage(p0=b"abc")
    answer = scene.answer((0, 0), version=version, isolation_level=isolation, session_epoch=epoch)
    assert (answer.error_code, answer.session_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert told(answer) == ({0: (ErrorCode.UNKNOWN_SERVER_ERROR, b"")} if version < BY_ID else {})
    assert scene.asked == []


async def test_a_fetch_that_waits_is_answered_later() -> None:
    scene = stage(p0=b"")
    scene.parked = asyncio.get_running_loop().create_future()
    reply = scene.ask((0, 0))
    assert isinstance(reply, Pending)
    assert not reply.future.done()
    scene.logs[TopicPartition("t", 0)] = b"new"
    scene.parked.set_result([scene.read(FetchEntry(TopicPartition("t", 0), TOPIC_ID, 0))])
    assert told(decoded(await reply.future)) == {0: (0, b"new")}


async def test_a_fetch_whose_client_is_gone_waits_no_more() -> None:
    scene = stage(p0=b"")
    scene.parked = asyncio.get_running_loop().create_future()
    reply = scene.ask((0, 0))
    assert isinstance(reply, Pending)
    assert reply.for_this_client_only
    reply.future.cancel()
    await asyncio.sleep(0)
    assert scene.parked.cancelled()


@pytest.mark.spec("REP-06")
@pytest.mark.parametrize("gone", [False, True])
async def test_a_fetch_that_fails_while_it_waits_ends_its_connection(gone: bool) -> None:
    """Otherwise the client would wait for an answer that never comes."""
    scene = stage(p0=b"")
    scene.parked = asyncio.get_running_loop().create_future()
    reply = scene.ask((0, 0))
    assert isinstance(reply, Pending)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    scene.parked.set_exception(RuntimeError("a bug"))
    if gone:
        reply.future.cancel()
    await asyncio.sleep(0)
    assert failures == []
    assert reply.future.cancelled() if gone else isinstance(reply.future.exception(), RuntimeError)
