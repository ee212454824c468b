"""Spark's own source and sink on three brokers, while its driver is killed, a leader is, and partitions come.

From one topic into files, where each committed record is found once, and into another topic, where each is found.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from e2e.clients import QUIET, value_of
from e2e.processes import BrokerProcess, Cluster, until
from tests.clients.running_spark import Record, RunningSpark
from tests.clients.test_librdkafka import from_beginning
from tests.clients.test_spark import headers_of, in_order, text

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.spec("CLI-03")]

PARTITIONS, MORE_PARTITIONS, COPIES = 8, 12, 3
PROGRESS = 120  # records that come through before, and while, something is away
IN_TRANSACTION = 4  # partitions: the others go on while one is open
PATIENCE_S = 60.0
READER = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
}


class Feeding(threading.Thread):
    """Fills the source, slowly, as long as it is to; into more partitions once there are."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2}
            | {"message.timeout.ms": 0, "socket.timeout.ms": 3000, "topic.metadata.refresh.interval.ms": 500}
        )
        self.ended = threading.Event()
        self.partitions = PARTITIONS
        self.values: list[str] = []

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for _ in range(3):
                number = len(self.values)
                self.values.append(f"fed {number}")
                self._producer.produce(
                    "source", self.values[-1], f"key {number % 50}", number % self.partitions, headers=headers(number)
                )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def sees(self, partitions: int) -> bool:
        topic = self._producer.list_topics("source", PATIENCE_S).topics["source"]
        return len(topic.partitions) == partitions and all(each.leader > 0 for each in topic.partitions.values())

    def end(self) -> None:
        self.ended.set()
        self.join(PATIENCE_S)


def headers(number: int) -> list[tuple[str, str | bytes | None]]:
    return [("number", str(number)), ("nothing", None)]


class Transactions:
    """Some values of each transaction go into every one of the first partitions."""

    def __init__(self, bootstrap: str, name: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap, "transactional.id": name, "socket.timeout.ms": 3000,
            "transaction.timeout.ms": 600_000,  # one of them is open for as long as the test wants
        }  # fmt: skip
        self._name = name
        self._producer = Producer({**QUIET, **settings})
        self._producer.init_transactions(PATIENCE_S)
        self._count = 0
        self.committed: list[str] = []
        self._open: list[str] = []

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._open = [f"{self._name} {self._count} {number}" for number in range(IN_TRANSACTION)]
        self._count += 1
        for number, value in enumerate(self._open):
            self._producer.produce("source", value, partition=number, headers=headers(number))
        assert self._producer.flush(PATIENCE_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)
        self.committed += self._open

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def some(self) -> None:
        for number in range(6):
            self.begin()
            if number % 2:
                self.commit()
            else:
                self.abort()


class Copies:
    """What has come through into the other topic."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "socket.timeout.ms": 3000, **READER})
        self._consumer.assign(from_beginning("copy", COPIES))
        self.values: set[str] = set()

    def has_more(self) -> bool:
        wanted = len(self.values) + PROGRESS
        return until(lambda: self._look() >= wanted, PATIENCE_S)

    def has(self, value: str) -> bool:
        return until(lambda: self._look() > 0 and value in self.values, PATIENCE_S)

    def _look(self) -> int:
        self.values.update(value_of(each).decode() for each in self._consumer.consume(500, 0.1) if each.error() is None)
        return len(self.values)

    def close(self) -> None:
        self._consumer.close()


def whole(bootstrap: str, topic: str, partitions: int) -> list[Record]:
    """All committed records, as another client finds them."""
    reader = Consumer({**QUIET, "bootstrap.servers": bootstrap, "enable.partition.eof": True, **READER})
    reader.assign(from_beginning(topic, partitions))
    found: list[Record] = []
    ended: set[int] = set()

    def reaches_the_end() -> bool:
        for each in reader.consume(1000, 0.1):
            error, partition = each.error(), each.partition()
            if error is None:
                found.append(as_record(each))
            elif error.code() == KafkaError._PARTITION_EOF:
                assert partition is not None
                ended.add(partition)
        return len(ended) == partitions

    assert until(reaches_the_end, PATIENCE_S)
    reader.close()
    return found


def as_record(message: Message) -> Record:
    """As Spark makes rows of them."""
    return {
        "topic": message.topic(), "partition": message.partition(), "offset": message.offset(),
        "key": text(message.key()), "value": text(message.value()),
        "headers": headers_of(message),
        "timestamp_ms": message.timestamp()[1], "timestampType": 0,
    }  # fmt: skip


class Queries:
    """The two, with their checkpoints, in whichever driver runs now."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._source = {
            "kafka.bootstrap.servers": bootstrap, "subscribe": "source", "startingOffsets": "earliest",
            "includeHeaders": "true", "kafka.isolation.level": "read_committed", "kafka.request.timeout.ms": "5000",
            "maxOffsetsPerTrigger": "1000", "kafka.fetch.max.wait.ms": "20",
        }  # fmt: skip
        self.files = folder / "files"
        self._checkpoint = folder / "checkpoint"
        self._sinks = {
            "parquet": {"path": str(self.files)},
            "kafka": {"kafka.bootstrap.servers": bootstrap, "topic": "copy"},
        }

    def start(self, driver: RunningSpark) -> None:
        for form, sink in self._sinks.items():
            options = {**sink, "checkpointLocation": str(self._checkpoint / form)}
            driver.do("stream", name=form, source=self._source, form=form, sink=options, trigger={})

    def drain(self, driver: RunningSpark) -> None:
        for form in self._sinks:
            driver.do("drain", name=form)

    def kill_in_the_middle(self, driver: RunningSpark) -> None:
        """Of a batch of each query, which has begun and is not committed."""

        def is_in_the_middle() -> bool:
            driver.pause()
            if all(self._last(form, "offsets") > self._last(form, "commits") for form in self._sinks):
                return True
            driver.resume()
            return False

        assert until(is_in_the_middle, PATIENCE_S)
        driver.kill()

    def _last(self, form: str, what: str) -> int:
        names = [path.name for path in (self._checkpoint / form / what).iterdir()]
        return max((int(name) for name in names if name.isdigit()), default=-1)


def create_topics(bootstrap: str) -> AdminClient:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    topics = [NewTopic("source", PARTITIONS, 3), NewTopic("copy", COPIES, 3)]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    return admin


def leader(admin: AdminClient, cluster: Cluster) -> BrokerProcess:
    """Of the first partition."""
    return cluster.brokers[admin.list_topics("source", PATIENCE_S).topics["source"].partitions[0].leader - 1]


def all_in_sync(admin: AdminClient) -> bool:
    topics = admin.list_topics(timeout=PATIENCE_S).topics.values()
    return all(len(each.isrs) == 3 for topic in topics for each in topic.partitions.values())


def test_exactly_once_into_files_and_at_least_once_into_a_topic(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, PROPERTIES) as cluster:
        cluster.start()
        admin = create_topics(cluster.bootstrap)
        feeding, copies = Feeding(cluster.bootstrap), Copies(cluster.bootstrap)
        transactions, lasting = Transactions(cluster.bootstrap, "some"), Transactions(cluster.bootstrap, "lasting")
        queries = Queries(cluster.bootstrap, tmp_path)
        with contextlib.closing(copies), ended(feeding):
            feeding.start()
            transactions.some()
            lasting.begin()
            transactions.some()
            with RunningSpark(tmp_path / "driver.log") as driver:
                queries.start(driver)
                assert copies.has_more()
                queries.kill_in_the_middle(driver)
            with RunningSpark(tmp_path / "driver.log") as driver:
                queries.start(driver)
                assert copies.has_more()
                victim = leader(admin, cluster)
                victim.kill()
                assert copies.has_more(), f"with broker {victim.node_id} away"
                victim.start()
                victim.wait_ready()
                assert until(lambda: all_in_sync(admin), PATIENCE_S)
                admin.create_partitions([NewPartitions("source", MORE_PARTITIONS)])["source"].result(PATIENCE_S)
                assert until(lambda: feeding.sees(MORE_PARTITIONS), PATIENCE_S)
                feeding.partitions = MORE_PARTITIONS
                transactions.some()
                lasting.commit()
                assert copies.has(transactions.committed[-1])
                feeding.end()
                queries.drain(driver)
                files = driver.do("files", path=str(queries.files))
        source = whole(cluster.bootstrap, "source", MORE_PARTITIONS)
        assert {each["partition"] for each in source} == set(range(MORE_PARTITIONS))
        sent = sorted([*feeding.values, *transactions.committed, *lasting.committed])
        assert sorted(each["value"] for each in source) == sent
        assert in_order(files) == in_order(source)
        assert contents(whole(cluster.bootstrap, "copy", COPIES)) == contents(source)
        complaints = [line for broker in cluster.brokers for line in broker.complaints()]
        assert not complaints, complaints


def contents(records: list[Record]) -> set[tuple[str, str, str]]:
    """What a sink that may write twice must have of each."""
    return {(each["key"], each["value"], str(each["headers"])) for each in records}


@contextlib.contextmanager
def ended(feeding: Feeding) -> Iterator[None]:
    try:
        yield
    finally:
        feeding.end()
