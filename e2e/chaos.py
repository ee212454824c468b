"""Inflicts faults on a cluster of real processes under load, lets it settle, then judges.

All randomness comes from the seed: the kinds of faults and their order, how long they last, the pauses. What exactly a
fault hits depends on the machine, so a seed repeats the story, not the microsecond.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from confluent_kafka.admin import AdminClient
from e2e import clients
from e2e.checker import (
    MOST_FINDINGS,
    History,
    add_findings,
    check_complete,
    check_known,
    check_readers,
    check_replicas,
    check_unplaced,
    partition_folder,
)  # fmt: skip
from e2e.fault_kinds import OF_PROCESSES, OF_THE_NETWORK, Faults, Roles
from e2e.hosts import Hosts
from e2e.ledger import Ledger
from e2e.partition_files import Damaged, check_indexes, end_offset
from e2e.processes import BrokerTrouble, Cluster, until

TOPIC = "chaos"
PROPERTIES = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
}
TOPIC_CONFIG = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
Print = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    seed: int
    seconds: float = 180.0
    least_faults: int = 1
    most_faults: int = 1_000_000
    brokers: int = 3
    replicas: int = 0  # 0: as many as there are brokers
    partitions: int = 6
    producers: int = 2
    records_per_second: int = 400  # of each producer
    value_bytes: int = 400
    kinds: tuple[str, ...] = OF_PROCESSES  # if any is a fault of the network, brokers have hosts of their own
    pause_seconds: tuple[float, float] = (0.2, 4.0)
    patience_seconds: float = 120.0


@dataclass
class Verdict:
    findings: list[str]
    history: list[str]
    faults: int = 0
    acknowledged: int = 0
    unplaced: int = 0  # of those, without an offset
    consumed: int = 0
    longest_silence_s: float = 0.0


class Chaos:
    properties: ClassVar[Mapping[str, str]] = PROPERTIES

    def __init__(self, folder: Path, settings: Settings, say: Print) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.partitions, settings.producers)
        self.hosts = Hosts(settings.brokers) if set(settings.kinds).intersection(OF_THE_NETWORK) else None
        hosts = None if self.hosts is None else self.hosts.hosts
        self.cluster = Cluster(folder, settings.brokers, self.properties, hosts)
        self.verdict = Verdict([], [])
        self._say = say
        self._rng = random.Random(settings.seed)  # of the current fault
        self._began = time.monotonic()

    @property
    def topic_config(self) -> Mapping[str, str]:
        return TOPIC_CONFIG

    def run(self) -> Verdict:
        with self.hosts or nullcontext(), self.cluster:
            self.cluster.start()
            self._admin = AdminClient({**clients.QUIET, "bootstrap.servers": self.cluster.bootstrap})
            settings, config = self.settings, dict(self.topic_config)
            replicas = settings.replicas or settings.brokers
            clients.create_topic(self.cluster.bootstrap, TOPIC, settings.partitions, replicas, config)
            self._note(f"{settings.brokers} brokers are up; the topic has its leaders")
            producers, readers = self._clients()
            workers: list[clients.Worker] = [*producers, *readers]
            try:
                for worker in workers:
                    worker.start()
                self._faults()
                self._quiet(producers)
            except BrokerTrouble as trouble:
                self._find(str(trouble))
            finally:
                for worker in workers:
                    worker.stop()
                for worker in workers:
                    worker.join()
            if not self.verdict.findings:
                self._stop_in_order()
        self._judge()
        return self.verdict

    def _clients(self) -> tuple[list[clients.SequencedProducer], list[clients.Worker]]:
        bootstrap, settings = self.cluster.bootstrap, self.settings
        producers = [
            clients.SequencedProducer(
                bootstrap, TOPIC, self.ledger, number,
                per_second=settings.records_per_second, value_bytes=settings.value_bytes,
            )
            for number in range(settings.producers)
        ]  # fmt: skip
        members = [clients.GroupMember(bootstrap, TOPIC, self.ledger, number) for number in range(2)]
        return producers, [clients.Follower(bootstrap, TOPIC, self.ledger), *members]

    # -- faults

    def _kinds(self) -> Iterator[str]:
        """All kinds in a new random order, again and again."""
        order = random.Random(self.settings.seed)
        while True:
            yield from order.sample(self.settings.kinds, len(self.settings.kinds))

    def _faults(self) -> None:
        self._await_progress("the start")
        end = time.monotonic() + self.settings.seconds
        faults = Faults(self.cluster, self.hosts, self._roles)
        for kind in self._kinds():
            enough = self.verdict.faults >= self.settings.least_faults and time.monotonic() > end
            if enough or self.verdict.faults >= self.settings.most_faults or self.verdict.findings:
                return
            self.verdict.faults += 1
            # One generator per fault: how many brokers lead something must not change the faults that follow.
            self._rng = random.Random(f"{self.settings.seed}/{self.verdict.faults}")
            for known in self.ledger.acknowledged:
                known.forget_silence()
            what = faults.inflict(kind, self._rng)
            self._all_up()
            self._await_progress(what)
            silence = max(known.longest_silence_s for known in self.ledger.acknowledged)
            self.verdict.longest_silence_s = max(self.verdict.longest_silence_s, silence)
            self._note(f"fault {self.verdict.faults}: {what}; a partition was silent for {silence:.1f} s at most")
            time.sleep(self._rng.uniform(*self.settings.pause_seconds))

    def _roles(self) -> Roles:
        return Roles(clients.leaders(self._admin, TOPIC), self.cluster.active_controller())

    def _all_up(self) -> None:
        """Every broker runs again; none may have ended by itself."""
        for broker in self.cluster.brokers:
            if broker.ended_by_itself:
                self._find(f"broker {broker.node_id} ended by itself; see {broker.folder}")
            if not broker.is_running:
                broker.start()
        for broker in self.cluster.brokers:
            broker.wait_ready()

    def _await_progress(self, after: str) -> None:
        """Wait until every partition has taken a new record."""
        before = [len(known.offsets) for known in self.ledger.acknowledged]
        if not until(lambda: self._all_longer(before) or bool(self.ledger.problems), self.settings.patience_seconds):
            stuck = [p for p, known in enumerate(self.ledger.acknowledged) if len(known.offsets) == before[p]]
            self._find(f"partitions {stuck} took no record for {self.settings.patience_seconds:.0f} s after {after}")
        for problem in self.ledger.problems[:MOST_FINDINGS]:
            self._find(problem)

    def _all_longer(self, before: Sequence[int]) -> bool:
        return all(len(known.offsets) > count for known, count in zip(self.ledger.acknowledged, before, strict=True))

    # -- quiet

    def _quiet(self, producers: Sequence[clients.SequencedProducer]) -> None:
        """Wait until everything sent is acknowledged, everything acknowledged is read, and all replicas have it all."""
        patience = self.settings.patience_seconds
        for producer in producers:
            producer.finish()
        if not until(lambda: all(producer.waiting == 0 for producer in producers), patience):
            left = [producer.waiting for producer in producers]
            self._find(f"{left} records per producer were not acknowledged {patience:.0f} s after the last fault")
            return
        if not until(self._all_read, patience):
            self._find(f"the consumers did not reach the end within {patience:.0f} s after the last record")
        if not until(self._replicas_level, patience):
            self._find(f"the replicas did not reach the same end within {patience:.0f} s after the last record")

    def _all_read(self) -> bool:
        return all(
            len(self.ledger.consumed[p].offsets) >= len(known.offsets) + len(self.ledger.unplaced[p])
            and sum(self.ledger.group_read[p]) >= len(known.offsets) + len(self.ledger.unplaced[p])
            for p, known in enumerate(self.ledger.acknowledged)
        )

    def _replicas_level(self) -> bool:
        for partition in range(self.settings.partitions):
            try:
                ends = {end_offset(folder) for folder in self._folders(partition)}
            except Damaged:
                return False
            if len(ends) != 1:
                return False
        return True

    def _stop_in_order(self) -> None:
        try:
            self.cluster.stop()
        except BrokerTrouble as trouble:
            self._find(str(trouble))

    # -- verdict

    def _folders(self, partition: int) -> list[Path]:
        return [partition_folder(broker.volumes, TOPIC, partition) for broker in self.cluster.brokers]

    def _judge(self) -> None:
        self._note("judging what is on disk")
        found = self.verdict.findings
        histories = []
        sound = not found  # otherwise brokers were killed at the end, and replicas may differ in what is not committed
        for partition in range(self.settings.partitions):
            history = History(partition, self.settings.partitions)
            histories.append(history)
            add_findings(lambda h=history: self._read(h, whole=sound), found)  # type: ignore[misc]
            found += history.findings
            found += check_known(history, self.ledger.acknowledged[partition], "was acknowledged at")
            found += check_unplaced(history, self.ledger.unplaced[partition])
            if sound:
                add_findings(lambda p=partition: check_replicas(self._folders(p)), found)  # type: ignore[misc]
                for folder in self._folders(partition):
                    add_findings(lambda f=folder: self._check_indexes(f), found)  # type: ignore[misc]
        if sound:
            found += check_complete(histories, self.ledger) + check_readers(histories, self.ledger)
        found += [problem for problem in self.ledger.problems if problem not in found]
        for broker in self.cluster.brokers:
            found += broker.complaints()[:MOST_FINDINGS]
        self.verdict.acknowledged = self.ledger.acknowledged_count
        self.verdict.unplaced = self.ledger.unplaced_count
        self.verdict.consumed = self.ledger.consumed_count

    def _check_indexes(self, folder: Path) -> None:
        check_indexes(folder)

    def _read(self, history: History, *, whole: bool) -> None:
        folder = max(self._folders(history.partition), key=end_offset)
        history.begin(folder, self.ledger.consumed[history.partition].tokens)
        history.read(folder, whole=whole)

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {text}  [{self.ledger.acknowledged_count:,} acknowledged]"
        self.verdict.history.append(line)
        self._say(line)

    def _find(self, text: str) -> None:
        self.verdict.findings.append(text)
        self._note(f"FOUND: {text}")
