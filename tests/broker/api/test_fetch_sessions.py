"""Fetch sessions as a connection uses them, on real replicas and real files."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.broker import turning
from tests.broker.api.asking import Peer
from tests.broker.api.producing import Producing, answer
from tests.broker.replication import cluster as brokers
from tests.broker.replication.cluster import Cluster, Node, batch_of, eventually
from tests.broker.seams import SeededRandom

from ballast_broker.api import fetch, fetch_answer
from ballast_broker.api.authorizer import (
    ALLOWS_EVERYTHING,
    AclAuthorizer,
    Authorizer,
    Operation,
    ResourceKind,
)
from ballast_broker.api.client_quotas import ClientQuotas
from ballast_broker.api.dispatch import Dispatcher
from ballast_broker.api.fetch import Fetch
from ballast_broker.api.fetch_sessions import FetchSessions
from ballast_broker.metadata.acls import Acl, PatternType, Permission
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.records import record
from ballast_broker.metadata.snapshot import acl_record
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.metrics.traffic import Traffic
from ballast_broker.net_reply import ANONYMOUS, Pending, Principal
from ballast_broker.real_world import RealClock
from ballast_broker.replication import reading
from ballast_broker.replication.replicas import Replicas
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

Request, Response = message("FetchRequest"), message("FetchResponse")
VERSION = 16
FIRST, FINAL = 0, -1
FOLLOWER = 2
ORDERS = TopicPartition("orders", 0)
MORE_THAN_THERE_IS = 100_000
PATIENCE_S = 20.0


@pytest.fixture(autouse=True, params=[False, pytest.param(True, marks=pytest.mark.interpreted)], ids=["few", "many"])
def of_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Handle every request piece by piece, like one for thousands of partitions."""
    if request.param:
        turning.end_at_once(monkeypatch)
        monkeypatch.setattr(reading, "PIECE", 1)
        for module in (reading, fetch, fetch_answer):
            monkeypatch.setattr(module, "MANY", 0)
    return bool(request.param)


class Connection(Peer):
    def __init__(self) -> None:
        super().__init__()
        self.closing: list[Callable[[], None]] = []  # what is to be done when it ends

    def on_close(self, callback: Callable[[], None]) -> None:
        self.closing.append(callback)


class Asker:
    """Fetches the topic `orders`: (partition, offset), or each partition from its beginning."""

    def __init__(
        self, cluster: Cluster, node: Node, count: int, slots: int = 10, authorizer: Authorizer = ALLOWS_EVERYTHING
    ) -> None:
        self.principal = ANONYMOUS
        self.topic_id = cluster.topic_id("orders")
        self._count = count
        broker: Any = SimpleNamespace(
            image=lambda: cluster.controller.image,
            config=SimpleNamespace(fetch_max_bytes=1 << 20),
            replicas=node.replicas,
            traffic=Traffic(),
            authorizer=authorizer,
            client_quotas=ClientQuotas(RealClock()),
        )
        self.sessions = FetchSessions(slots, SeededRandom(1), lambda: 0.0)
        self.connection = Connection()
        metrics = RequestMetrics()
        self._dispatch = Dispatcher(
            broker, {}, metrics, lambda: 0.0, fetch=Fetch(broker, self.sessions, metrics)
        ).dispatch

    def ask(self, *wanted: tuple[int, int], replica_id: int = -1, most: int = 1 << 20, **fields: Any) -> Any:
        partitions = [
            Request.FetchTopic.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=most)
            for number, offset in wanted or [(number, 0) for number in range(self._count)]
        ]
        topics = [Request.FetchTopic(topic_id=self.topic_id, partitions=partitions)]
        whole = {"session_epoch": FIRST, "topics": topics, "max_bytes": 1 << 20} | fields
        if replica_id >= 0:
            whole["replica_state"] = Request.ReplicaState(replica_id=replica_id)
        return self.send(Request(version=VERSION, **whole))

    def send(self, request: Any) -> Any:
        body = bytes(request.encode(version=VERSION))
        frame = struct.pack(">hhih", Request.API_KEY, VERSION, 7, -1) + b"\0" + body
        self.connection.principal = self.principal
        return self._dispatch(self.connection, memoryview(frame))

    def hang_up(self) -> None:
        ended, self.connection = self.connection, Connection()
        for callback in ended.closing:
            callback()

    async def answer(self, reply: Any) -> Any:
        if isinstance(reply, Pending):
            async with asyncio.timeout(PATIENCE_S):
                reply = await reply.future
        frame = b""
        for part in reply:
            if not isinstance(part, bytes):
                data = os.pread(part.file.descriptor(), part.size, part.position)
                part.release()
                part = data
            frame += part
        return Response.decode(frame[9:], version=VERSION)


def told(answer: Any) -> dict[int, tuple[int, int]]:
    """(high watermark, number of records) by partition."""
    return {
        each.partition_index: (each.high_watermark, int.from_bytes(bytes(each.records or b"")[57:61], "big"))
        for topic in answer.responses
        for each in topic.partitions
    }


@asynccontextmanager
async def leader(folder: Path, count: int, replicas: list[int], **options: Any) -> AsyncIterator[tuple[Node, Asker]]:
    """The broker that leads all partitions; the other replicas do not exist."""
    async with Cluster(folder) as cluster:
        one = (await cluster.add(*replicas))[0]
        cluster.cuts.update(frozenset({1, other}) for other in replicas[1:])
        cluster.controller.create_topic("orders", [replicas] * count)
        yield one, Asker(cluster, one, count, **options)


@pytest.mark.spec("REP-03")
async def test_each_partition_gets_its_own_records_after_a_wait_for_more(tmp_path: Path) -> None:
    """Partitions with no data and with too little take turns while a session's first request waits."""
    async with leader(tmp_path, 3, [1]) as (one, asker):
        one.produce(TopicPartition("orders", 0), "a")
        one.produce(TopicPartition("orders", 2), "b", "c")
        reply = asker.ask(min_bytes=MORE_THAN_THERE_IS, max_wait_ms=20)
        assert isinstance(reply, Pending)
        assert told(await asker.answer(reply)) == {0: (1, 1), 1: (0, 0), 2: (2, 2)}


@pytest.mark.spec("REP-03")
async def test_a_follower_gets_each_partitions_own_records_after_a_wait(tmp_path: Path) -> None:
    """It has all of 0 and 2, of which another replica has nothing yet; then more of 2 comes."""
    async with leader(tmp_path, 3, [1, FOLLOWER, 3]) as (one, asker):
        for number in (0, 2):
            one.produce(TopicPartition("orders", number), "a")
        reply = asker.ask((0, 1), (1, 0), (2, 1), replica_id=FOLLOWER, min_bytes=1, max_wait_ms=10_000)
        assert isinstance(reply, Pending)
        one.produce(TopicPartition("orders", 2), "b", "c")
        assert told(await asker.answer(reply)) == {0: (0, 0), 1: (0, 0), 2: (0, 2)}


async def test_a_partition_that_is_named_twice_is_told_once(tmp_path: Path) -> None:
    async with leader(tmp_path, 2, [1]) as (one, asker):
        one.produce(TopicPartition("orders", 1), "a")
        assert told(await asker.answer(asker.ask((0, 0), (1, 0), (0, 0), (1, 0)))) == {0: (0, 0), 1: (1, 1)}


async def test_a_session_that_gave_way_while_its_client_waits_says_so(tmp_path: Path) -> None:
    async with leader(tmp_path, 1, [1, FOLLOWER], slots=1) as (_, asker):
        waiting = asker.ask(min_bytes=MORE_THAN_THERE_IS, max_wait_ms=50)
        assert isinstance(waiting, Pending)
        assert (await asker.answer(asker.ask(replica_id=FOLLOWER))).session_id > 0
        assert (await asker.answer(waiting)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("session_epoch", [FIRST, FINAL])
@pytest.mark.parametrize(
    ("limits", "records"),
    [
        ({"most": 100, "min_bytes": 200}, {0: (3, 1), 1: (3, 1)}),
        ({"max_bytes": 100, "min_bytes": 100}, {0: (3, 1), 1: (3, 0)}),
        ({"max_bytes": 100, "min_bytes": 5000}, {0: (3, 1), 1: (3, 0)}),
    ],
    ids=["of each partition", "of all", "of all, below what is waited for"],
)
async def test_nobody_waits_for_more_than_may_be_sent(
    tmp_path: Path, session_epoch: int, limits: dict[str, int], records: dict[int, tuple[int, int]], of_many: bool
) -> None:
    """Kafka fills limits with partial batches; with whole ones there is nearly always room for a few bytes more."""
    async with leader(tmp_path, 2, [1]) as (one, asker):
        for number in (0, 1):
            for value in "abc":
                one.produce(TopicPartition("orders", number), value)
        reply = asker.ask(session_epoch=session_epoch, max_wait_ms=600_000, **limits)
        assert of_many or not isinstance(reply, Pending)
        assert told(await asker.answer(reply)) == records


async def test_who_asks_for_one_partition_waits_not_longer(tmp_path: Path, of_many: bool) -> None:
    async with leader(tmp_path, 1, [1]) as (one, asker):
        for value in "abc":
            one.produce(TopicPartition("orders", 0), value)
        reply = asker.ask((0, 1), most=100, min_bytes=100, max_wait_ms=600_000, session_epoch=FINAL)
        assert of_many or not isinstance(reply, Pending)
        assert told(await asker.answer(reply)) == {0: (3, 1)}


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("session_epoch", [FIRST, FINAL])
async def test_less_than_no_bytes_is_an_error_of_what_would_be_read(tmp_path: Path, session_epoch: int) -> None:
    """As in Kafka, where a negative limit for the whole response is an error of the first partition only."""
    async with leader(tmp_path, 3, [1]) as (one, asker):
        for number in (1, 2):
            one.produce(TopicPartition("orders", number), "a")
        failed, empty = ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE
        answer = await asker.answer(asker.ask(most=-1, session_epoch=session_epoch))
        assert errors_of(answer) == {0: empty, 1: failed, 2: failed}
        answer = await asker.answer(asker.ask((2, 0), (1, 0), max_bytes=-1, session_epoch=session_epoch))
        assert (errors_of(answer), told(answer)) == ({2: failed, 1: empty}, {2: (-1, 0), 1: (1, 1)})


async def test_less_than_is_waited_for_waits(tmp_path: Path) -> None:
    async with leader(tmp_path, 2, [1]) as (one, asker):
        for number in (0, 1):
            for value in "abc":
                one.produce(TopicPartition("orders", number), value)
        reply = asker.ask(most=100, min_bytes=201, max_wait_ms=20, session_epoch=FINAL)
        assert isinstance(reply, Pending)
        assert told(await asker.answer(reply)) == {0: (3, 1), 1: (3, 1)}


@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_topic_that_was_deleted_is_no_longer_known_by_its_id(tmp_path: Path, made_anew: bool) -> None:
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        asker = Asker(cluster, one, 1)
        assert told(await asker.answer(asker.ask(session_epoch=FINAL, max_wait_ms=0))) == {0: (0, 0)}
        cluster.controller.delete_topic("orders")
        if made_anew:
            cluster.controller.create_topic("orders", [[1]])
        answer = await asker.answer(asker.ask(session_epoch=FINAL))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.spec("REP-06")
@pytest.mark.parametrize("in_session", [True, False])
async def test_a_topic_that_was_deleted_does_not_end_the_wait_for_others(tmp_path: Path, in_session: bool) -> None:
    """Otherwise its consumer would fetch in a busy loop until it hears of the deletion."""
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1)
        names = ("orders", "others")
        for name in names:
            cluster.controller.create_topic(name, [[1]])
        asker = Asker(cluster, one, 1)
        partition = Request.FetchTopic.FetchPartition(partition=0, partition_max_bytes=1000)
        topics = [Request.FetchTopic(topic_id=cluster.topic_id(name), partitions=[partition]) for name in names]
        all_of_it: dict[str, Any] = {"topics": topics, "session_epoch": FIRST if in_session else FINAL, "min_bytes": 1}
        all_of_it |= {"max_wait_ms": 20}
        began = await asker.answer(asker.ask(**all_of_it))
        cluster.controller.delete_topic("orders")
        if not in_session:
            await asker.answer(asker.ask(**all_of_it))
        else:
            all_of_it |= {"topics": [], "session_id": began.session_id, "session_epoch": 1}
        waiting = asker.ask(**all_of_it)
        assert isinstance(waiting, Pending)
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if in_session else ErrorCode.UNKNOWN_TOPIC_ID
        assert (await asker.answer(waiting)).responses[0].partitions[0].error_code == gone


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("session_epoch", [FIRST, FINAL])
async def test_who_asks_a_broker_that_has_no_replica_any_more_is_told_of_the_leader(
    tmp_path: Path, session_epoch: int
) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1]])
        asker = Asker(cluster, one, 1)
        assert told(await asker.answer(asker.ask(session_epoch=session_epoch))) == {0: (0, 0)}
        cluster.controller.reassign("orders", [2])
        await eventually(lambda: one.replicas.partition(TopicPartition("orders", 0)) is None)
        answer = await asker.answer(asker.ask(session_epoch=session_epoch))
        assert errors_of(answer) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        leader_now = answer.responses[0].partitions[0].current_leader
        assert (leader_now.leader_id, leader_now.leader_epoch) == (2, 1)


async def test_a_session_that_forgets_all_is_over(tmp_path: Path) -> None:
    async with leader(tmp_path, 1, [1], slots=1) as (_, asker):
        session_id = (await asker.answer(asker.ask(max_wait_ms=0))).session_id
        forgotten = [Request.ForgottenTopic(topic_id=asker.topic_id, partitions=[0])]
        fields = {"session_id": session_id, "topics": []}
        ended = await asker.answer(asker.ask(session_epoch=1, forgotten_topics_data=forgotten, **fields))
        assert (ended.error_code, ended.session_id, ended.responses) == (ErrorCode.NONE, 0, [])
        again = await asker.answer(asker.ask(session_epoch=2, **fields))
        assert again.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await asker.answer(asker.ask(max_wait_ms=0))).session_id > 0


@pytest.mark.spec("REP-03")
async def test_what_a_follower_asked_for_by_a_connection_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    """On the next connection it starts over. A session that nobody will use would be notified of every append."""
    async with leader(tmp_path, 2, [1, FOLLOWER]) as (one, asker):
        consumer = await asker.answer(asker.ask())
        for _ in range(3):
            assert (await asker.answer(asker.ask(replica_id=FOLLOWER))).session_id > 0
            waiting = asker.ask(replica_id=FOLLOWER, min_bytes=1, max_wait_ms=10_000)
            assert isinstance(waiting, Pending)
            waiting.future.cancel()
            asker.hang_up()
        assert len(asker.sessions) == 1
        one.produce(TopicPartition("orders", 0), "a")
        asked = {"session_id": consumer.session_id, "session_epoch": 1, "topics": []}
        assert (await asker.answer(asker.ask(**asked))).error_code == ErrorCode.NONE, (
            "a consumer may come back to its own"
        )


@asynccontextmanager
async def leader_and_follower(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Node]]:
    """Both are real, and the follower fetches `orders` in a session; three records are committed there."""
    serve = brokers.serve

    async def serve_in_sessions(replicas: Replicas, request: Any, cluster: Cluster) -> Any:
        if type(request) is Request:
            return await asker.answer(asker.send(request))
        return await serve(replicas, request, cluster)

    monkeypatch.setattr(brokers, "serve", serve_in_sessions)
    async with Cluster(folder) as cluster:
        one, two = await cluster.add(1, FOLLOWER)
        cluster.controller.create_topic("orders", [[1, FOLLOWER]])
        asker = Asker(cluster, one, 1)
        for value in "abc":
            assert await one.produce_to_all(ORDERS, value) is ErrorCode.NONE
        await eventually(lambda: two.log(ORDERS).high_watermark == 3)
        yield one, two


@pytest.mark.spec("REP-07", "REP-03")
async def test_a_follower_whose_own_retention_came_first_hears_of_deleted_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader tells it only once, in the answer to a fetch with the earlier log start, and no record follows."""
    async with leader_and_follower(tmp_path, monkeypatch) as (one, two):
        two.log(ORDERS).advance_log_start_offset(1)
        assert await one.replicas.delete_records({ORDERS: 2}, 1500) == {ORDERS: (ErrorCode.NONE, 2)}
        assert two.log(ORDERS).log_start_offset == 2


@pytest.mark.spec("REP-02", "REP-03")
async def test_a_leader_hears_where_the_log_of_its_follower_begins_though_no_record_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it sends consumers of the follower's rack there for records that the follower has deleted."""
    async with leader_and_follower(tmp_path, monkeypatch) as (one, two):
        two.log(ORDERS).advance_log_start_offset(1)
        await eventually(lambda: one.state(ORDERS).followers[FOLLOWER].log_start_offset == 1, timeout_s=2)


@pytest.mark.spec("REP-03")
async def test_a_connection_keeps_one_session_of_its_follower_however_many_it_begins(tmp_path: Path) -> None:
    """A connection between brokers may last for months, and would keep each session that was begun on it."""
    async with leader(tmp_path, 2, [1, FOLLOWER]) as (_, asker):
        for _ in range(5):
            assert (await asker.answer(asker.ask(replica_id=FOLLOWER))).session_id > 0
        assert len(asker.sessions) == len(asker.connection.closing) == 1
        asker.hang_up()
        assert len(asker.sessions) == 0


async def test_a_session_that_nobody_uses_any_more_keeps_nothing_of_a_deleted_topic(tmp_path: Path) -> None:
    """A client that does return to it is told of the deletion."""
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        asker = Asker(cluster, one, 1)
        session_id = (await asker.answer(asker.ask())).session_id
        replica = one.replicas._replicas[TopicPartition("orders", 0)]
        (followed,) = replica.watched
        cluster.controller.delete_topic("orders")
        await eventually(lambda: one.replicas.partition(replica.topic_partition) is None)
        assert followed.replica is None
        answer = await asker.answer(asker.ask(session_id=session_id, session_epoch=1, topics=[]))
        assert errors_of(answer) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.spec("REP-03", "REP-06")
async def test_an_append_costs_nothing_for_sessions_that_nobody_uses_any_more(tmp_path: Path) -> None:
    """Killed clients leave their sessions behind, perhaps many. A client that does return misses nothing."""
    async with leader(tmp_path, 1, [1], slots=100) as (one, asker):
        orders = TopicPartition("orders", 0)
        replica = one.replicas._replicas[orders]
        left_behind = [await asker.answer(asker.ask()) for _ in range(50)]
        assert len(replica.watched) == 50
        one.produce(orders, "a")  # all of them are to look at it
        one.produce(orders, "b")
        assert not replica.watched
        asked = {"session_id": left_behind[7].session_id, "topics": []}
        assert told(await asker.answer(asker.ask(session_epoch=1, **asked))) == {0: (2, 1)}
        reading = {"session_id": left_behind[7].session_id, "min_bytes": 1, "max_wait_ms": 60_000}
        waiting = asker.ask((0, 2), session_epoch=2, **reading)
        assert isinstance(waiting, Pending)
        assert len(replica.watched) == 1
        one.produce(orders, "c")
        assert told(await asker.answer(waiting)) == {0: (3, 1)}


class Rights:
    """An authorizer whose ACLs come and go, and its users."""

    def __init__(self) -> None:
        self.authorizer = AclAuthorizer(frozenset(), allows_without_entry=False)
        self._loader = MetadataLoader([self.authorizer.publish])
        self._ids: dict[Acl, UUID] = {}

    def give(self, name: str, kind: ResourceKind, resource: str, operation: Operation) -> None:
        acl = Acl(kind, resource, PatternType.LITERAL, f"User:{name}", "*", operation, Permission.ALLOW)
        self._ids[acl] = UUID(int=1000 + len(self._ids))
        self._apply(acl_record(self._ids[acl], acl))

    def take_all(self) -> None:
        self._apply(*(record("RemoveAccessControlEntryRecord", id=each) for each in self._ids.values()))
        self._ids.clear()

    def _apply(self, *records: Any) -> None:
        turning.at_one_go(self._loader.apply(records, self._loader.image.offset + 1, 1))


def errors_of(answer: Any) -> dict[int, int]:
    return {each.partition_index: each.error_code for topic in answer.responses for each in topic.partitions}


REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.spec("CLI-06")
async def test_a_right_that_is_taken_ends_what_a_session_reads_with_its_next_request(tmp_path: Path) -> None:
    rights = Rights()
    rights.give("ann", ResourceKind.TOPIC, "orders", Operation.READ)
    async with leader(tmp_path, 1, [1], authorizer=rights.authorizer) as (one, asker):
        asker.principal = Principal("User", "ann")
        began = await asker.answer(asker.ask())
        assert errors_of(began) == {0: ErrorCode.NONE}
        rights.take_all()
        one.produce(TopicPartition("orders", 0), "secret")
        going_on = {"session_id": began.session_id, "topics": []}
        later = await asker.answer(asker.ask(session_epoch=1, **going_on))
        assert (errors_of(later), told(later)) == ({0: REFUSED}, {0: (-1, 0)})
        rights.give("ann", ResourceKind.TOPIC, "orders", Operation.READ)
        again = await asker.answer(asker.ask(session_epoch=2, **going_on))
        assert (errors_of(again), told(again)) == ({0: ErrorCode.NONE}, {0: (1, 1)})


@pytest.mark.spec("CLI-06")
async def test_who_goes_on_with_somebody_elses_session_reads_what_he_may_himself(tmp_path: Path) -> None:
    """Session ids are no secret; nor may a consumer's session continue as a follower's."""
    rights = Rights()
    rights.give("ann", ResourceKind.TOPIC, "orders", Operation.READ)
    async with leader(tmp_path, 1, [1], authorizer=rights.authorizer) as (one, asker):
        asker.principal = Principal("User", "ann")
        began = await asker.answer(asker.ask())
        one.produce(TopicPartition("orders", 0), "secret")
        going_on = {"session_id": began.session_id, "topics": []}
        asker.principal = Principal("User", "eve")
        assert errors_of(await asker.answer(asker.ask(session_epoch=1, **going_on))) == {0: REFUSED}
        asker.principal = Principal("User", "ann")
        as_follower = asker.ask(session_epoch=2, replica_id=FOLLOWER, **going_on)
        assert errors_of(await asker.answer(as_follower)) == {0: REFUSED}
        assert told(await asker.answer(asker.ask(session_epoch=3, **going_on))) == {0: (1, 1)}


@pytest.mark.spec("REP-05")
async def test_a_follower_needs_to_act_for_the_cluster(tmp_path: Path) -> None:
    rights = Rights()
    rights.give("node", ResourceKind.TOPIC, "orders", Operation.READ)
    async with leader(tmp_path, 1, [1, FOLLOWER], authorizer=rights.authorizer) as (_, asker):
        asker.principal = Principal("User", "node")
        assert errors_of(await asker.answer(asker.ask(replica_id=FOLLOWER))) == {0: REFUSED}
        rights.give("node", ResourceKind.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION)
        assert errors_of(await asker.answer(asker.ask(replica_id=FOLLOWER))) == {0: ErrorCode.NONE}


@pytest.mark.spec("CLI-06")
async def test_one_partition_is_written_and_read_by_who_may_and_by_nobody_else(tmp_path: Path) -> None:
    """The fast paths: one batch, one partition, no session; tried before and after each change of ACLs."""
    rights, partition = Rights(), TopicPartition("orders", 0)
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        asker = Asker(cluster, one, 1, authorizer=rights.authorizer)
        producing = Producing(cluster, one, rights.authorizer)

        async def tried() -> tuple[int, dict[int, int]]:
            written = await answer(producing.send_batches(1, (partition, bytes(batch_of("a")))))
            return written[0][1], errors_of(await asker.answer(asker.ask(session_epoch=FINAL)))

        assert await tried() == (REFUSED, {0: REFUSED})
        rights.give("ANONYMOUS", ResourceKind.TOPIC, "orders", Operation.WRITE)
        assert await tried() == (ErrorCode.NONE, {0: REFUSED})
        rights.give("ANONYMOUS", ResourceKind.TOPIC, "orders", Operation.READ)
        assert await tried() == (ErrorCode.NONE, {0: ErrorCode.NONE})
        rights.take_all()
        assert await tried() == (REFUSED, {0: REFUSED})
        assert told(await asker.answer(asker.ask(session_epoch=FINAL))) == {0: (-1, 0)}


COUNT = 300  # more than are read without a look at the clock


def replicas_of(one: Node) -> list[Any]:
    return [one.replicas._replicas[TopicPartition("orders", number)] for number in range(COUNT)]


async def turns(most: int, until: Callable[[], bool] = lambda: False) -> None:
    for _ in range(most):
        if until():
            break
        await asyncio.sleep(0)


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize("session_epoch", [FIRST, FINAL])
async def test_what_comes_to_one_of_many_partitions_while_others_are_read_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session_epoch: int
) -> None:
    """Even if that partition was looked at already."""
    turning.end_at_once(monkeypatch)
    async with leader(tmp_path, COUNT, [1]) as (one, asker):
        reply = asker.ask(min_bytes=1, max_wait_ms=600_000, session_epoch=session_epoch)
        first, *_, last = replicas_of(one)
        await turns(3 * COUNT, lambda: bool(first.watched or first.parked))
        await turns(2)  # without a session it is only about to be read
        assert not last.watched, "it is not read yet"
        one.produce(first.topic_partition, "a")
        answer = told(await asker.answer(reply))
        assert len(answer) == COUNT
        assert answer[0] == (1, 1)


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize("after", [1, COUNT // 2, COUNT + 2, COUNT + 4, COUNT + 8, 2 * COUNT])
async def test_who_goes_while_many_partitions_are_read_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    turning.end_at_once(monkeypatch)
    async with leader(tmp_path, COUNT, [1]) as (one, asker):
        for number in range(COUNT):
            one.produce(TopicPartition("orders", number), "a")
        reply = asker.ask(min_bytes=MORE_THAN_THERE_IS, max_wait_ms=600_000, session_epoch=FINAL)
        await turns(after)
        reply.future.cancel()
        await turns(2 * COUNT)
        for replica in replicas_of(one):
            assert not replica.parked
            assert all(not segment.references for segment in replica.log.segments)


@pytest.mark.spec("CLI-09", "REP-03")
async def test_a_session_that_gives_way_while_its_partitions_are_read_watches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turning.end_at_once(monkeypatch)
    async with leader(tmp_path, COUNT, [1, FOLLOWER], slots=1) as (one, asker):
        reply = asker.ask(min_bytes=1, max_wait_ms=0)
        await turns(3 * COUNT, lambda: bool(replicas_of(one)[0].watched))
        assert 0 < sum(len(replica.watched) for replica in replicas_of(one)) < COUNT
        asker.sessions.drop(next(iter(asker.sessions._sessions)))
        assert (await asker.answer(reply)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not any(replica.watched for replica in replicas_of(one))


@pytest.mark.spec("CLI-09")
async def test_an_answer_keeps_so_many_files_open_and_the_others_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_many: bool
) -> None:
    if not of_many:
        return  # the limit is the compiled one
    monkeypatch.setattr(reading, "MOST_SLICES", 2)
    async with leader(tmp_path, 5, [1]) as (one, asker):
        for number in range(5):
            one.produce(TopicPartition("orders", number), "a")
        first = await asker.answer(asker.ask(min_bytes=1, max_wait_ms=600_000))
        assert told(first) == {0: (1, 1), 1: (1, 1), 2: (1, 0), 3: (1, 0), 4: (1, 0)}
        going_on = {"session_id": first.session_id, "min_bytes": 1, "max_wait_ms": 600_000}
        assert told(await asker.answer(asker.ask((0, 1), (1, 1), session_epoch=1, **going_on))) == {
            2: (1, 1),
            3: (1, 1),
        }
        assert told(await asker.answer(asker.ask((2, 1), (3, 1), session_epoch=2, **going_on))) == {4: (1, 1)}
