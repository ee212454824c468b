"""Kills one broker at random moments under load, again and again on the same data directories.

After each start: what was acknowledged is on disk, in order and once; the indexes agree with the log; and the broker
answers correctly for offsets and timestamps. Some kills hit the broker while it recovers from the one before. What has
been judged is trimmed with DeleteRecords now and then, so that a long run fits on a small disk.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from e2e import clients
from e2e.checker import (
    MOST_FINDINGS,
    History,
    add_findings,
    check_complete,
    check_known,
    check_unplaced,
    partition_folder,
)
from e2e.ledger import Ledger, describe, read_token
from e2e.partition_files import check_indexes, segments, size_bytes
from e2e.processes import BrokerTrouble, Cluster, until

TOPIC = "kills"
TOPIC_CONFIG = {"segment.bytes": "8388608", "file.delete.delay.ms": "1000"}
KILL_WHILE_STARTING = 0.15
ANSWER_S = 60.0
ATTEMPT_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    seed: int
    times: int = 200
    least_s: float = 0.2
    most_s: float = 5.0
    partitions: int = 4
    producers: int = 2
    records_per_second: int = 3500  # of each producer
    value_bytes: int = 4000
    trim_bytes: int = 2 << 30
    patience_s: float = 120.0


@dataclass
class Verdict:
    findings: list[str]
    kills: int = 0
    while_starting: int = 0
    acknowledged: int = 0
    loaded_bytes: int = 0  # acknowledged between judging one kill and the next kill
    loaded_s: float = 0.0
    index_entries: int = 0
    trimmed: int = 0
    slowest_start_s: float = 0.0


class Kills:
    def __init__(self, folder: Path, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.cluster = Cluster(folder, 1, {})
        self.broker = self.cluster.brokers[0]
        self.ledger = Ledger(settings.partitions, settings.producers)
        self.histories = [History(p, settings.partitions) for p in range(settings.partitions)]
        self.verdict = Verdict([])
        self._producers: list[clients.SequencedProducer] = []
        self._say = say
        self._rng = random.Random(settings.seed)
        self._questions = random.Random(settings.seed)
        self._judged = [0] * settings.partitions  # how many acknowledgements of each partition
        self._indexed = [0] * settings.partitions  # indexes of earlier segments have been verified
        self._starts = [0] * settings.partitions  # log start offsets that we have asked for

    def run(self) -> Verdict:
        with self.cluster:
            self.cluster.start()
            clients.create_topic(self.cluster.bootstrap, TOPIC, self.settings.partitions, 1, TOPIC_CONFIG)
            producers = self._producers = [
                clients.SequencedProducer(
                    self.cluster.bootstrap, TOPIC, self.ledger, number,
                    per_second=self.settings.records_per_second, value_bytes=self.settings.value_bytes,
                )
                for number in range(self.settings.producers)
            ]  # fmt: skip
            try:
                for producer in producers:
                    producer.start()
                self._rounds()
                if not self.verdict.findings:
                    self._finish(producers)
            except BrokerTrouble as trouble:
                self.verdict.findings.append(str(trouble))
            finally:
                for producer in producers:
                    producer.stop()
                for producer in producers:
                    producer.join()
        self._conclude()
        return self.verdict

    def _rounds(self) -> None:
        self._await_records()
        while self.verdict.kills < self.settings.times and not self.verdict.findings:
            before, began = self.ledger.acknowledged_count, time.monotonic()
            time.sleep(self._rng.uniform(self.settings.least_s, self.settings.most_s))
            self.verdict.loaded_s += time.monotonic() - began
            self.verdict.loaded_bytes += (self.ledger.acknowledged_count - before) * self.settings.value_bytes
            took = self._kill_and_start()
            self.verdict.slowest_start_s = max(self.verdict.slowest_start_s, took)
            for producer in self._producers:
                producer.rest()  # else they send faster than we can judge
            self._judge()
            self._ask()
            for producer in self._producers:
                producer.go_on()
            self._await_records()
            self._trim()
            self._say(
                f"kill {self.verdict.kills} of {self.settings.times}: serves again after {took:.2f} s; "
                f"{self.ledger.acknowledged_count:,} records acknowledged, all there"
                if not self.verdict.findings
                else f"kill {self.verdict.kills}: FOUND {self.verdict.findings[0]}"
            )

    def _kill_and_start(self) -> float:
        """Kill it, perhaps again while it starts, and wait until it serves. Returns the seconds of the last start."""
        self._kill()
        while self.verdict.kills < self.settings.times and self._rng.random() < KILL_WHILE_STARTING:
            self.broker.start()
            time.sleep(self._rng.uniform(0.1, 1.5))
            self.verdict.while_starting += 1
            self._kill()
        began = time.monotonic()
        self.broker.start()
        self.broker.wait_ready()
        return time.monotonic() - began

    def _kill(self) -> None:
        if not self.broker.is_running:
            raise BrokerTrouble(f"broker {self.broker.node_id} ended before it was killed; see {self.broker.folder}")
        self.broker.kill()
        self.verdict.kills += 1

    def _await_records(self) -> None:
        before = [len(known.offsets) for known in self.ledger.acknowledged]

        def all_longer() -> bool:
            return all(len(t.offsets) > n for t, n in zip(self.ledger.acknowledged, before, strict=True))

        if not until(lambda: all_longer() or bool(self.ledger.problems), self.settings.patience_s):
            self.verdict.findings.append(f"no new records in {self.settings.patience_s:.0f} s")
        self.verdict.findings += self.ledger.problems[:MOST_FINDINGS]

    # -- judging

    def _folder(self, partition: int) -> Path:
        return partition_folder(self.broker.volumes, TOPIC, partition)

    def _judge(self, *, whole: bool = False) -> None:
        """Everything acknowledged up to now must be on disk."""
        found = self.verdict.findings
        for history in self.histories:
            known = self.ledger.acknowledged[history.partition]
            acknowledged = len(known.tokens)
            add_findings(lambda h=history: h.read(self._folder(h.partition), whole=whole), found)  # type: ignore[misc]
            found += history.findings
            first = self._judged[history.partition]
            found += check_known(history, known, "was acknowledged at", first, acknowledged)
            self._judged[history.partition] = acknowledged
            add_findings(lambda p=history.partition: self._check_indexes(p, whole), found)  # type: ignore[misc]

    def _check_indexes(self, partition: int, whole: bool) -> None:
        folder = self._folder(partition)
        first = 0 if whole else self._indexed[partition]
        self.verdict.index_entries += check_indexes(folder, from_segment=first)
        self._indexed[partition] = max(self._indexed[partition], *segments(folder)[-2:-1], 0)

    def _ask(self) -> None:
        """Check the broker's own answers: log ends, single offsets, timestamps."""
        settings = {**clients.QUIET, "bootstrap.servers": self.cluster.bootstrap, "group.id": "asking"}
        consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "error"})
        try:
            for history in self.histories:
                self.verdict.findings += self._ask_about(consumer, history)
        finally:
            consumer.close()

    def _ask_about(self, consumer: Consumer, history: History) -> list[str]:
        where = f"partition {history.partition}"
        end = len(history.tokens)
        _, high = _patiently(
            lambda: consumer.get_watermark_offsets(TopicPartition(TOPIC, history.partition), ATTEMPT_S)
        )
        if high < end:
            return [f"{where}: the broker says that it ends at {high}; on disk are {end} records"]
        start = self._starts[history.partition]
        if start >= end:
            return []
        offset = self._questions.randrange(start, end)
        consumer.assign([TopicPartition(TOPIC, history.partition, offset)])
        got: list[Any] = []

        def fetched() -> bool:
            got.extend(m for m in consumer.consume(1, 0.5) if m.error() is None)
            return bool(got)

        if not until(fetched, ANSWER_S):
            return [f"{where}: offset {offset} of {end} was not given within {ANSWER_S:.0f} s"]
        message = got[0]
        token, given = read_token(message.value()), message.offset()
        if given != offset or token != history.tokens[offset]:
            there = describe(history.tokens[offset])
            return [f"{where}: asked for offset {offset} ({there}), given {describe(token)} as offset {given}"]
        timestamp = message.timestamp()[1]
        asked = [TopicPartition(TOPIC, history.partition, timestamp)]
        first = _patiently(lambda: consumer.offsets_for_times(asked, timeout=ATTEMPT_S))[0].offset
        if not 0 <= first <= offset:
            return [f"{where}: offset {offset} has timestamp {timestamp}; the broker says that {first} is the first"]
        return []

    def _trim(self) -> None:
        """Have what was judged deleted, once there is a lot of it."""
        total = sum(size_bytes(self._folder(p)) for p in range(self.settings.partitions))
        if total < self.settings.trim_bytes or self.verdict.findings:
            return
        ends = [len(history.tokens) for history in self.histories]
        admin = AdminClient({**clients.QUIET, "bootstrap.servers": self.cluster.bootstrap})
        answers = admin.delete_records([TopicPartition(TOPIC, p, end) for p, end in enumerate(ends)])
        for partition, answer in answers.items():
            answer.result(60)
            self._starts[partition.partition] = ends[partition.partition]
        self.verdict.trimmed += 1

    # -- the end

    def _finish(self, producers: Sequence[clients.SequencedProducer]) -> None:
        for producer in producers:
            producer.finish()
        if not until(lambda: all(producer.waiting == 0 for producer in producers), self.settings.patience_s):
            left = [producer.waiting for producer in producers]
            self.verdict.findings.append(f"{left} records per producer were never acknowledged")
            return
        self.broker.stop()
        self._judge(whole=True)
        for history in self.histories:
            self.verdict.findings += check_unplaced(history, self.ledger.unplaced[history.partition])
        self.verdict.findings += check_complete(self.histories, self.ledger)

    def _conclude(self) -> None:
        found = self.verdict.findings
        found += [problem for problem in self.ledger.problems if problem not in found]
        found += self.broker.complaints()[:MOST_FINDINGS]
        self.verdict.acknowledged = self.ledger.acknowledged_count


def _patiently(ask: Callable[[], T]) -> T:
    """Retry: a broker that has just started may not know a leader for a moment."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        with suppress(KafkaException):
            return ask()
    return ask()
