"""Consume, transform, produce across three brokers, while the transactions' coordinator is killed again and again.

What a reader of committed records finds in the sink is what is in the source, each record once, in its order.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from e2e.asking import ask, message
from e2e.clients import QUIET, place_of, value_of
from e2e.processes import BrokerProcess, Cluster, until
from tests.apache_java import compiled, java

from ballast_broker.coordinator.service import partition_for

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-05")]

PARTITIONS = 3
KILLS = 3
PROGRESS = 200  # records that come through before, and while, a broker is away
PATIENCE_S = 60.0
STALLED_S = 8.0
GROUP = "transformer"
TRANSACTION_PARTITIONS = 4
PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
    "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
}


class Transformer(threading.Thread):
    """librdkafka's way, watched: it may wait for ever to commit offsets to a broker that is away, its timeout or not.

    Then another one takes over, and the first finds itself fenced if it ever goes on.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._brokers = bootstrap
        self.ended = threading.Event()

    def run(self) -> None:
        worker = Worker(self._brokers)
        worker.start()
        while not self.ended.wait(0.2):
            if time.monotonic() - worker.was_seen_s > STALLED_S:
                worker.ended.set()
                worker = Worker(self._brokers)
                worker.start()
        worker.ended.set()
        worker.join(PATIENCE_S)

    def end(self) -> None:
        self.ended.set()
        self.join(PATIENCE_S)


class Worker(threading.Thread):
    """Whatever goes wrong, it begins anew with what was committed."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._common = {**QUIET, "bootstrap.servers": bootstrap, "socket.timeout.ms": 3000}
        self.was_seen_s = time.monotonic()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            self.was_seen_s = time.monotonic()
            with contextlib.suppress(KafkaException):
                self._transform()

    def _transform(self) -> None:
        settings = {"transactional.id": GROUP, "linger.ms": 2, "transaction.timeout.ms": 20_000}
        producer = Producer(self._common | settings)
        consumer = Consumer(
            self._common
            | {"group.id": GROUP, "enable.auto.commit": False, "isolation.level": "read_committed"}
            | {"auto.offset.reset": "earliest"}
        )
        try:
            producer.init_transactions(STALLED_S)
            places = [TopicPartition("source", number) for number in range(PARTITIONS)]
            for place in consumer.committed(places, 10):
                place.offset = max(place.offset, 0)
                consumer.incremental_assign([place])
            while not self.ended.is_set():
                self._one(producer, consumer)
        finally:
            consumer.close()

    def _one(self, producer: Producer, consumer: Consumer) -> None:
        self.was_seen_s = time.monotonic()
        messages = [each for each in consumer.consume(50, 0.2) if each.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for each in messages:
            producer.produce("sink", each.value(), partition=place_of(each)[0])
        ends = {partition: offset + 1 for partition, offset in map(place_of, messages)}
        offsets = [TopicPartition("source", partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(20)


class JavaTransformer:
    """Apache Kafka's, in a process of its own."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(__file__).with_name("Transformer.java")
        command = java(program.stem, self._bootstrap, "source", "sink", GROUP, classes=[compiled(program)])
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        assert self._process is not None
        was_there = self._process.poll() is None
        self._process.kill()
        self._process.wait(PATIENCE_S)
        assert was_there, "it was fenced, or gave up"


class Feeding(threading.Thread):
    """Fills the source, slowly, as long as it is to."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2}
            | {"message.timeout.ms": 0, "socket.timeout.ms": 3000}
        )
        self.ended = threading.Event()
        self.fed = 0

    def run(self) -> None:
        while not self.ended.wait(0.01):
            for _ in range(6):
                self._producer.produce("source", b"%d" % (self.fed // PARTITIONS), partition=self.fed % PARTITIONS)
                self.fed += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def end(self) -> None:
        self.ended.set()
        self.join(PATIENCE_S)


class Sink:
    """What a reader of committed records has seen, by partition."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "socket.timeout.ms": 3000, **settings})
        self._consumer.assign([TopicPartition("sink", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        self.found: dict[int, list[int]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def has_more(self) -> bool:
        wanted = self.count + PROGRESS
        return until(lambda: self.has(wanted), PATIENCE_S)

    def has(self, count: int) -> bool:
        for each in self._consumer.consume(500, 0.1):
            if each.error() is None:
                self.found[place_of(each)[0]].append(int(value_of(each)))
        return self.count >= count

    def close(self) -> None:
        self._consumer.close()


@contextlib.contextmanager
def ended(*threads: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for each in threads:
            each.end()


def partition_state(broker: BrokerProcess) -> Any:
    """Of the partition of the transaction log that the transformer's id is in."""
    kind = message("MetadataRequest")
    topic = kind.MetadataRequestTopic(name="__transaction_state")
    answer = ask(broker.address, kind(topics=[topic], allow_auto_topic_creation=False), 4)
    wanted = partition_for(GROUP, TRANSACTION_PARTITIONS)
    return next((each for each in answer.topics[0].partitions if each.partition_index == wanted), None)


def coordinator(cluster: Cluster) -> BrokerProcess:
    leader = partition_state(cluster.brokers[0]).leader_id
    return cluster.brokers[leader - 1]


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("source", "sink")]).values():
        future.result(PATIENCE_S)


@pytest.mark.parametrize("kind", [Transformer, JavaTransformer])
def test_exactly_once_over_the_death_of_coordinators(tmp_path: Path, kind: Callable[[str], Any]) -> None:
    with Cluster(tmp_path, 3, PROPERTIES) as cluster:
        cluster.start()
        create_topics(cluster.bootstrap)
        transformer, feeding, sink = kind(cluster.bootstrap), Feeding(cluster.bootstrap), Sink(cluster.bootstrap)
        with contextlib.closing(sink), ended(feeding, transformer):
            feeding.start()
            transformer.start()
            killed = set()
            for number in range(KILLS):
                assert sink.has_more(), f"before kill {number}"
                victim = coordinator(cluster)
                victim.kill()
                killed.add(victim.node_id)
                assert sink.has_more(), f"with broker {victim.node_id} away"
                victim.start()
                victim.wait_ready()
                assert until(lambda: len(partition_state(victim).isr_nodes) == 3, PATIENCE_S)  # noqa: B023
            feeding.end()
            assert until(lambda: sink.has(feeding.fed), PATIENCE_S), f"{sink.count} of {feeding.fed} came through"
        assert len(killed) > 1
        for partition in range(PARTITIONS):
            expected = len(range(partition, feeding.fed, PARTITIONS))
            assert sink.found[partition] == list(range(expected))
        cluster.stop()
        complaints = [line for broker in cluster.brokers for line in broker.complaints()]
        assert not complaints, complaints
