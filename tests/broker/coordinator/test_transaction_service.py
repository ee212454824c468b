"""The transaction coordinator with its log: real replicas on real files, and brokers that get markers.

A new coordinator knows what it loads from the log of the previous one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.replication.cluster import HOST, Cluster, Node, RealClock, eventually, round_trip, told

from ballast_broker.coordinator import markers, transaction_service
from ballast_broker.coordinator.leadership import TransactionLeadership
from ballast_broker.coordinator.markers import MarkerSender, Marking, Outcomes
from ballast_broker.coordinator.store import TRANSACTIONS_TOPIC, CoordinatorStore
from ballast_broker.coordinator.transaction_records import key_of
from ballast_broker.coordinator.transaction_service import TransactionConfig, TransactionCoordinator
from ballast_broker.coordinator.transactions import NOBODY, ProducerIdentity, TransactionState
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.gate import whole
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.persistent import at_once
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

pytestmark = pytest.mark.spec("CLI-05")

LOG = TopicPartition(TRANSACTIONS_TOPIC, 0)
ON_1, ON_2 = TopicPartition("t", 0), TopicPartition("t", 1)
NO_BROKER = -1
LINK = frozenset({1, 2})
S = TransactionState


class Brokers:
    """The brokers that markers are sent to. Each partition's answers come from `errors`, one after the other."""

    def __init__(self) -> None:
        self.own: list[Marking] = []
        self.errors: dict[TopicPartition, list[ErrorCode]] = defaultdict(list)
        self.requests: list[tuple[int, Any]] = []
        self.away: set[int] = set()
        self.slow: asyncio.Event | None = None
        self.newest = 2  # the version of their requests
        self.asked_in: list[int] = []

    async def connect(self, host: str, port: int, *, timeout_s: float) -> Any:
        if host != HOST or port in self.away:
            raise ConnectionRefusedError
        return Connection(self, port)

    async def write_own(self, markings: list[Marking]) -> Outcomes:
        self.own += markings
        return {(each.producer_id, each.partition): self.answer(each.partition) for each in markings}

    def answer(self, partition: TopicPartition) -> ErrorCode:
        waiting = self.errors[partition]
        return waiting.pop(0) if waiting else ErrorCode.NONE

    def markers(self) -> list[tuple[int, int, int, bool, int, TopicPartition]]:
        """(broker, producer id, producer epoch, committed, coordinator epoch, partition) of each marker."""
        return [
            (
                broker, marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch,
                TopicPartition(topic.name, number),
            )
            for broker, request in self.requests
            for marker in request.markers
            for topic in marker.topics
            for number in topic.partition_indexes
        ]  # fmt: skip


class Connection:
    closed = False

    def __init__(self, brokers: Brokers, broker: int) -> None:
        self._brokers = brokers
        self._broker = broker

    async def call(self, request: Any, version: int) -> Any:
        if request.API_KEY == message("ApiVersionsRequest").API_KEY:
            answer = message("ApiVersionsResponse")
            known = answer.ApiVersion(api_key=markers.API_KEY, min_version=1, max_version=self._brokers.newest)
            return round_trip(answer(api_keys=[known]), version)
        self._brokers.asked_in.append(version)
        request = round_trip(request, version)
        self._brokers.requests.append((self._broker, request))
        if self._brokers.slow is not None:
            await self._brokers.slow.wait()
        kind = message("WriteTxnMarkersResponse").WritableTxnMarkerResult
        of_topic = kind.WritableTxnMarkerTopicResult
        answers = [
            kind(
                producer_id=marker.producer_id,
                topics=[
                    of_topic(
                        name=topic.name,
                        partitions=[
                            of_topic.WritableTxnMarkerPartitionResult(
                                partition_index=number,
                                error_code=self._brokers.answer(TopicPartition(topic.name, number)),
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
        return round_trip(message("WriteTxnMarkersResponse")(markers=answers), version)

    def close(self) -> None:
        self.closed = True


class Scene:
    """Brokers 1 and 2 have the one partition of the transaction log; the first leads it."""

    def __init__(self, cluster: Cluster, timeout_ms: int, config: TransactionConfig) -> None:
        self.cluster = cluster
        self.brokers = Brokers()
        self.version = 2
        self.own_broker = NO_BROKER  # whose markers are written without being sent
        self._config = config
        self._timeout_ms = timeout_ms
        self._ids = 1_000
        self._all: list[TransactionCoordinator] = []

    async def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def coordinator(self, node: Node) -> TransactionCoordinator:
        store = CoordinatorStore(
            TRANSACTIONS_TOPIC,
            node.replicas,
            RealClock(),
            timeout_ms=self._timeout_ms,
            load_bytes=1 << 20,
        )
        image = lambda: self.cluster.controller.image  # noqa: E731
        own = self.own_broker, self.brokers.write_own
        markers = MarkerSender(image, "PLAINTEXT", self.brokers, *own, timeout_s=5)
        made = TransactionCoordinator(store, markers, RealClock(), self._config, self._next_id, lambda: self.version)
        self._all.append(made)
        return made

    def follow_metadata(self, node: Node) -> TransactionCoordinator:
        coordinator = self.coordinator(node)
        leadership = TransactionLeadership(node.broker_id, coordinator)

        def publish(delta: MetadataDelta, image: MetadataImage) -> None:
            told(node.replication.roles.publish, delta, image)
            leadership.publish(delta, image)

        self.cluster.controller.replace(node.broker_id, publish)
        leadership.publish(at_once(whole(self.cluster.controller.image)), self.cluster.controller.image)
        return coordinator

    async def loaded(self, coordinator: TransactionCoordinator) -> TransactionCoordinator:
        await eventually(lambda: refusal(coordinator) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "it is loaded")
        return coordinator

    async def next_one(self) -> TransactionCoordinator:
        """A new coordinator on the same broker, which knows only what the log says."""
        for coordinator in self._all:
            coordinator.resign_all()
        coordinator = self.coordinator(self.cluster.nodes[1])
        coordinator.divide(1)
        coordinator.lead(0)
        return await self.loaded(coordinator)

    def close(self) -> None:
        for coordinator in self._all:
            coordinator.close()


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    timeout_ms: int = 20_000,
    config: TransactionConfig | None = None,
    topic: dict[str, str] | None = None,
) -> AsyncIterator[tuple[Scene, TransactionCoordinator]]:
    async with Cluster(folder) as cluster:
        nodes = await cluster.add(1, 2)
        cluster.controller.create_topic("t", [[1], [2]])
        cluster.controller.create_topic(TRANSACTIONS_TOPIC, [[1, 2]], topic)
        await eventually(lambda: cluster.isr(LOG) == {1, 2})
        made = Scene(cluster, timeout_ms, config or TransactionConfig(partitions=1))
        try:
            yield made, await made.loaded(made.follow_metadata(nodes[0]))
        finally:
            made.close()


def refusal(coordinator: TransactionCoordinator, name: str = "nobody") -> ErrorCode:
    try:
        coordinator.describe(name)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


async def error_of(asking: Any) -> ErrorCode:
    try:
        await asking
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


async def begun(coordinator: TransactionCoordinator, *partitions: TopicPartition, name: str = "x") -> ProducerIdentity:
    producer = await coordinator.initialize(name, 60_000, None)
    await coordinator.add_partitions(name, producer, partitions or [ON_1, ON_2], 0)
    return producer


async def is_in(coordinator: TransactionCoordinator, state: TransactionState, name: str = "x") -> None:
    await eventually(lambda: coordinator.describe(name).state is state, f"{name} is {state}")


async def test_the_end_is_told_to_the_leaders_of_all_partitions(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        producer = await begun(coordinator)
        assert coordinator.describe("x").state is S.ONGOING
        assert await coordinator.end("x", producer, True, 0) == producer
        await is_in(coordinator, S.COMPLETE_COMMIT)
        assert sorted(made.brokers.markers()) == [(1, *producer, True, 0, ON_1), (2, *producer, True, 0, ON_2)]
        assert coordinator.describe("x").partitions == frozenset()
        found = (await made.next_one()).describe("x")
        assert (found.state, found.producer) == (S.COMPLETE_COMMIT, producer)


async def test_a_producer_that_begins_the_next_one_early_waits_for_the_last_marker(tmp_path: Path) -> None:
    config = TransactionConfig(partitions=1, busy_patience_ms=60_000)
    async with scene(tmp_path, config=config) as (made, coordinator):
        made.brokers.slow = asyncio.Event()
        producer = await begun(coordinator)
        await coordinator.end("x", producer, True, 0)
        early = [asyncio.create_task(coordinator.add_partitions_when_free("x", producer, [p], 0)) for p in (ON_1, ON_2)]
        await eventually(lambda: made.brokers.requests, "markers are under way")
        assert await error_of(coordinator.add_partitions("x", producer, [ON_1], 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
        made.brokers.slow.set()
        async with asyncio.timeout(5):
            await asyncio.gather(*early)
        assert coordinator.describe("x").partitions == {ON_1, ON_2}
        assert coordinator._changes == {}


async def test_those_who_wait_for_the_same_change_do_not_wake_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TransactionConfig(partitions=1, busy_patience_ms=60_000)
    async with scene(tmp_path, config=config) as (made, coordinator):
        made.brokers.slow = asyncio.Event()
        producer = await begun(coordinator)
        await coordinator.end("x", producer, True, 0)
        asked, add = [0], coordinator.add_partitions

        async def counting(
            name: str, producer: ProducerIdentity, partitions: Collection[TopicPartition], client_version: int
        ) -> None:
            asked[0] += 1
            await add(name, producer, partitions, client_version)

        monkeypatch.setattr(coordinator, "add_partitions", counting)
        early = [asyncio.create_task(coordinator.add_partitions_when_free("x", producer, [p], 0)) for p in (ON_1, ON_2)]
        await eventually(lambda: asked[0] >= 2, "both wait")
        coordinator._changed("x")  # as by a change that leaves it busy
        for _ in range(50):
            await asyncio.sleep(0)
        assert asked[0] == 4, "each looked again, once"
        made.brokers.slow.set()
        async with asyncio.timeout(5):
            await asyncio.gather(*early)


async def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    config = TransactionConfig(partitions=1, busy_patience_ms=20)
    async with scene(tmp_path, config=config) as (made, coordinator):
        made.brokers.slow = asyncio.Event()
        producer = await begun(coordinator)
        await coordinator.end("x", producer, True, 0)
        told = await error_of(coordinator.add_partitions_when_free("x", producer, [ON_1], 0))
        assert told is ErrorCode.CONCURRENT_TRANSACTIONS
        assert coordinator._changes == {}
        made.brokers.slow.set()


async def test_markers_of_this_brokers_own_partitions_are_not_sent(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, _):
        made.own_broker = 1
        coordinator = await made.next_one()
        made.brokers.errors[ON_1] = [ErrorCode.NOT_ENOUGH_REPLICAS]
        producer = await begun(coordinator)
        await coordinator.end("x", producer, True, 0)
        await is_in(coordinator, S.COMPLETE_COMMIT)
        refused, taken = made.brokers.own
        assert refused == taken == Marking(*producer, taken.coordinator_epoch, True, 0, ON_1)
        assert taken.coordinator_epoch >= 0
        assert [(each[0], each[5]) for each in made.brokers.markers()] == [(2, ON_2)]


@pytest.mark.parametrize(("newest", "told"), [(2, 2), (1, 0)])
async def test_markers_say_whether_the_end_raises_the_epoch_to_brokers_that_know_of_it(
    tmp_path: Path, newest: int, told: int
) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.brokers.newest = newest
        producer = await begun(coordinator)
        await coordinator.end("x", producer, True, 2)
        await is_in(coordinator, S.COMPLETE_COMMIT)
        assert set(made.brokers.asked_in) == {newest}
        assert {each.transaction_version for _, asked in made.brokers.requests for each in asked.markers} == {told}


async def test_an_end_that_is_in_the_log_is_carried_out_by_whoever_leads_it_next(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        second = made.follow_metadata(made.cluster.nodes[2])
        made.brokers.away = {1, 2}
        producer = await begun(coordinator)
        bumped = await coordinator.end("x", producer, True, 2)
        assert bumped == (producer.producer_id, producer.epoch + 1)
        assert coordinator.describe("x").state is S.PREPARE_COMMIT
        assert await error_of(coordinator.initialize("x", 60_000, None)) is ErrorCode.CONCURRENT_TRANSACTIONS
        await made.cluster.nodes[1].crash()
        made.brokers.away = {1}
        await made.loaded(second)
        await eventually(lambda: second.describe("x").partitions == {ON_1}, "the one partition that has a leader")
        assert [(each[0], each[3], each[5]) for each in made.brokers.markers()] == [(2, True, ON_2)]
        assert [each[4] for each in made.brokers.markers()] == [1]  # the second epoch of the log's leader
        made.cluster.controller.delete_topic("t")  # what is gone needs no marker
        await is_in(second, S.COMPLETE_COMMIT)
        assert await second.end("x", producer, True, 2) == bumped  # the client never heard of it


async def test_one_that_leads_the_log_no_longer_sends_nothing_and_answers_for_nobody(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.brokers.away = {1, 2}
        await coordinator.end("x", await begun(coordinator), False, 0)
        coordinator.resign(0)
        made.brokers.away = set()
        assert refusal(coordinator, "x") is ErrorCode.NOT_COORDINATOR
        another = await made.next_one()
        await is_in(another, S.COMPLETE_ABORT)
        assert len(made.brokers.markers()) == 2


async def test_markers_that_are_refused_for_a_while_are_sent_again(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        passing = [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_ENOUGH_REPLICAS,
        ]
        made.brokers.errors[ON_2] = [*passing]
        producer = await begun(coordinator)
        await coordinator.end("x", producer, False, 0)
        await eventually(lambda: coordinator.describe("x").partitions == {ON_2}, "the other one has its marker")
        assert await error_of(coordinator.end("x", producer, False, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
        await is_in(coordinator, S.COMPLETE_ABORT)
        sent = [each[5] for each in made.brokers.markers()]
        assert (sent.count(ON_1), sent.count(ON_2)) == (1, len(passing) + 1)


async def test_a_leader_that_does_not_answer_is_not_waited_for_when_there_is_another(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.cluster.controller.create_topic("moving", [[2, 1]])
        moving = TopicPartition("moving", 0)
        await eventually(lambda: made.cluster.isr(moving) == {1, 2})
        made.brokers.slow = asyncio.Event()
        await coordinator.end("x", await begun(coordinator, moving), True, 0)
        await eventually(lambda: made.brokers.requests, "broker 2 is asked")
        made.brokers.slow = None  # whoever is asked from now on answers
        made.cluster.controller.lose(2)
        await is_in(coordinator, S.COMPLETE_COMMIT)
        assert [(each[0], each[5]) for each in made.brokers.markers()] == [(2, moving), (1, moving)]


async def test_a_coordinator_that_is_fenced_stops(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.brokers.errors[ON_1] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        made.brokers.errors[ON_2] = [ErrorCode.NOT_ENOUGH_REPLICAS]
        await coordinator.end("x", await begun(coordinator), True, 0)
        await eventually(lambda: coordinator.describe("x").partitions == {ON_1}, "the other one has its marker")
        assert [each[5] for each in made.brokers.markers()].count(ON_1) == 1
        assert coordinator.describe("x").state is S.PREPARE_COMMIT


async def test_markers_for_a_broker_that_come_while_it_is_asked_go_together(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.brokers.slow = asyncio.Event()
        producers = [await begun(coordinator, ON_1, name=f"x{number}") for number in range(4)]
        for number, producer in enumerate(producers):
            await coordinator.end(f"x{number}", producer, True, 0)
        await eventually(lambda: made.brokers.requests, "the first is sent")
        made.brokers.slow.set()
        for number in range(4):
            await is_in(coordinator, S.COMPLETE_COMMIT, f"x{number}")
        assert [len(request.markers) for _, request in made.brokers.requests] == [1, 3]


async def test_while_a_change_is_not_committed_nothing_else_is_done(tmp_path: Path) -> None:
    """The change takes effect when it is committed, even if the client's request has timed out by then."""
    async with scene(tmp_path, timeout_ms=300) as (made, coordinator):
        producer = await coordinator.initialize("x", 60_000, None)
        made.cluster.cuts.add(LINK)
        adding = coordinator.add_partitions("x", producer, [ON_1], 0)
        assert await error_of(adding) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.describe("x").state is S.EMPTY
        for asking in (
            coordinator.add_partitions("x", producer, [ON_1], 0),
            coordinator.end("x", producer, False, 0),
            coordinator.initialize("x", 60_000, None),
        ):
            assert await error_of(asking) is ErrorCode.CONCURRENT_TRANSACTIONS
        made.cluster.cuts.clear()
        await is_in(coordinator, S.ONGOING)
        assert coordinator.describe("x").partitions == {ON_1}


async def test_a_completion_that_took_too_long_is_not_written_again_for_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction's markers are not written yet: no coordinator would ever send them."""
    monkeypatch.setattr(transaction_service, "FIRST_PAUSE_S", 1.0)
    async with scene(tmp_path, timeout_ms=300) as (made, coordinator):
        producer = await begun(coordinator, ON_1)
        made.brokers.slow = asyncio.Event()
        assert await coordinator.end("x", producer, True, 0) == producer
        made.cluster.cuts.add(LINK)
        made.brokers.slow.set()
        await asyncio.sleep(0.5)  # it took too long, and is to be looked at again after a pause
        made.cluster.cuts.clear()
        await is_in(coordinator, S.COMPLETE_COMMIT)
        made.brokers.slow = asyncio.Event()
        await coordinator.add_partitions("x", producer, [ON_2], 0)
        assert await coordinator.end("x", producer, True, 0) == producer
        await asyncio.sleep(1.0)
        assert coordinator.describe("x").state is S.PREPARE_COMMIT
        assert coordinator.describe("x").partitions == {ON_2}
        made.brokers.slow.set()
        await is_in(coordinator, S.COMPLETE_COMMIT)


async def test_nobody_is_answered_before_all_that_was_read_is_committed(tmp_path: Path) -> None:
    """The next leader might lack it, and the producer would write to a partition that is in no transaction."""
    async with scene(tmp_path, timeout_ms=200) as (made, coordinator):
        producer = await coordinator.initialize("x", 60_000, None)
        made.cluster.cuts.add(LINK)
        await error_of(coordinator.add_partitions("x", producer, [ON_1], 0))
        coordinator.resign(0)
        another = made.coordinator(made.cluster.nodes[1])
        another.divide(1)
        another.lead(0)
        await eventually(lambda: refusal(another) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for _ in range(200):
            await asyncio.sleep(0)
        assert refusal(another) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        made.cluster.cuts.clear()
        await made.loaded(another)
        assert another.describe("x").state is S.ONGOING


async def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    config = TransactionConfig(partitions=1, abort_interval_ms=5)
    async with scene(tmp_path, config=config) as (made, coordinator):
        looking = asyncio.get_running_loop().create_task(coordinator.abort_those_too_long())
        producer = await coordinator.initialize("x", 1, None)
        await coordinator.add_partitions("x", producer, [ON_1], 0)
        await is_in(coordinator, S.COMPLETE_ABORT)
        assert made.brokers.markers() == [(1, producer.producer_id, producer.epoch + 1, False, 0, ON_1)]
        assert await error_of(coordinator.end("x", producer, True, 0)) is ErrorCode.PRODUCER_FENCED
        looking.cancel()


async def test_a_transaction_that_is_ended_just_when_it_takes_too_long_has_one_end(tmp_path: Path) -> None:
    """What happens between the timeout check and the abort counts."""
    config = TransactionConfig(partitions=1, abort_interval_ms=10)
    async with scene(tmp_path, config=config) as (_, coordinator):
        producer = await coordinator.initialize("x", 1, None)
        await coordinator.add_partitions("x", producer, [ON_1], 2)
        ending: list[asyncio.Task[ErrorCode]] = []

        def look() -> int:
            if not ending:
                ending.append(asyncio.create_task(error_of(coordinator.end("x", producer, True, 2))))
            return 2

        coordinator._version = look  # asked when it decides
        aborting = asyncio.create_task(coordinator.abort_those_too_long())
        await eventually(lambda: ending and ending[0].done(), "it is ended")
        aborting.cancel()
        assert ending[0].result() is ErrorCode.NONE
        await is_in(coordinator, S.COMPLETE_COMMIT)


async def test_an_id_that_nobody_uses_is_forgotten_for_good(tmp_path: Path) -> None:
    config = TransactionConfig(partitions=1, id_expiration_ms=-1, expiry_interval_ms=5)
    async with scene(tmp_path, config=config) as (made, coordinator):
        producers = [await begun(coordinator, ON_1, name="open"), await coordinator.initialize("x", 60_000, None)]
        forgetting = asyncio.get_running_loop().create_task(coordinator.forget_unused())
        await eventually(lambda: refusal(coordinator, "x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        forgetting.cancel()
        another = await made.next_one()
        assert refusal(another, "x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert another.describe("open").producer == producers[0]
        adding = another.add_partitions("x", producers[1], [ON_1], 0)
        assert await error_of(adding) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await another.initialize("x", 60_000, None)).producer_id not in {each.producer_id for each in producers}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_what_is_stored_is_what_is_loaded(tmp_path: Path, version: int) -> None:
    async with scene(tmp_path) as (made, coordinator):
        made.version = version
        await begun(coordinator)
        before = coordinator.describe("x")
        found = (await made.next_one()).describe("x")
        assert (found.producer, found.state, found.partitions) == (before.producer, before.state, before.partitions)
        assert (found.started_ms, found.timeout_ms) == (before.started_ms, before.timeout_ms)


async def test_a_log_that_was_deleted_takes_all_ids_with_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        await begun(coordinator)
        made.cluster.controller.delete_topic(TRANSACTIONS_TOPIC)
        assert refusal(coordinator, "x") is ErrorCode.NOT_COORDINATOR
        made.cluster.controller.create_topic(TRANSACTIONS_TOPIC, [[1, 2]])
        await made.loaded(coordinator)
        assert refusal(coordinator, "x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    async with scene(tmp_path) as (made, coordinator):
        producer = await begun(coordinator)
        odd = [(key_of("odd"), b"\0\1what"), (b"\0", b""), (b"\0\7kind", b"x"), (key_of("odd"), b"\0\x09")]
        batch = encode_batch([Record(key, value, 1) for key, value in odd])
        made.cluster.nodes[1].replicas.append(LOG, None, batch, -1, origin="coordinator")
        another = await made.next_one()
        assert [each.transactional_id for each in another.list_all()] == ["x"]
        assert another.describe("x").producer == producer


async def test_what_is_asked_wrongly_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as (_, coordinator):
        for name, timeout_ms, error in (
            ("", 1, ErrorCode.INVALID_REQUEST),
            ("x", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("x", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ):
            assert await error_of(coordinator.initialize(name, timeout_ms, None)) is error
        for asking in (coordinator.add_partitions("x", NOBODY, [ON_1], 0), coordinator.end("x", NOBODY, True, 0)):
            assert await error_of(asking) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
