"""The producers and consumers of a run: confluent-kafka clients, each on its own thread, that write into the ledger.

A producer never gives up on a record, so once the cluster has healed everything that was sent must arrive, exactly
once. An error that reaches the application is a finding. Threads end on `stop`; then the ledger no longer changes.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from e2e.ledger import TOKEN, Ledger, read_token, token_of
from e2e.processes import until

POLL_S = 0.05
SLICE_S = 0.02
JOIN_S = 60.0
FILLER = bytes(range(256)) * 64
QUIET = {"log_level": 0, "socket.keepalive.enable": True, "reconnect.backoff.max.ms": 500}
TRANSIENT = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.LEADER_NOT_AVAILABLE,
}


def place_of(message: Message) -> tuple[int, int]:
    """Partition and offset of a message that is not an error."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def value_of(message: Message) -> bytes:
    """The value of a message that is neither an error nor a tombstone."""
    value = message.value()
    assert value is not None
    return value


class Worker(ABC):
    """A client on a thread; an exception that ends it becomes a problem in the ledger."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.ledger = ledger
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End now, whatever is still in flight."""
        self.stopping.set()

    def join(self) -> None:
        if self._thread.ident is None:
            return  # interrupted before it was started
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            self.ledger.note_problem(f"{self.name} did not end within {JOIN_S:.0f} s")

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.ledger.note_problem(f"{self.name} failed: {error!r}")

    @abstractmethod
    def work(self) -> None: ...


class _Listener(logging.Logger):
    """A logger for librdkafka that passes each message on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__("librdkafka")
        self._tell = tell

    def handle(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


class SequencedProducer(Worker):
    """Numbered records at a steady rate, acks=all, idempotent; round robin over the partitions."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        ledger: Ledger,
        number: int,
        *,
        per_second: int,
        value_bytes: int,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """`log` receives the library's messages on idempotence."""
        super().__init__(f"producer {number}", ledger)
        self._topic = topic
        self._number = number
        self.per_second = per_second  # may change during the run
        self._value_bytes = value_bytes
        settings: dict[str, Any] = {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "client.id": f"producer-{number}",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 0,  # never: a record given up on could not be told from a lost one
            "request.timeout.ms": 5000,
            "socket.timeout.ms": 6000,  # else it waits for a frozen leader instead of asking the next one
            "retry.backoff.max.ms": 500,
            "queue.buffering.max.messages": 50_000,
            "queue.buffering.max.kbytes": 65_536,
            "error_cb": self._on_error,
        }
        if log is not None:
            settings |= {"log_level": 7, "debug": "eos", "logger": _Listener(log)}
        self._producer = Producer(settings)
        self.acknowledged = 0
        self._finishing = threading.Event()
        self._resting = threading.Event()

    def finish(self) -> None:
        """Send nothing new; the thread ends once all that was sent is acknowledged."""
        self._finishing.set()

    def rest(self) -> None:
        """Send nothing new until `go_on`; records in flight are still delivered."""
        self._resting.set()

    def go_on(self) -> None:
        self._resting.clear()

    @property
    def waiting(self) -> int:
        return self.ledger.sent[self._number] - self.acknowledged

    def work(self) -> None:
        due, last = 0.0, time.monotonic()
        while not self.stopping.is_set():
            now = time.monotonic()
            due = min(due + (now - last) * self.per_second, self.per_second * 0.5)  # no burst after a standstill
            last = now
            if self._finishing.is_set() and not self.waiting:
                return
            silent = self._finishing.is_set() or self._resting.is_set()
            while due >= 1 and not silent and self._send():
                due -= 1
            self._producer.poll(SLICE_S)

    def _send(self) -> bool:
        sequence = self.ledger.sent[self._number]
        partition = sequence % self.ledger.partitions
        value = TOKEN.pack(token_of(self._number, sequence)) + FILLER[: self._value_bytes - TOKEN.size]
        done = functools.partial(self._on_delivery, sequence, partition)
        try:
            self._producer.produce(self._topic, value, partition=partition, on_delivery=done)
        except BufferError:
            return False
        self.ledger.sent[self._number] = sequence + 1
        return True

    def _on_delivery(self, sequence: int, partition: int, error: Any, message: Any) -> None:
        if error is not None:
            self.ledger.note_problem(f"{self.name} was told that record {sequence} failed: {error.str()}")
            return
        self.acknowledged += 1
        token, offset = token_of(self._number, sequence), message.offset()
        if offset is None or offset < 0:  # the client concluded from the sequence that it had been written before
            self.ledger.unplaced[partition].append(token)
        else:
            self.ledger.acknowledged[partition].note(token, offset)

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.ledger.note_problem(f"{self.name} met a fatal error: {error.str()}")


class Follower(Worker):
    """Reads all partitions from offset 0, and finds gaps, repetitions and offsets that are gone."""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger) -> None:
        super().__init__("the consumer", ledger)
        self._topic = topic
        settings = _consumer_settings(bootstrap, "follower", {"auto.offset.reset": "error"})
        self._consumer = Consumer(settings)

    def work(self) -> None:
        expected = [0] * self.ledger.partitions
        self._consumer.assign([TopicPartition(self._topic, p, 0) for p in range(self.ledger.partitions)])
        try:
            while not self.stopping.is_set():
                for message in self._consumer.consume(500, POLL_S):
                    if _failed(self, message):
                        continue
                    partition, offset = _place(message)
                    if offset != expected[partition]:
                        self.ledger.note_problem(
                            f"the consumer of partition {partition} was given offset {offset} after "
                            f"{expected[partition] - 1}"
                        )
                    expected[partition] = offset + 1
                    self.ledger.consumed[partition].note(read_token(message.value()), offset)
        finally:
            self._consumer.close()


class GroupMember(Worker):
    """A member of a group that commits as it goes; the group as a whole must be given every record at least once."""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger, number: int) -> None:
        super().__init__(f"group member {number}", ledger)
        own = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 500, "session.timeout.ms": 10_000}
        self._topic = topic
        self._consumer = Consumer(_consumer_settings(bootstrap, "group", own))
        self.assignments = 0  # how often it got an assignment

    def work(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)
        try:
            while not self.stopping.is_set():
                for message in self._consumer.consume(500, POLL_S):
                    if not _failed(self, message):
                        self.ledger.note_group_read(*_place(message))
        finally:
            self._consumer.close()

    def _on_assign(self, _consumer: Any, _partitions: Any) -> None:
        self.assignments += 1


def _consumer_settings(bootstrap: str, group: str, own: dict[str, Any]) -> dict[str, Any]:
    return {
        **QUIET,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "fetch.wait.max.ms": 200,
        "fetch.error.backoff.ms": 100,
        "socket.timeout.ms": 8000,
        "check.crcs": True,
        **own,
    }


def _failed(worker: Worker, message: Any) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() not in TRANSIENT:
        worker.ledger.note_problem(f"{worker.name} was told: {error.str()} ({error.name()})")
    return True


def _place(message: Any) -> tuple[int, int]:
    return message.partition(), message.offset()


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int, config: dict[str, str]) -> None:
    """Returns once every partition has a leader; raises if that takes over a minute."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, partitions, replicas, config=config)
    admin.create_topics([wanted], operation_timeout=30)[topic].result(60)
    if not until(lambda: len(leaders(admin, topic)) == partitions, 60):
        raise TimeoutError(f"topic {topic} has no leaders after a minute")


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """Leader of each partition that has one; empty if no broker answers."""
    try:
        found = admin.list_topics(topic, timeout=5).topics.get(topic)
    except KafkaException:
        return {}
    return {} if found is None else {p.id: p.leader for p in found.partitions.values() if p.leader > 0}
