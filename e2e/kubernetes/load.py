"""Runs clients outside the cluster that go on whatever happens to it, and accounts for what they were told.

A produce call that fails for the client, with acks=all and retries on, is a finding; so is an acknowledged record that
is missing afterwards, or is there twice.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from e2e.asking import ask, message
from e2e.clients import QUIET, SequencedProducer, place_of
from e2e.ledger import Ledger, describe, read_token
from e2e.processes import until

from ballast_wire.records import iterate_batches

PER_SECOND = 200
VALUE_BYTES = 200
MOST_SAID = 200
START_SECONDS = 120.0
FINISH_SECONDS = 180.0


@dataclass
class Account:
    """The result of a load."""

    sent: int = 0
    acknowledged: int = 0
    p99_ms: float = 0.0
    longest_silence_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged:,} of {self.sent:,} records acknowledged, p99 {self.p99_ms:.0f} ms, longest silence "
            f"of a partition {self.longest_silence_s:.1f} s, {len(self.problems)} problems"
        )


class TimedProducer(SequencedProducer):
    """Measures how long each record took, from the call to the acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger) -> None:
        super().__init__(bootstrap, topic, ledger, 0, per_second=PER_SECOND, value_bytes=VALUE_BYTES, log=self._hear)
        self.latencies = array("d")
        self.said: deque[str] = deque(maxlen=MOST_SAID)

    def _hear(self, text: str) -> None:
        """Keep what the client library logs about its producer id and sequences, above all why it reset them."""
        self.said.append(f"{time.time():.3f} {text}")

    def _on_delivery(self, sequence: int, partition: int, error: Any, message: Any) -> None:
        super()._on_delivery(sequence, partition, error, message)
        latency = message.latency() if error is None else None
        if latency is not None:
            self.latencies.append(latency)

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self.latencies)
        return ordered[int(len(ordered) * 0.99)] * 1000 if ordered else 0.0


class Load:
    """A producer at a steady rate on a thread of its own; `finish` reads everything back and compares."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        partitions = self._partitions()
        self._ledger = Ledger(partitions, producers=1)
        self._starts = self._ends(partitions)
        self._producer = TimedProducer(bootstrap, topic, self._ledger)
        self._longest_s = 0.0

    def start(self) -> None:
        self._producer.start()
        if not until(lambda: self.acknowledged >= 10, START_SECONDS):
            raise AssertionError(f"nothing is acknowledged: {self._ledger.problems}")

    @property
    def acknowledged(self) -> int:
        return self._ledger.acknowledged_count

    def await_progress(self) -> None:
        """Wait until every partition has taken a new record."""
        before = [len(told.offsets) for told in self._ledger.acknowledged]

        def all_took_one() -> bool:
            now = self._ledger.acknowledged
            return all(len(told.offsets) > count for told, count in zip(now, before, strict=True))

        if not until(all_took_one, FINISH_SECONDS):
            raise AssertionError(f"a partition took nothing for {FINISH_SECONDS:.0f} s: {self._ledger.problems}")

    def take_silence_s(self) -> float:
        """The longest silence of a partition since the last call."""
        told = self._ledger.acknowledged
        longest = max((one.longest_silence_s for one in told), default=0.0)
        for one in told:
            one.forget_silence()
        self._longest_s = max(self._longest_s, longest)
        return longest

    def finish(self) -> Account:
        """End the producer once all it sent is acknowledged, and compare that with what is there."""
        self._producer.finish()
        until(lambda: not self._producer.waiting, FINISH_SECONDS)
        self._producer.stop()
        self._producer.join()
        problems = list(self._ledger.problems)
        if self._producer.waiting:
            problems.append(f"{self._producer.waiting} records were neither acknowledged nor refused")
        problems += self._compare()
        if problems:
            problems += self._producer.said
        self.take_silence_s()
        return Account(
            self._ledger.sent[0], self._ledger.acknowledged_count, self._producer.p99_ms, self._longest_s, problems
        )

    def abandon(self) -> None:
        """End the producer without checking anything: something else has failed."""
        self._producer.stop()
        self._producer.join()

    def _partitions(self) -> int:
        """The number of partitions, as soon as the broker that is asked knows the topic."""
        admin = AdminClient({**QUIET, "bootstrap.servers": self._bootstrap})
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(KafkaException):  # the broker asked is shutting down
                found = admin.list_topics(self._topic, timeout=20).topics[self._topic]
                if found.error is None and found.partitions:
                    return len(found.partitions)
            time.sleep(0.1)
        raise AssertionError(f"no broker knows topic {self._topic}")

    def _ends(self, partitions: int) -> list[int]:
        consumer = self._consumer()
        try:
            return [self._end(consumer, partition) for partition in range(partitions)]
        finally:
            consumer.close()

    def _end(self, consumer: Consumer, partition: int) -> int:
        """The partition's high watermark; retries in case the broker asked is shutting down."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                _, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=20)
                return high
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _consumer(self) -> Consumer:
        return Consumer({**QUIET, "bootstrap.servers": self._bootstrap, "group.id": "load", "check.crcs": True})

    def _compare(self) -> list[str]:
        """Check that every acknowledged record is where the producer was told, and that nothing is there twice."""
        problems = []
        partitions = self._ledger.partitions
        ends = self._ends(partitions)
        for partition in range(partitions):
            there = self._read(partition, self._starts[partition], ends[partition])
            told = self._ledger.acknowledged[partition]
            for token, offset in zip(told.tokens, told.offsets, strict=True):
                if there.get(offset) != token:
                    problems.append(f"{self._topic}-{partition}: the record acknowledged at {offset} is not there")
            tokens = set(there.values())
            if len(tokens) != len(there):
                problems += self._repetitions(partition, there)
            problems += [
                f"{self._topic}-{partition}: a record that was acknowledged without an offset is nowhere"
                for token in self._ledger.unplaced[partition]
                if token not in tokens
            ]
        return problems[:20]

    def _repetitions(self, partition: int, there: dict[int, int]) -> list[str]:
        """Which records are there twice, with their batch headers: who wrote them, and when."""
        offsets: dict[int, list[int]] = {}
        for offset, token in there.items():
            offsets.setdefault(token, []).append(offset)
        batches = self._headers(partition, self._starts[partition])
        return [
            f"{self._topic}-{partition}: {describe(token)} is there twice: "
            + "; ".join(f"at {offset}: {batches.get(offset)}" for offset in places)
            for token, places in offsets.items()
            if len(places) > 1
        ]

    def _headers(self, partition: int, first: int) -> dict[int, str]:
        """The batch header of each offset, fetched from the partition's leader."""
        kind = message("FetchRequest")
        metadata = AdminClient({**QUIET, "bootstrap.servers": self._bootstrap}).list_topics(self._topic, timeout=20)
        leader = metadata.brokers[metadata.topics[self._topic].partitions[partition].leader]
        found: dict[int, str] = {}
        end = first
        while True:
            wanted = kind.FetchTopic.FetchPartition(
                version=11, partition=partition, current_leader_epoch=-1, fetch_offset=end, log_start_offset=-1,
                partition_max_bytes=1 << 20,
            )  # fmt: skip
            request = kind(
                replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=0,
                session_epoch=-1, topics=[kind.FetchTopic(version=11, topic=self._topic, partitions=[wanted])],
                forgotten_topics_data=[], rack_id="",
            )  # fmt: skip
            answer = ask(f"{leader.host}:{leader.port}", request, 11).responses[0].partitions[0]
            batches = list(iterate_batches(memoryview(bytes(answer.records or b"")), whole=False))
            if not batches:
                return found
            for batch in batches:
                header = batch.header
                text = (
                    f"leader epoch {header.leader_epoch}, producer {header.producer_id} epoch {header.producer_epoch} "
                    f"sequence {header.base_sequence} of {header.record_count} records, {header.max_timestamp} ms"
                )
                first, end = batch.base_offset, batch.base_offset + header.last_offset_delta + 1
                found |= dict.fromkeys(range(first, end), text)

    def _read(self, partition: int, first: int, end: int) -> dict[int, int]:
        """Offset → token."""
        found: dict[int, int] = {}
        if first >= end:
            return found
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(self._topic, partition, first)])
            deadline = time.monotonic() + FINISH_SECONDS
            position = first
            while position < end and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.5):
                    if message.error() is None:
                        _, offset = place_of(message)
                        found[offset] = read_token(message.value())
                        position = offset + 1
        finally:
            consumer.close()
        return found


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[Account]:
    """Run clients during the block; afterwards the account is filled in, unless the block has failed."""
    running = Load(bootstrap, topic)
    account = Account()
    running.start()
    try:
        yield account
    except BaseException:
        running.abandon()
        raise
    account.__dict__.update(running.finish().__dict__)
