"""Clients written by others read from the replica in their rack, and go back to the leader when it is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from e2e.clients import QUIET
from tests.clients.test_java_tools import run
from tests.moves.brokers import PATIENCE_S, Brokers, eventually, metric

from ballast_broker.config.broker_properties import RACK_AWARE_SELECTOR

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("REP-08")]

LEADER, NEAR = 0, 1
RECORDS = 2000


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    properties = {"replica_selector_class": RACK_AWARE_SELECTOR, "metrics_port": "0"}
    with Brokers(tmp_path, 2, (LEADER, NEAR), racks=("far", "near"), **properties) as running:
        running.create("orders", [[LEADER, NEAR]])
        running.produce("orders", [0], RECORDS / 1000)
        yield running


def served(brokers: Brokers, node_id: int) -> float:
    """Bytes of the topic that were fetched from this broker, by the other one as well."""
    lines = metric(brokers[node_id], "ballast_partition_bytes_out_total")
    return sum(float(line.split()[-1]) for line in lines if "orders" in line)


def consume(consumer: Consumer, count: int) -> int:
    read = 0
    deadline = time.monotonic() + PATIENCE_S
    while read < count and time.monotonic() < deadline:
        read += sum(message.error() is None for message in consumer.consume(count - read, 0.1))
    return read


def test_the_java_consumer_reads_in_its_rack(brokers: Brokers, tmp_path: Path) -> None:
    before = served(brokers, LEADER)
    config = tmp_path / "consumer.properties"
    config.write_text("client.rack=near\n")
    read = run(
        "consumer-perf-test", "--bootstrap-server", brokers.bootstrap, "--topic", "orders", "--messages", RECORDS,
        "--timeout", 60_000, "--consumer.config", config,
    )  # fmt: skip
    assert read.splitlines()[-1].split(", ")[4] == str(RECORDS)
    assert served(brokers, NEAR) >= RECORDS * 1000
    assert served(brokers, LEADER) == before


def test_librdkafka_reads_in_its_rack_and_from_the_leader_when_that_replica_is_gone(brokers: Brokers) -> None:
    before = served(brokers, LEADER)
    settings = {"client.rack": "near", "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**QUIET, "bootstrap.servers": brokers.bootstrap, **settings})
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, RECORDS) == RECORDS
        assert served(brokers, NEAR) >= RECORDS * 1000
        assert served(brokers, LEADER) == before
        brokers[NEAR].kill()
        eventually(lambda: isr(brokers) == [LEADER], "the dead broker has left")
        brokers.produce("orders", [0], 0.1)
        assert consume(consumer, 100) == 100
    finally:
        consumer.close()


def isr(brokers: Brokers) -> list[int]:
    return list(brokers.metadata("orders")[0].isrs)
