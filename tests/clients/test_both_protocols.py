"""A fleet goes from one protocol of consumer groups to the other, and back, one by one, as librdkafka does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from tests.clients.running import RunningBroker
from tests.clients.test_consumer_protocol import FAST, PASSING, Reader, all_seen, described, shared
from tests.clients.test_librdkafka import create
from tests.waiting import eventually

pytestmark = [pytest.mark.spec("CLI-04"), pytest.mark.timeout(400)]

# A busy machine must not put anybody out: who is, while the others go back to the classic protocol, finds no group that
# he could have been in, which to librdkafka is the end; and he has his partitions until he knows.
SESSION_MS = 30_000
PATIENCE_S = 90.0
MODERN: dict[str, Any] = {"group.protocol": "consumer"}
CLASSIC: dict[str, Any] = {"group.protocol": "classic", "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100}
# What is sent as a broker is killed may never be answered: the client asks anew, after a minute by default.
PATIENT_FOR_SECONDS: dict[str, Any] = {"socket.timeout.ms": 6000, "reconnect.backoff.max.ms": 1000}
COOPERATIVE = CLASSIC | {"partition.assignment.strategy": "cooperative-sticky"}
EAGER = CLASSIC | {"partition.assignment.strategy": "range"}
# A rebalance is under way: what is not committed is read again, by whoever has it then.
BEATEN = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID)


class Owners:
    """Who has a partition, of all members: never two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, int], str] = {}
        self.doubled: list[tuple[str, int, str, str]] = []

    def take(self, name: str, partitions: list[Partition]) -> None:
        with self._lock:
            for each in partitions:
                other = self._of.get((each.topic, each.partition))
                if other is not None:
                    self.doubled.append((each.topic, each.partition, other, name))
                self._of[each.topic, each.partition] = name

    def give(self, name: str, partitions: list[Partition]) -> None:
        with self._lock:
            for each in partitions:
                if self._of.get((each.topic, each.partition)) == name:
                    del self._of[each.topic, each.partition]


class Rolled(Reader):
    def __init__(self, broker: RunningBroker, owners: Owners, name: str, topic: str, **config: Any) -> None:
        self.name = name
        self._owners = owners
        self._eager = config.get("partition.assignment.strategy") == "range"
        super().__init__(broker, "g", [topic], **PATIENT_FOR_SECONDS, **config)

    def _assign(self, consumer: Consumer, partitions: list[Partition]) -> None:
        self._owners.take(self.name, partitions)
        if self._eager:
            self.assigned |= {(each.topic, each.partition) for each in partitions}
            consumer.assign(partitions)
        else:
            super()._assign(consumer, partitions)

    def _revoke(self, consumer: Consumer, partitions: list[Partition]) -> None:
        # First of all: once librdkafka is told, it joins again in a thread of its own, and somebody else may be given
        # them before this thread goes on.
        self._owners.give(self.name, partitions)
        if self._eager:
            self.assigned -= {(each.topic, each.partition) for each in partitions}
            consumer.unassign()
        else:
            super()._revoke(consumer, partitions)

    def _commit(self, message: Any) -> None:
        while (message.topic(), message.partition()) in self.assigned:
            try:
                self._consumer.commit(message=message, asynchronous=False)
                return
            except KafkaException as error:
                if error.args[0].code() in BEATEN:
                    return
                if error.args[0].code() not in PASSING:
                    raise


class Writing:
    """Goes on until it is stopped."""

    def __init__(self, broker: RunningBroker, topic: str, partitions: int) -> None:
        self.written: set[tuple[str, int, int]] = set()
        self._stopping = threading.Event()
        self._sender = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run, args=(topic, partitions))
        self._thread.start()

    def _run(self, topic: str, partitions: int) -> None:
        def report(error: KafkaError | None, sent: Any) -> None:
            assert error is None
            self.written.add((sent.topic(), sent.partition(), sent.offset()))

        number = 0
        while not self._stopping.wait(0.01):
            self._sender.produce(topic, b"v", partition=number % partitions, on_delivery=report)
            self._sender.poll(0)
            number += 1
        self._sender.flush(30)
        self._sender.close()

    def stop(self) -> set[tuple[str, int, int]]:
        self._stopping.set()
        self._thread.join(60)
        return self.written


class Fleet:
    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.owners = Owners()
        self.all: list[Rolled] = []
        self.running: dict[int, Rolled] = {}

    def start(self, place: int, config: dict[str, Any]) -> None:
        reader = Rolled(self.broker, self.owners, f"{place}.{len(self.all)}", self.topic, **config)
        self.all.append(reader)
        self.running[place] = reader

    def roll(self, place: int, config: dict[str, Any]) -> None:
        self.running.pop(place).stop()
        self.start(place, config)

    def shares(self, partitions: int, what: str) -> None:
        eventually(shared(list(self.running.values()), self.topic, partitions), what, PATIENCE_S)

    def stop(self) -> None:
        for place in list(self.running):
            self.running.pop(place).stop()


@pytest.fixture
def fleet(own_broker: Callable[..., RunningBroker], topic: str) -> Iterator[Fleet]:
    made = Fleet(own_broker(**FAST | {"group_consumer_session_timeout_ms": SESSION_MS}), topic)
    yield made
    made.stop()


@pytest.mark.parametrize("classic", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
def test_a_fleet_is_rolled_forward_and_back_while_it_reads(fleet: Fleet, classic: dict[str, Any]) -> None:
    create(fleet.broker, fleet.topic, partitions=6)
    writing = Writing(fleet.broker, fleet.topic, 6)
    try:
        for place in range(3):
            fleet.start(place, classic)
        fleet.shares(6, "three of the classic protocol share")
        for place in range(3):
            fleet.roll(place, MODERN)
            fleet.shares(6, f"{place + 1} of three speak the consumer protocol")
            group = described(fleet.broker, "g")
            assert (group.type, len(group.members)) == (ConsumerGroupType.CONSUMER, 3)
        for place in range(3):
            fleet.roll(place, classic)
            fleet.shares(6, f"{place + 1} of three are back with the classic one")
        assert described(fleet.broker, "g").type is ConsumerGroupType.CLASSIC
    finally:
        written = writing.stop()
    eventually(all_seen(list(fleet.all), written), "all that was written is read")
    assert fleet.owners.doubled == []


@pytest.mark.parametrize("classic", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
def test_the_broker_is_killed_while_a_fleet_is_rolled(fleet: Fleet, classic: dict[str, Any]) -> None:
    """As one that speaks the other protocol joins: the next coordinator finds a group of either, or between the two."""
    create(fleet.broker, fleet.topic, partitions=6)
    fleet.broker.stays_where_it_is()
    writing = Writing(fleet.broker, fleet.topic, 6)
    try:
        for place in range(3):
            fleet.start(place, classic)
        fleet.shares(6, "three of the classic protocol share")
        for config in (MODERN, classic):
            for place in range(3):
                fleet.roll(place, config)
                fleet.broker.kill()
                fleet.broker.start()
                fleet.shares(6, f"{place + 1} of three were rolled to {config['group.protocol']}")
    finally:
        written = writing.stop()
    eventually(all_seen(list(fleet.all), written), "all that was written is read")
    assert fleet.owners.doubled == []
