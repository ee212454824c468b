"""Neither many logs nor many connections use up the file descriptors that opening a log needs: that would look like a
disk failure, and stop the broker."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from e2e.clients import QUIET
from e2e.processes import CLUSTER_ID, BrokerProcess, free_ports

from ballast_broker.handles import FOR_ALL_ELSE, MOST_FOR_LOGS, shares

pytestmark = pytest.mark.timeout(180)
PARTITIONS = 250


@pytest.mark.parametrize("limit", [64, 256, 1024, 20_000, 1_048_576])
def test_all_shares_together_are_within_the_limit(limit: int) -> None:
    found = shares(limit)
    assert min(found) > 0
    assert sum(found) + min(FOR_ALL_ELSE, limit // 3) <= limit
    assert found.logs == MOST_FOR_LOGS or found.logs >= limit // 4


@contextlib.contextmanager
def broker(folder: Path, handles: str) -> Iterator[BrokerProcess]:
    port, controller = free_ports(2)
    properties = {
        "cluster.id": CLUSTER_ID,
        "process.roles": "broker,controller",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
    }
    found = BrokerProcess(folder, 0, port, properties)
    found.module = "tests.broker.net.few_handles"
    found.environment = {"BALLAST_TEST_HANDLES": handles}
    found.start()
    try:
        found.wait_ready()
        yield found
    finally:
        found.kill()
        print(*found.last_lines(), sep="\n")  # shown where the test fails


def producer_of(address: str) -> Producer:
    admin = AdminClient({**QUIET, "bootstrap.servers": address})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(60)
    return Producer({**QUIET, "bootstrap.servers": address, "acks": "all", "message.timeout.ms": 60_000})


def write_to(producer: Producer, partitions: Iterable[int]) -> list[object]:
    told: list[object] = []
    for number in partitions:
        producer.produce("t", b"x", partition=number, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(60) == 0
    return [error for error in told if error is not None]


@pytest.mark.spec("LOG-33")
@pytest.mark.parametrize("handles", ["200", "200 200"])
def test_more_logs_are_written_to_than_may_be_open(tmp_path: Path, handles: str) -> None:
    with broker(tmp_path, handles) as found:
        assert write_to(producer_of(found.address), range(PARTITIONS)) == []
        told = any("hard limit of open files is low" in line for line in found.last_lines(10_000))
        assert told is (handles == "200 200")


@pytest.mark.spec("CLI-09")
def test_a_crowd_of_connections_takes_no_disk_away(tmp_path: Path) -> None:
    with broker(tmp_path, "300 300") as found, contextlib.ExitStack() as crowd:
        producer = producer_of(found.address)
        assert write_to(producer, [0]) == []
        with contextlib.suppress(TimeoutError):  # by then nobody more gets in
            for _ in range(1000):
                crowd.enter_context(socket.create_connection(("127.0.0.1", found.port), timeout=1))
            pytest.fail("a thousand connections were let in")
        assert write_to(producer, range(PARTITIONS)) == []


def limit_of(process: BrokerProcess, soft: int) -> None:
    hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.spec("LOG-35")
def test_a_broker_without_handles_keeps_its_disk_and_does_later_what_it_was_asked(tmp_path: Path) -> None:
    with broker(tmp_path, "400 400") as found:
        admin = AdminClient({**QUIET, "bootstrap.servers": found.address})
        small = {"segment.bytes": str(1 << 20), "index.interval.bytes": "0"}
        admin.create_topics([NewTopic("t", 4, 1, config=small)])["t"].result(60)
        producer = Producer({**QUIET, "bootstrap.servers": found.address, "enable.idempotence": True})
        for number in range(4):
            producer.produce("t", b"0", partition=number)
        assert producer.flush(60) == 0
        told: list[object] = []
        limit_of(found, 0)  # from now on nothing more is opened
        for each in range(1, 101):
            producer.produce(
                "t", b"%d" % each * 30_000, partition=each % 4, on_delivery=lambda error, _: told.append(error)
            )
            producer.flush(0.01)
        creating = admin.create_topics([NewTopic("later", 1, 1)])["later"]
        deadline = time.monotonic() + 60
        while not any("raise its limit" in line for line in found.last_lines(10_000)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(told) < 100, "segments were begun without a handle"
        limit_of(found, 400)
        creating.result(60)
        assert producer.flush(60) == 0
        assert told == [None] * 100
        assert not [line for line in found.last_lines(10_000) if "is offline" in line]
        settings = {"group.id": "g", "enable.auto.commit": False}
        consumer = Consumer({**QUIET, "bootstrap.servers": found.address, **settings})
        try:
            for number in range(4):
                sent = [b"0", *(b"%d" % each * 30_000 for each in range(1, 101) if each % 4 == number)]
                assert read_from(consumer, number, len(sent)) == sent
        finally:
            consumer.close()
        assert producer_sends(found.address, "later") is None


def read_from(consumer: Consumer, number: int, count: int) -> list[bytes | None]:
    consumer.assign([TopicPartition("t", number, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value())
    end = consumer.get_watermark_offsets(TopicPartition("t", number), timeout=60)[1]
    return values if end == len(values) else [*values, b"and more"]


def producer_sends(address: str, topic: str) -> object:
    told: list[object] = []
    producer = Producer({**QUIET, "bootstrap.servers": address, "message.timeout.ms": 60_000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(60)
    return told[0]
