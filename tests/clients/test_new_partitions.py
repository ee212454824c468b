"""TOP-13: who consumes or produces finds the partitions that a topic was given while they were at it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewPartitions
from e2e.clients import place_of
from tests.clients.running import RunningBroker
from tests.clients.test_librdkafka import PATIENCE_S, admin, create

REFRESH = {"topic.metadata.refresh.interval.ms": 200, "metadata.max.age.ms": 600}


@pytest.mark.spec("TOP-13")
def test_a_group_gets_new_partitions_and_a_producer_without_keys_uses_them(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    server = {"bootstrap.servers": broker.bootstrap, **REFRESH}
    group = {"group.id": topic, "auto.offset.reset": "earliest", "session.timeout.ms": 30_000}
    consumer = Consumer({**server, **group})
    producer = Producer({**server, "sticky.partitioning.linger.ms": 0, "linger.ms": 0})
    consumer.subscribe([topic])
    try:
        admin(broker).create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        read: set[int] = set()
        while read != {0, 1, 2} and time.monotonic() < deadline:
            producer.produce(topic, b"without a key")
            producer.poll(0)
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                read.add(place_of(message)[0])
        assert read == {0, 1, 2}
        assert {each.partition for each in consumer.assignment()} == {0, 1, 2}
    finally:
        producer.flush(PATIENCE_S)
        consumer.close()
