"""Produce requests in transactions: when which coordinator is asked, and what producers get (CLI-05, KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.api.producing import Producing, Slow, answer
from tests.broker.replication.cluster import HOST, Cluster, batch_of, eventually, round_trip
from tests.broker.replication.cluster import Node as Broker

from ballast_broker.api.produce_answers import ProduceRefused
from ballast_broker.coordinator.service import partition_for
from ballast_broker.coordinator.transactions import ProducerIdentity
from ballast_broker.coordinator.verification import TransactionVerifier
from ballast_broker.net_reply import Pending
from ballast_broker.seams import Clock
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)
OLD, ABORTABLE, ADDING = 10, 11, 12
STATE = "__transaction_state"
LEADERS = [[1], [2], [1]]
ID = next(name for name in map(str, range(100)) if partition_for(name, 3) == 1)  # its coordinator is broker 2
OWN_ID = next(name for name in map(str, range(100)) if partition_for(name, 3) == 0)  # and this one's is broker 1
NONE = ErrorCode.NONE
RETRY_S, PATIENCE_S = 0.01, 2.0

Questions = list[tuple[str, int, int, bool, list[TopicPartition]]]


class Coordinator:
    """A coordinator on another broker or on this one: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.requests: list[Questions] = []
        self.asked_here: list[Questions] = []
        self.ports: list[int] = []
        self.says: Callable[[str, TopicPartition], ErrorCode] = lambda *_: NONE
        self.whole_error = NONE
        self.gate = asyncio.Event()
        self.gate.set()
        self.away = False
        self.closed = False

    async def connect(self, host: str, port: int, *, timeout_s: float) -> Coordinator:
        assert host == HOST
        if self.away:
            raise ConnectionRefusedError
        self.ports.append(port)
        return self

    async def call(self, request: Any, version: int) -> Any:
        asked = round_trip(request, version).transactions
        self.requests.append([
            (t.transactional_id, t.producer_id, t.producer_epoch, t.verify_only,
             [TopicPartition(topic.name, number) for topic in t.topics for number in topic.partitions])
            for t in asked
        ])  # fmt: skip
        await self.gate.wait()
        kind = message("AddPartitionsToTxnResponse")
        result = kind.AddPartitionsToTxnResult
        topic_kind = result.AddPartitionsToTxnTopicResult
        each_kind = topic_kind.AddPartitionsToTxnPartitionResult
        results = []
        for transaction in asked:
            topics = []
            for topic in transaction.topics:
                codes = [
                    (number, self.says(transaction.transactional_id, TopicPartition(topic.name, number)))
                    for number in topic.partitions
                ]
                answers = [each_kind(partition_index=number, partition_error_code=code) for number, code in codes]
                topics.append(topic_kind(name=topic.name, results_by_partition=answers))
            results.append(result(transactional_id=transaction.transactional_id, topic_results=topics))
        return round_trip(kind(error_code=self.whole_error, results_by_transaction=results), version)

    def own_verdict(
        self, name: str, producer: ProducerIdentity, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return self._own_answer(name, producer, partitions, verify_only=True)

    async def own_addition(
        self, name: str, producer: ProducerIdentity, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return self._own_answer(name, producer, partitions, verify_only=False)

    def _own_answer(
        self, name: str, producer: ProducerIdentity, partitions: list[TopicPartition], *, verify_only: bool
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked_here.append([(name, *producer, verify_only, partitions)])
        return {partition: self.says(name, partition) for partition in partitions}

    def close(self) -> None:
        self.closed = True


class Client(Producing):
    def __init__(
        self,
        cluster: Cluster,
        node: Broker,
        coordinator: Coordinator,
        *,
        verifies: bool = True,
        clock: Clock | None = None,
    ) -> None:
        image = lambda: cluster.controller.image  # noqa: E731
        self.verifier = TransactionVerifier(
            image,
            coordinator,
            "PLAINTEXT",
            node.broker_id,
            coordinator.own_verdict,
            coordinator.own_addition,
            timeout_s=5,
            retry_s=RETRY_S,
            patience_s=PATIENCE_S,
        )
        config = SimpleNamespace(transaction_partition_verification_enable=verifies)
        super().__init__(cluster, node, clock=clock, verifier=self.verifier, config=config)

    def send(
        self, version: int, *partitions: TopicPartition, sequence: int = 0, producer: int = 7, epoch: int = 0,
        name: str | None = ID, acks: int = 1, transactional: bool = True,
    ) -> Any:  # fmt: skip
        batch = encode_batch(
            [Record(value=b"x", timestamp=1)], producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            transactional=transactional,
        )  # fmt: skip
        batches = [(partition, bytes(batch)) for partition in partitions]
        return self.send_batches(acks, *batches, version=version, transactional_id=name)

    async def told(self, version: int, *partitions: TopicPartition, **fields: Any) -> list[tuple[ErrorCode, int]]:
        answers = await answer(self.send(version, *partitions, **fields))
        return [(ErrorCode(code), offset) for _, code, offset in answers]


Stage = tuple[Cluster, Broker, Client, Coordinator]


@asynccontextmanager
async def stage(
    folder: Path, *, verifies: bool = True, state: bool = True, clock: Clock | None = None
) -> AsyncIterator[Stage]:
    async with Cluster(folder) as cluster:
        node, _ = await cluster.add(1, 2)
        for name in ("orders", "bills"):
            cluster.controller.create_topic(name, [[1]])
        if state:
            cluster.controller.create_topic(STATE, LEADERS)
        coordinator = Coordinator()
        client = Client(cluster, node, coordinator, verifies=verifies, clock=clock)
        try:
            yield cluster, node, client, coordinator
        finally:
            client.verifier.close()


def finish(node: Broker, *partitions: TopicPartition, producer: int = 7, epoch: int = 0) -> None:
    for partition in partitions:
        marker = render_marker(producer, epoch, 0, committed=True, now_ms=1)
        node.replicas.append(partition, None, marker, 1, origin="coordinator")


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize(("version", "verify_only"), [(OLD, True), (ABORTABLE, True), (ADDING, False)])
async def test_the_coordinator_is_asked_once_for_a_transaction(tmp_path: Path, version: int, verify_only: bool) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        first = client.send(version, ORDERS, BILLS)
        assert isinstance(first, Pending)
        assert not first.pipelined
        assert [each[1:] for each in await answer(first)] == [(0, 0), (0, 0)]
        assert coordinator.requests == [[(ID, 7, 0, verify_only, [ORDERS, BILLS])]]
        assert coordinator.ports == [2]
        going_on = client.send(version, ORDERS, sequence=1)
        assert not isinstance(going_on, Pending), "nobody is asked again, and nothing waits"
        assert len(coordinator.requests) == 1
        finish(node, ORDERS, BILLS)
        assert await client.told(version, BILLS, sequence=1) == [(NONE, 2)]
        assert coordinator.requests[1:] == [[(ID, 7, 0, verify_only, [BILLS])]]


@pytest.mark.spec("CLI-05")
async def test_it_is_asked_once_also_where_a_request_takes_several_turns(tmp_path: Path) -> None:
    """Batches of ongoing transactions are written in turns until one needs the coordinator."""
    places = [TopicPartition("many", number) for number in range(6)]
    async with stage(tmp_path, clock=Slow()) as (cluster, node, client, coordinator):
        cluster.controller.create_topic("many", [[1]] * len(places))
        assert await client.told(ADDING, *places[:3]) == [(NONE, 0)] * 3
        assert coordinator.requests == [[(ID, 7, 0, False, places[:3])]]
        batches = [
            encode_batch(
                [Record(value=b"x", timestamp=1)], producer_id=7, producer_epoch=0, transactional=True,
                base_sequence=1 if place in places[:3] else 0,
            )
            for place in places
        ]  # fmt: skip
        reply = client.send_batches(
            1, *zip(places, map(bytes, batches), strict=True), version=ADDING, transactional_id=ID
        )
        assert [node.log(each).log_end_offset for each in places] == [2, 1, 1, 0, 0, 0]
        assert [each[1:] for each in await answer(reply)] == [(0, 1)] * 3 + [(0, 0)] * 3
        assert coordinator.requests[1:] == [[(ID, 7, 0, False, places[3:])]]


@pytest.mark.spec("CLI-05")
async def test_a_coordinator_that_is_this_broker_adds_without_the_network(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        coordinator.says = lambda _, partition: NONE if partition == ORDERS else refused
        told = await client.told(ADDING, ORDERS, BILLS, name=OWN_ID)
        assert told == [(NONE, 0), (refused, -1)]
        assert coordinator.asked_here == [[(OWN_ID, 7, 0, False, [ORDERS, BILLS])]]
        assert coordinator.requests == []


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("version", [OLD, ABORTABLE])
async def test_a_coordinator_that_is_this_broker_verifies_at_once(tmp_path: Path, version: int) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        coordinator.says = lambda _, partition: NONE if partition == ORDERS else refused
        reply = client.send(version, ORDERS, BILLS, name=OWN_ID)
        assert not isinstance(reply, Pending), "nothing waits"
        assert [each[1:] for each in await answer(reply)] == [(0, 0), (refused, -1)]
        assert coordinator.asked_here == [[(OWN_ID, 7, 0, True, [each])] for each in (ORDERS, BILLS)]
        assert coordinator.requests == []


@pytest.mark.parametrize("version", [ABORTABLE, ADDING])
async def test_a_coordinator_of_this_broker_that_fails_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    def fails(*_: object) -> ErrorCode:
        raise ValueError("broken")

    async with stage(tmp_path) as (_, _node, client, coordinator):
        coordinator.says = fails
        assert await client.told(version, ORDERS, name=OWN_ID) == [(ErrorCode.UNKNOWN_SERVER_ERROR, -1)]
    assert [record.message for record in caplog.records] == ["transactions could not be verified"]
    caplog.clear()


@pytest.mark.spec("CLI-05")
async def test_a_coordinator_that_is_busy_with_an_end_is_asked_again_for_a_while(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator.says = lambda *_: busy if len(coordinator.requests) < 4 else NONE
        assert await client.told(ADDING, ORDERS) == [(NONE, 0)]
        assert coordinator.requests == [[(ID, 7, 0, False, [ORDERS])]] * 4
        coordinator.says = lambda *_: busy
        assert await client.told(ADDING, BILLS) == [(busy, -1)]
        assert 1 < len(coordinator.requests) - 4 <= PATIENCE_S / RETRY_S + 1
        before = len(coordinator.requests)
        assert await client.told(ABORTABLE, BILLS) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)], "it adds nothing"
        assert len(coordinator.requests) == before + 1


@pytest.mark.spec("CLI-05")
async def test_nobody_is_asked_for_what_is_no_transaction(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        for name in (None, ID):
            sequence = 0 if name is None else 1
            reply = client.send(ADDING, ORDERS, sequence=sequence, name=name, transactional=False)
            assert not isinstance(reply, Pending)
        assert coordinator.requests == []
        refused = [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
        assert await client.told(ADDING, BILLS, name=None) == refused
        assert await client.told(OLD, BILLS, name=None) == refused


@pytest.mark.spec("CLI-05")
async def test_verification_can_be_switched_off_for_the_old_protocol(tmp_path: Path) -> None:
    async with stage(tmp_path, verifies=False) as (_, _node, client, coordinator):
        assert not isinstance(client.send(ABORTABLE, ORDERS), Pending)
        assert coordinator.requests == []
        assert await client.told(ADDING, BILLS) == [(NONE, 0)]
        assert coordinator.requests == [[(ID, 7, 0, False, [BILLS])]]


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.INVALID_TXN_STATE, {OLD: ErrorCode.INVALID_TXN_STATE}),
        (ErrorCode.TRANSACTION_ABORTABLE, {OLD: ErrorCode.INVALID_TXN_STATE, 11: ErrorCode.TRANSACTION_ABORTABLE}),
        (ErrorCode.PRODUCER_FENCED, {OLD: ErrorCode.INVALID_PRODUCER_EPOCH}),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, {OLD: ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
        (ErrorCode.NOT_COORDINATOR, {OLD: ErrorCode.NOT_ENOUGH_REPLICAS}),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {OLD: ErrorCode.NOT_ENOUGH_REPLICAS}),
        (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            {OLD: ErrorCode.NOT_ENOUGH_REPLICAS, 12: ErrorCode.CONCURRENT_TRANSACTIONS},
        ),
    ],
)
async def test_what_producers_are_told(tmp_path: Path, said: ErrorCode, told: dict[int, ErrorCode]) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        coordinator.says = lambda _, partition: said if partition == ORDERS else NONE
        expected = ErrorCode.NONE
        for version in (OLD, ABORTABLE, ADDING):
            expected = told.get(version, expected)
            both = await client.told(version, ORDERS, BILLS, producer=version)
            assert both == [(expected, -1), (NONE, version - OLD)]
        assert node.stored(ORDERS) == []


@pytest.mark.spec("CLI-05", "CLI-10")
async def test_of_a_log_that_was_not_looked_at_nothing_is_told(tmp_path: Path) -> None:
    """Only a refusal by the log itself contains its start offset, as with Apache Kafka."""
    async with stage(tmp_path) as (_, _node, client, coordinator):
        coordinator.says = lambda _, partition: ErrorCode.INVALID_PRODUCER_ID_MAPPING if partition == ORDERS else NONE
        assert await client.told(ADDING, BILLS) == [(NONE, 0)]
        parts = await client.send(ADDING, ORDERS, BILLS, sequence=7).future
        said = message("ProduceResponse").decode(b"".join(parts)[9:], version=ADDING)
        assert [(p.error_code, p.log_start_offset) for t in said.responses for p in t.partition_responses] == [
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1),
            (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0),
        ]


@pytest.mark.spec("CLI-05")
async def test_a_coordinator_that_cannot_be_asked_is_asked_again_later(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        coordinator.away = True
        assert await client.told(ADDING, ORDERS) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        coordinator.away = False
        coordinator.whole_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await client.told(ADDING, ORDERS) == [(ErrorCode.INVALID_TXN_STATE, -1)]
        coordinator.whole_error = ErrorCode.NONE
        assert await client.told(ADDING, ORDERS) == [(NONE, 0)]


@pytest.mark.spec("CLI-05")
async def test_without_a_coordinator_the_producer_sends_again(tmp_path: Path) -> None:
    async with stage(tmp_path, state=False) as (_, _node, client, _coordinator):
        assert await client.told(ADDING, ORDERS) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]


@pytest.mark.spec("CLI-05")
async def test_what_was_sent_behind_a_batch_that_could_not_be_verified_waits_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        coordinator.says = lambda *_: ErrorCode.CONCURRENT_TRANSACTIONS
        assert await client.told(ADDING, ORDERS) == [(ErrorCode.CONCURRENT_TRANSACTIONS, -1)]
        coordinator.says = lambda *_: NONE
        assert await client.told(ADDING, ORDERS, sequence=1) == [(ErrorCode.CONCURRENT_TRANSACTIONS, -1)]
        assert await client.told(ADDING, ORDERS) == [(NONE, 0)]
        assert await client.told(ADDING, ORDERS, sequence=1) == [(NONE, 1)]


@pytest.mark.spec("CLI-05")
async def test_others_do_not_wait_and_questions_go_together(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        coordinator.gate.clear()
        first = client.send(ADDING, ORDERS)
        await eventually(lambda: coordinator.requests)
        others = [client.send(ADDING, ORDERS, producer=number) for number in (8, 9)]
        names = [name for name in map(str, range(200)) if partition_for(name, 3) == 1][1:3]
        named = [client.send(ADDING, ORDERS, producer=20 + n, name=name) for n, name in enumerate(names)]
        assert await answer(client.send_batches(1, (ORDERS, bytes(batch_of("at once"))))) == [("orders", 0, 0)]
        assert node.stored(ORDERS) == ["at once"]
        coordinator.gate.set()
        for reply in (first, *others, *named):
            assert [code for _, code, _ in await answer(reply)] == [0]
        sizes = [len(request) for request in coordinator.requests]
        assert sizes == [1, 3, 1], "each transactional id once in a request"


@pytest.mark.spec("CLI-05")
async def test_an_answer_that_comes_after_a_marker_begins_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        coordinator.gate.clear()
        reply = client.send(ABORTABLE, ORDERS)
        await eventually(lambda: coordinator.requests)
        finish(node, ORDERS)
        coordinator.gate.set()
        assert [code for _, code, _ in await answer(reply)] == [ErrorCode.INVALID_TXN_STATE]
        assert node.log(ORDERS).last_stable_offset == 1


@pytest.mark.spec("CLI-05")
async def test_one_request_is_of_one_producer(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        batches = [
            (partition, bytes(encode_batch([Record(value=b"x", timestamp=1)], producer_id=number, producer_epoch=0,
                                           base_sequence=0, transactional=True)))
            for number, partition in enumerate((ORDERS, BILLS))
        ]  # fmt: skip
        said = await answer(client.send_batches(1, *batches, version=ADDING, transactional_id=ID))
        assert [code for _, code, _ in said] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert coordinator.requests == []


@pytest.mark.spec("CLI-05")
async def test_a_question_whose_asker_is_gone_is_not_asked(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, _node, client, coordinator):
        coordinator.gate.clear()
        first = asyncio.ensure_future(client.verifier.verify(ID, 1, 0, [ORDERS], add=True))
        await eventually(lambda: coordinator.requests)
        gone = asyncio.ensure_future(client.verifier.verify(ID, 2, 0, [ORDERS], add=True))
        last = asyncio.ensure_future(client.verifier.verify(ID, 3, 0, [ORDERS], add=False))
        await asyncio.sleep(0)
        gone.cancel()
        coordinator.gate.set()
        assert await first == await last == {}
        assert [[asked[1] for asked in request] for request in coordinator.requests] == [[1], [3]]


@pytest.mark.spec("CLI-05")
async def test_who_does_not_lead_asks_nobody(tmp_path: Path) -> None:
    async with stage(tmp_path) as (cluster, _node, client, coordinator):
        cluster.controller.create_topic("elsewhere", [[2, 1]])
        said = await client.told(ADDING, TopicPartition("elsewhere", 0), TopicPartition("elsewhere", 7))
        assert said == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert coordinator.requests == []


@pytest.mark.spec("CLI-05")
@pytest.mark.spec("LOG-32")
async def test_a_transaction_on_a_disk_that_stalls(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        log = node.log(ORDERS)
        log.directory.slow_until = asyncio.get_running_loop().time() + 3600
        assert await client.told(ADDING, ORDERS, acks=-1) == [(NONE, 0)]
        assert await client.told(ADDING, ORDERS, sequence=1, acks=-1) == [(NONE, 1)]
        assert await client.told(ADDING, ORDERS, sequence=1, acks=-1) == [(NONE, 1)], "the same again"
        assert len(coordinator.requests) == 1
        assert log.last_stable_offset == 0


@pytest.mark.spec("CLI-05")
async def test_without_acks_what_is_refused_closes_the_connection(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, node, client, coordinator):
        assert await client.send(ADDING, ORDERS, acks=0).future is None
        assert node.stored(ORDERS) == ["x"]
        coordinator.says = lambda *_: ErrorCode.INVALID_TXN_STATE
        with pytest.raises(ProduceRefused):
            await client.send(ADDING, BILLS, acks=0).future
