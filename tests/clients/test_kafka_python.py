"""kafka-python's own clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import RebalanceInProgressError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker
from tests.waiting import eventually

PATIENCE_S = 30.0


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client


def producer(broker: RunningBroker, **config: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, **config)


def consumer(broker: RunningBroker, **config: Any) -> KafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return KafkaConsumer(bootstrap_servers=broker.bootstrap, **(settings | config))


def read(reader: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in reader.poll(timeout_ms=200).values():
            found += records
    assert len(found) == count
    return found


def read_and_commit(reader: KafkaConsumer, count: int) -> None:
    """The client may find that it has to join again, and says so: then it begins where it committed last."""
    while True:
        read(reader, count)
        try:
            return reader.commit()
        except RebalanceInProgressError:
            continue


@pytest.mark.spec("CLI-01", "CLI-07")
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(
    broker: RunningBroker, admin: KafkaAdminClient, topic: str, codec: str | None
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    values = [b"%d " % number * 50 for number in range(300)]
    with closing(producer(broker, compression_type=codec, acks="all")) as sender:
        sent = [
            sender.send(topic, value, key=b"k", headers=[("h", b"1")], timestamp_ms=AN_HOUR_AGO_MS) for value in values
        ]
        sender.flush(PATIENCE_S)
        assert [future.get(PATIENCE_S).offset for future in sent] == list(range(300))
    with closing(consumer(broker)) as reader:
        reader.assign([TopicPartition(topic, 0)])
        found = read(reader, 300)
        assert [record.value for record in found] == values
        assert all((r.key, r.headers, r.timestamp) == (b"k", [("h", b"1")], AN_HOUR_AGO_MS) for r in found)
        assert reader.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 300}


@pytest.mark.spec("CLI-04")
def test_a_group_commits_and_goes_on(broker: RunningBroker, admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    with closing(producer(broker)) as sender:
        for number in range(20):
            sender.send(topic, b"%d" % number, partition=number % 2)
        sender.flush(PATIENCE_S)
    for _ in range(2):
        with closing(consumer(broker, group_id=topic, max_poll_records=10)) as reader:
            reader.partitions_for_topic(topic)  # or it may join before it knows of any, and wait for its next metadata
            reader.subscribe([topic])
            read_and_commit(reader, 10)
    with closing(consumer(broker, group_id=topic)) as reader:
        assert sum(reader.committed(TopicPartition(topic, n)) for n in range(2)) == 20


@pytest.mark.spec("TOP-20", "TOP-24")
def test_topics_are_administered(broker: RunningBroker, admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    assert topic in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), "it is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])
