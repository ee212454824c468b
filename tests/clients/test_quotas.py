"""Quotas of clients: bytes a second that a client id may produce and fetch, told to it and waited for."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from e2e.asking import ask, message
from tests.clients import test_librdkafka as rd
from tests.clients.running import RunningBroker

VALUE = bytes(range(250)) * 40  # 10 kB
COUNT = 300
LIMIT = 1_000_000
# A bucket that is full holds a second; what is asked for at once may be as much beyond it.
LEAST_S = COUNT * len(VALUE) / LIMIT - 2.0


def change_quotas(broker: RunningBroker, entity: Mapping[str, str | None], **quotas: float | None) -> None:
    kind = message("AlterClientQuotasRequest")
    entry = kind.EntryData(
        entity=[kind.EntryData.EntityData(entity_type=key, entity_name=name) for key, name in entity.items()],
        ops=[kind.EntryData.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )
    (answer,) = ask(broker.bootstrap, kind(entries=[entry], validate_only=False), 1).entries
    assert not answer.error_code, answer.error_message


@pytest.fixture
def limited(broker: RunningBroker) -> Iterator[str]:
    """A client id with quotas for both."""
    entity: Mapping[str, str | None] = {"client-id": "limited"}
    change_quotas(broker, entity, producer_byte_rate=LIMIT, consumer_byte_rate=LIMIT)
    yield "limited"
    change_quotas(broker, entity, producer_byte_rate=None, consumer_byte_rate=None)


def told_while_producing(broker: RunningBroker, topic: str, client_id: str) -> tuple[float, list[float]]:
    """Seconds that it took, and for how long the producer heard that it has to wait, each time."""
    told: list[float] = []
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": client_id,
        "batch.size": 100_000,
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    sender = Producer(settings)
    broker.on_end.append(functools.partial(rd.end_producer, sender))
    began = time.monotonic()
    rd.send(sender, topic, [VALUE] * COUNT)
    return time.monotonic() - began, told


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_a_producer_keeps_to_its_quota_and_is_told(broker: RunningBroker, topic: str, limited: str) -> None:
    rd.create(broker, topic)
    took, told = told_while_producing(broker, topic, limited)
    assert took > LEAST_S, f"{took:.2f} s"
    assert max(told, default=0) > 0


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_who_has_no_quota_waits_for_nobody(broker: RunningBroker, topic: str, limited: str) -> None:
    assert limited
    rd.create(broker, topic)
    _, told = told_while_producing(broker, topic, "free")
    assert not told


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_consumer_keeps_to_its_quota_and_gets_everything(
    broker: RunningBroker, topic: str, limited: str, partitions: int
) -> None:
    rd.create(broker, topic, partitions)
    rd.send(rd.producer(broker), topic, [VALUE] * COUNT)
    reader = rd.consumer(broker, client_id=limited, fetch_message_max_bytes=200_000)
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    began = time.monotonic()
    found = rd.read(reader, COUNT)
    took = time.monotonic() - began
    reader.close()
    assert [each.value() for each in found] == [VALUE] * COUNT
    assert took > LEAST_S, f"{took:.2f} s"


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_kafka_python_with_its_sessions_is_limited_as_well(broker: RunningBroker, topic: str, limited: str) -> None:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    rd.create(broker, topic, 2)
    rd.send(rd.producer(broker), topic, [VALUE] * COUNT)
    reader = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, client_id=limited, auto_offset_reset="earliest", group_id=None
    )
    reader.assign([Partition(topic, 0), Partition(topic, 1)])
    began = time.monotonic()
    count = 0
    while count < COUNT and time.monotonic() - began < rd.PATIENCE_S:
        count += sum(map(len, reader.poll(timeout_ms=500).values()))
    took = time.monotonic() - began
    reader.close()
    assert count == COUNT
    assert took > LEAST_S, f"{took:.2f} s"
