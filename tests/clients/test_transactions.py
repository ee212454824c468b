"""Transactional producers of librdkafka, aiokafka and kafka-python, and what readers of committed records get."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import TopicPartition as OfAiokafka
from aiokafka.errors import ProducerFenced
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from e2e.clients import value_of
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as OfKafkaPython
from kafka.errors import KafkaError as KafkaPythonError
from kafka.structs import OffsetAndMetadata
from tests.clients import test_aiokafka as aiokafka
from tests.clients.running import RunningBroker
from tests.clients.test_librdkafka import PATIENCE_S, consumer, create, from_beginning, producer, read
from tests.contract.wire import WireClient
from tests.waiting import eventually

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-05", "CLI-01")

OPEN_MS = 300_000  # a transaction stays open while several JVMs start on a busy machine
EXPIRATION_MS = 8_000  # longer than a busy machine takes to begin a transaction once there is an id


def transactional(broker: RunningBroker, name: str, **config: Any) -> Producer:
    """It ends with its test: one that was fenced cannot be closed."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap, "transactional.id": name, "linger.ms": 5,
        "transaction.timeout.ms": OPEN_MS,
    }  # fmt: skip
    made = Producer(settings | {name.replace("_", "."): value for name, value in config.items()})
    made.init_transactions(PATIENCE_S)
    return made


def send(sender: Producer, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    for value in values:
        sender.produce(topic, value, partition=partition)


def left_open(broker: RunningBroker, topic: str, value: bytes) -> Producer:
    """Of a transaction that has this in the topic, and goes on."""
    sender = transactional(broker, topic)
    sender.begin_transaction()
    send(sender, topic, [value])
    sender.flush()
    return sender


def values_of(broker: RunningBroker, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    reader = consumer(broker, isolation_level=isolation)
    reader.assign(from_beginning(topic))
    values = [value_of(message) for message in read(reader, count)]
    reader.close()
    return values


def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, 2)
    sender = transactional(broker, topic)
    for number in range(6):
        sender.begin_transaction()
        send(sender, topic, [b"%d" % number], number % 2)
        if number % 3 == 2:
            sender.flush()
            sender.abort_transaction(PATIENCE_S)
        else:
            sender.commit_transaction(PATIENCE_S)
    reader = consumer(broker, isolation_level="read_committed")
    reader.assign(from_beginning(topic, 2))
    assert sorted(value_of(message) for message in read(reader, 4)) == [b"0", b"1", b"3", b"4"]
    everything = consumer(broker, isolation_level="read_uncommitted")
    everything.assign(from_beginning(topic, 2))
    assert len(read(everything, 6)) == 6
    reader.close()
    everything.close()


def test_transactions_are_listed_by_a_pattern_of_all_of_an_id(broker: RunningBroker, topic: str) -> None:
    ids = [f"{topic} Über/1", f"{topic} Über/2", f"{topic} unter/1", f"{topic}{'x' * 500}"]
    senders = [transactional(broker, each) for each in ids]
    client = WireClient("127.0.0.1", broker.port)

    def listed(pattern: str | None) -> tuple[int, list[str]]:
        kind = message("ListTransactionsRequest")
        asked = kind(state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern)
        told = client.call(asked, 2)
        names = {each.transactional_id for each in told.transaction_states}
        return told.error_code, [each for each in ids if each in names]

    try:
        assert listed(f"{topic} ü.*") == (ErrorCode.NONE, [])
        assert listed(f"{topic} (?i:ü).*") == (ErrorCode.NONE, ids[:2])
        assert listed(".*/1") == (ErrorCode.NONE, [ids[0], ids[2]])
        assert listed(topic) == (ErrorCode.NONE, [])
        assert listed(".*x") == (ErrorCode.NONE, [])  # what a pattern costs grows with the id
        assert listed("") == listed(None) == (ErrorCode.NONE, ids)
        assert listed("(") == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])
    finally:
        client.close()
    assert len(senders) == len(ids)


def test_nobody_reads_past_a_transaction_that_is_open(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    sender = left_open(broker, topic, b"open")
    plain = producer(broker)
    plain.produce(topic, b"plain", partition=0)
    plain.flush()
    assert values_of(broker, topic, 2, "read_uncommitted") == [b"open", b"plain"]
    reader = consumer(broker, isolation_level="read_committed")
    place = TopicPartition(topic, 0)
    assert reader.get_watermark_offsets(place, PATIENCE_S) == (0, 0)
    sender.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 2) == [b"open", b"plain"]
    reader.close()


def test_a_second_instance_fences_the_first(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    first = transactional(broker, topic)
    first.begin_transaction()
    send(first, topic, [b"of the first"])
    first.flush()
    second = transactional(broker, topic)
    second.begin_transaction()
    send(second, topic, [b"of the second"])
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    second.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 1) == [b"of the second"]


def test_offsets_and_records_are_committed_together_or_not_at_all(broker: RunningBroker, topic: str) -> None:
    source = f"{topic}-source"[-200:]
    create(broker, topic)
    create(broker, source)
    plain = producer(broker)
    for number in range(4):
        plain.produce(source, b"%d" % number, partition=0)
    plain.flush()
    reader = consumer(broker, group=topic, auto_offset_reset="earliest")
    reader.subscribe([source])
    messages = read(reader, 4)
    sender = transactional(broker, topic)
    place = TopicPartition(source, 0)
    for upto, commit in ((1, True), (3, False)):
        sender.begin_transaction()
        send(sender, topic, [value_of(message) for message in messages[:upto]])
        position = [TopicPartition(source, 0, upto)]
        sender.send_offsets_to_transaction(position, reader.consumer_group_metadata(), PATIENCE_S)
        if commit:
            sender.commit_transaction(PATIENCE_S)
        else:
            sender.abort_transaction(PATIENCE_S)
        assert reader.committed([place], PATIENCE_S)[0].offset == 1
    assert values_of(broker, topic, 1) == [b"0"]
    reader.close()


def test_a_transaction_that_takes_too_long_is_aborted(own_broker: Any, topic: str) -> None:
    broker = own_broker(transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
    create(broker, topic)
    slow = transactional(broker, topic, transaction_timeout_ms=1_000, message_timeout_ms=1_000)
    slow.begin_transaction()
    send(slow, topic, [b"late"])
    slow.flush()
    plain = producer(broker)
    plain.produce(topic, b"plain", partition=0)
    plain.flush()
    assert values_of(broker, topic, 1) == [b"plain"]  # which can be read once the first one is aborted
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_S)


def test_a_transaction_may_take_as_long_as_the_broker_allows(own_broker: Any, topic: str) -> None:
    limit_ms = 60_000
    broker = own_broker(transaction_max_timeout_ms=limit_ms)
    create(broker, topic)
    sender = transactional(broker, topic, transaction_timeout_ms=limit_ms, message_timeout_ms=limit_ms)
    with pytest.raises(KafkaException) as refused:
        transactional(broker, topic, transaction_timeout_ms=limit_ms + 1)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    sender.begin_transaction()
    send(sender, topic, [b"not fenced by who was refused"])
    sender.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 1) == [b"not fenced by who was refused"]


def test_a_producer_whose_id_was_forgotten_aborts_and_goes_on(own_broker: Any, topic: str) -> None:
    broker = own_broker(
        transactional_id_expiration_ms=EXPIRATION_MS, transaction_remove_expired_transaction_cleanup_interval_ms=50
    )
    create(broker, topic)
    sender = transactional(broker, topic)
    sender.begin_transaction()
    send(sender, topic, [b"before"])
    sender.commit_transaction(PATIENCE_S)
    client = WireClient("127.0.0.1", broker.port)
    asked = message("DescribeTransactionsRequest")(transactional_ids=[topic])
    gone = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    eventually(lambda: client.call(asked, 0).transaction_states[0].error_code == gone, "it is forgotten")
    client.close()
    sender.begin_transaction()
    send(sender, topic, [b"in nobody's transaction"])
    with pytest.raises(KafkaException) as unknown:
        sender.commit_transaction(PATIENCE_S)
    error = unknown.value.args[0]
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.INVALID_PRODUCER_ID_MAPPING, True)
    sender.abort_transaction(PATIENCE_S)
    sender.begin_transaction()
    send(sender, topic, [b"after"])
    sender.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 2) == [b"before", b"after"]


def test_a_transaction_survives_its_broker(own_broker: Any, topic: str) -> None:
    broker = own_broker()
    create(broker, topic)
    sender = transactional(broker, topic)
    sender.begin_transaction()
    send(sender, topic, [b"before"])
    sender.commit_transaction(PATIENCE_S)
    sender.begin_transaction()
    send(sender, topic, [b"lost"])
    sender.flush()
    broker.kill()
    broker.start()
    again = transactional(broker, topic)
    again.begin_transaction()
    send(again, topic, [b"after"])
    again.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 2) == [b"before", b"after"]


async def test_aiokafka(broker: RunningBroker, topic: str) -> None:
    await aiokafka.create(broker, topic)
    place = OfAiokafka(topic, 0)
    async with aiokafka.producer(broker, transactional_id=topic) as sender:
        async with sender.transaction():
            await sender.send_and_wait(topic, b"committed", partition=0)
            await sender.send_offsets_to_transaction({place: 1}, topic)
        await sender.begin_transaction()
        await sender.send_and_wait(topic, b"aborted", partition=0)
        await sender.send_offsets_to_transaction({place: 2}, topic)
        await sender.abort_transaction()
        await sender.begin_transaction()
        await sender.send_and_wait(topic, b"fenced", partition=0)
        async with aiokafka.producer(broker, transactional_id=topic) as second:
            with pytest.raises(ProducerFenced):
                await sender.commit_transaction()
            async with second.transaction():
                await second.send_and_wait(topic, b"last", partition=0)
    async with aiokafka.consumer(broker, group_id=topic, isolation_level="read_committed") as reader:
        reader.assign([place])
        assert await reader.committed(place) == 1
        await reader.seek_to_beginning(place)
        assert [record.value for record in await aiokafka.read(reader, 2)] == [b"committed", b"last"]


def test_kafka_python(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    place = OfKafkaPython(topic, 0)
    made = [KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic) for _ in range(2)]
    sender, second = made
    sender.init_transactions()
    for value, commit in ((b"committed", True), (b"aborted", False)):
        sender.begin_transaction()
        sender.send(topic, value, partition=0)
        sender.send_offsets_to_transaction({place: OffsetAndMetadata(len(value), "", -1)}, topic)
        if commit:
            sender.commit_transaction()
        else:
            sender.abort_transaction()
    sender.begin_transaction()
    sender.send(topic, b"fenced", partition=0).get(PATIENCE_S)
    second.init_transactions()
    with pytest.raises(KafkaPythonError):
        sender.commit_transaction()
    second.begin_transaction()
    second.send(topic, b"last", partition=0)
    second.commit_transaction()
    for each in made:
        each.close()
    reader = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=topic, isolation_level="read_committed")
    reader.assign([place])
    assert reader.committed(place) == len(b"committed")
    reader.seek_to_beginning(place)
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 2 and time.monotonic() < deadline:
        found += [record.value for records in reader.poll(100).values() for record in records]
    assert found == [b"committed", b"last"]
    reader.close()
