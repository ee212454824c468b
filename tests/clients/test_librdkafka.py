"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from e2e.clients import place_of
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker
from tests.waiting import eventually

PATIENCE_S = 30.0


def admin(broker: RunningBroker) -> AdminClient:
    """One for all: whoever lets go of it cancels what it was asked."""
    if broker.bootstrap not in _admins:
        _admins[broker.bootstrap] = AdminClient({"bootstrap.servers": broker.bootstrap})
        broker.on_end.append(functools.partial(_admins.pop, broker.bootstrap))
    return _admins[broker.bootstrap]


_admins: dict[str, AdminClient] = {}


def create(broker: RunningBroker, topic: str, partitions: int = 1, **config: str) -> None:
    new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
    admin(broker).create_topics([new])[topic].result(PATIENCE_S)


def producer(broker: RunningBroker, **config: Any) -> Producer:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "linger.ms": 5}
    made = Producer(settings | {name.replace("_", "."): value for name, value in config.items()})
    broker.on_end.append(functools.partial(end_producer, made))
    return made


def end_producer(sender: Producer) -> None:
    """Else it looks for a broker that is gone until the tests end, and says so on the terminal."""
    sender.purge()
    sender.flush(PATIENCE_S)
    sender.close()


def send(sender: Producer, topic: str, values: Iterable[bytes], **how: Any) -> list[Message]:
    """All of them, acknowledged; the reports in order of delivery."""
    reports: list[Message] = []
    errors: list[KafkaError | None] = []

    def report(error: KafkaError | None, sent: Message) -> None:
        (errors.append(error) if error is not None else reports.append(sent))

    for value in values:
        sender.produce(topic, value, on_delivery=report, **how)
        sender.poll(0)
    assert sender.flush(PATIENCE_S) == 0
    assert not errors, errors
    return reports


def consumer(broker: RunningBroker, group: str = "unused", **config: Any) -> Consumer:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 30_000,
    }
    return Consumer(settings | {name.replace("_", "."): value for name, value in config.items()})


def read(reader: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for one in reader.consume(count - len(found), 0.2):
            assert one.error() is None, one.error()
            found.append(one)
    assert len(found) == count
    return found


def from_beginning(topic: str, partitions: int = 1) -> list[TopicPartition]:
    return [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]


@pytest.mark.spec("CLI-01", "CLI-07")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker: RunningBroker, topic: str, codec: str) -> None:
    create(broker, topic, 2)
    values = [b"%d " % number * 50 for number in range(500)]
    headers = [("a", b"1"), ("empty", None)]
    sender = producer(broker, compression_codec=codec)
    for partition in range(2):
        send(sender, topic, values, key=b"key", headers=headers, partition=partition, timestamp=AN_HOUR_AGO_MS)
    reader = consumer(broker)
    reader.assign(from_beginning(topic, 2))
    found = read(reader, 1000)
    for partition in range(2):
        of_one = [one for one in found if one.partition() == partition]
        assert [one.value() for one in of_one] == values
        assert [one.offset() for one in of_one] == list(range(500))
    assert all(one.headers() == headers and one.key() == b"key" for one in found)
    assert all(one.timestamp()[1] == AN_HOUR_AGO_MS for one in found)
    reader.close()


@pytest.mark.spec("CLI-05")
def test_an_idempotent_producer(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    sender = producer(broker, enable_idempotence=True, batch_num_messages=10)
    reports = send(sender, topic, [b"%d" % n for n in range(1000)])
    assert [one.offset() for one in reports] == list(range(1000))


@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(broker: RunningBroker, topic: str, acks: int) -> None:
    create(broker, topic)
    send(producer(broker, acks=acks), topic, [b"%d" % n for n in range(100)])
    reader = consumer(broker)
    eventually(lambda: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 100), "all are there")
    reader.close()


@pytest.mark.spec("CLI-01", "CLI-04")
def test_a_group_shares_partitions_and_goes_on_where_it_was(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, 4)
    sender = producer(broker)
    for partition in range(4):
        send(sender, topic, [b"%d" % n for n in range(100)], partition=partition)
    first, second = consumer(broker, topic), consumer(broker, topic)
    first.subscribe([topic])
    read(first, 100)
    second.subscribe([topic])

    def shared() -> bool:
        first.poll(0.05)
        second.poll(0.05)
        return {len(first.assignment()), len(second.assignment())} == {2}

    eventually(shared, "each has two partitions")
    second.close()
    eventually(lambda: first.poll(0.05) is not None or len(first.assignment()) == 4, "the first has them all again")
    first.commit(offsets=[TopicPartition(topic, n, 90) for n in range(4)], asynchronous=False)
    first.close()
    third = consumer(broker, topic)
    third.subscribe([topic])
    assert sorted(place_of(one)[1] for one in read(third, 40)) == sorted([*range(90, 100)] * 4)
    third.close()


@pytest.mark.spec("CLI-04")
def test_cooperative_rebalancing(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, 4)
    readers = [consumer(broker, topic, partition_assignment_strategy="cooperative-sticky") for _ in range(2)]
    for reader in readers:
        reader.subscribe([topic])

    def shared() -> bool:
        for reader in readers:
            reader.poll(0.05)
        return [len(reader.assignment()) for reader in readers] == [2, 2]

    eventually(shared, "each has two partitions")
    for reader in readers:
        reader.close()


@pytest.mark.spec("CLI-04")
def test_groups_are_listed_described_and_deleted(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    send(producer(broker), topic, [b"x"])
    reader = consumer(broker, topic)
    reader.subscribe([topic])
    read(reader, 1)
    reader.commit(asynchronous=False)
    client = admin(broker)
    described = client.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert described.state == ConsumerGroupState.STABLE
    assert described.members[0].assignment.topic_partitions == [TopicPartition(topic, 0)]
    listed = client.list_consumer_groups().result(PATIENCE_S)
    assert topic in {group.group_id for group in listed.valid}
    with pytest.raises(KafkaException) as refused:
        client.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    reader.close()
    client.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    listed = client.list_consumer_groups().result(PATIENCE_S)
    assert topic not in {group.group_id for group in listed.valid}


@pytest.mark.spec("TOP-20", "TOP-22")
def test_topics_are_created_as_asked_or_refused(broker: RunningBroker, topic: str) -> None:
    client = admin(broker)
    create(broker, topic, 3, retention_ms="1234")
    assert len(client.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 3
    with pytest.raises(KafkaException) as refused:
        create(broker, topic)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    for new, code in (
        (NewTopic("a b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic(topic + "x", 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic(topic + "x", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic(topic + "x", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaException) as refused:
            client.create_topics([new])[new.topic].result(PATIENCE_S)
        assert refused.value.args[0].code() == code


@pytest.mark.spec("TOP-01", "TOP-08")
def test_partitions_are_added(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    client = admin(broker)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    send(producer(broker), topic, [b"x"], partition=2)
    with pytest.raises(KafkaException) as refused:
        client.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


@pytest.mark.spec("TOP-23")
def test_configs_are_described_and_altered(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, cleanup_policy="compact")
    client = admin(broker)

    def described() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: dict[str, ConfigEntry] = client.describe_configs([resource])[resource].result(PATIENCE_S)
        return found

    assert (described()["cleanup.policy"].value, described()["retention.ms"].is_default) == ("compact", True)
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    client.incremental_alter_configs([change])[change].result(PATIENCE_S)
    eventually(lambda: described()["retention.ms"].value == "60000", "the new value is described")
    assert described()["cleanup.policy"].value == "compact,delete"


@pytest.mark.spec("TOP-24")
def test_a_topic_is_deleted_and_made_anew_empty(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    send(producer(broker), topic, [b"old"] * 10)
    client = admin(broker)
    client.delete_topics([topic])[topic].result(PATIENCE_S)
    eventually(lambda: topic not in client.list_topics(timeout=PATIENCE_S).topics, "it is gone")
    create(broker, topic)
    reader = consumer(broker)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (0, 0)
    reader.close()


@pytest.mark.spec("TOP-26")
def test_records_are_deleted(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    send(producer(broker), topic, [b"%d" % n for n in range(10)])
    client = admin(broker)
    partition = TopicPartition(topic, 0)
    deleted = client.delete_records([TopicPartition(topic, 0, 4)])[partition].result(PATIENCE_S)
    assert deleted.low_watermark == 4
    reader = consumer(broker)
    assert reader.get_watermark_offsets(partition, timeout=PATIENCE_S) == (4, 10)
    reader.assign(from_beginning(topic))
    assert [one.offset() for one in read(reader, 6)] == [4, 5, 6, 7, 8, 9]
    reader.close()


@pytest.mark.spec("CLI-01")
def test_offsets_are_listed_by_timestamp(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    now = int(time.time() * 1000)
    sender = producer(broker)
    for age in (30, 20, 10):
        send(sender, topic, [b"x"], timestamp=now - age * 1000)
    client, partition = admin(broker), TopicPartition(topic, 0)

    def listed(spec: OffsetSpec) -> int:
        return int(client.list_offsets({partition: spec})[partition].result(PATIENCE_S).offset)

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 3
    assert listed(OffsetSpec.max_timestamp()) == 2
    assert listed(OffsetSpec.for_timestamp(now - 25_000)) == 1


@pytest.mark.spec("CLI-01")
def test_the_cluster_is_described(broker: RunningBroker) -> None:
    described = admin(broker).describe_cluster().result(PATIENCE_S)
    assert [(node.id, node.port) for node in described.nodes] == [(1, broker.port)]
    assert len(described.cluster_id) == 22


def test_a_message_that_is_too_large_is_refused(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, max_message_bytes="1000")
    errors: list[KafkaError | None] = []
    sender = producer(broker)
    sender.produce(topic, b"x" * 2000, on_delivery=lambda error, _: errors.append(error))
    sender.flush(PATIENCE_S)
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.spec("TOP-25")
def test_topics_come_by_themselves(broker: RunningBroker, topic: str) -> None:
    send(producer(broker), topic, [b"x"])
    reader = consumer(broker)
    reader.assign(from_beginning(topic))
    assert read(reader, 1)[0].value() == b"x"
    reader.close()


@pytest.mark.spec("TOP-24")
def test_topics_are_not_deleted_where_that_is_switched_off(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    broker = own_broker(delete_topic_enable="false")
    create(broker, topic)
    with pytest.raises(KafkaException) as refused:
        admin(broker).delete_topics([topic])[topic].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_DELETION_DISABLED
