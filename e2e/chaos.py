"""Faults on a cluster of real processes under load, then quiet, then the verdict.

Everything that is random comes from the seed: the kinds of faults in their order, how long they last, the pauses. What
exactly a fault meets depends on the machine, so a seed repeats the story, not the microsecond.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka.admin import AdminClient
from e2e import clients
from e2e.checker import (
    MOST_FINDINGS,
    History,
    check_complete,
    check_readers,
    check_replicas,
    check_told,
    check_unplaced,
    collect,
    partition_folder,
)  # fmt: skip
from e2e.ledger import Ledger
from e2e.partition_files import Damaged, check_indexes, size_bytes
from e2e.processes import BrokerProcess, BrokerTrouble, Cluster, until

TOPIC = "chaos"
PROPERTIES = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
}
TOPIC_CONFIG = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
KINDS = (
    "kill a leader", "kill a follower", "kill the controller", "kill two in turn", "freeze a leader",
    "restart in order", "kill as another returns", "freeze any", "kill all",
)  # fmt: skip
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
    kinds: tuple[str, ...] = KINDS
    freeze_seconds: tuple[float, ...] = (0.5, 3.0, 8.0, 15.0)
    pause_seconds: tuple[float, float] = (0.2, 4.0)
    patience_seconds: float = 120.0


@dataclass
class Verdict:
    findings: list[str]
    history: list[str]
    faults: int = 0
    acknowledged: int = 0
    unplaced: int = 0  # of them, without being told their offsets
    consumed: int = 0
    longest_silence_s: float = 0.0


@dataclass
class Roles:
    leaders: dict[int, int] = field(default_factory=dict)
    controller: int | None = None


class Chaos:
    topic_config: ClassVar[Mapping[str, str]] = TOPIC_CONFIG
    properties: ClassVar[Mapping[str, str]] = PROPERTIES

    def __init__(self, folder: Path, settings: Settings, say: Print) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.partitions, settings.producers)
        self.cluster = Cluster(folder, settings.brokers, self.properties)
        self.verdict = Verdict([], [])
        self._say = say
        self._rng = random.Random(settings.seed)  # of the present fault
        self._began = time.monotonic()
        self._admin = AdminClient({**clients.QUIET, "bootstrap.servers": self.cluster.bootstrap})

    def run(self) -> Verdict:
        with self.cluster:
            self.cluster.start()
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
        """All of them in a new order, again and again."""
        order = random.Random(self.settings.seed)
        while True:
            yield from order.sample(self.settings.kinds, len(self.settings.kinds))

    def _faults(self) -> None:
        self._await_progress("the start")
        end = time.monotonic() + self.settings.seconds
        for kind in self._kinds():
            enough = self.verdict.faults >= self.settings.least_faults and time.monotonic() > end
            if enough or self.verdict.faults >= self.settings.most_faults or self.verdict.findings:
                return
            self.verdict.faults += 1
            # Its own for each: how many brokers lead something must not change what the later faults are.
            self._rng = random.Random(f"{self.settings.seed}/{self.verdict.faults}")
            for told in self.ledger.acknowledged:
                told.forget_silence()
            what = self._inflict(kind)
            self._all_up()
            self._await_progress(what)
            silence = max(told.longest_silence_s for told in self.ledger.acknowledged)
            self.verdict.longest_silence_s = max(self.verdict.longest_silence_s, silence)
            self._note(f"fault {self.verdict.faults}: {what}; a partition was silent for {silence:.1f} s at most")
            time.sleep(self._rng.uniform(*self.settings.pause_seconds))

    def _inflict(self, kind: str) -> str:
        roles = Roles(clients.leaders(self._admin, TOPIC), self.cluster.active_controller())
        down = self._rng.choice([0.0, 0.5, 2.0, 7.0])
        victim = self._victim(kind, roles)
        label = self._label(victim, roles)
        if kind == "restart in order":
            victim.stop()
            time.sleep(down)
            return f"{label} restarted in order, down for {down} s"
        if kind.startswith("freeze"):
            seconds = self._rng.choice(self.settings.freeze_seconds)
            victim.pause()
            time.sleep(seconds)
            victim.resume()
            return f"{label} frozen for {seconds} s"
        if kind == "kill all":
            for broker in self._rng.sample(self.cluster.brokers, len(self.cluster.brokers)):
                broker.kill()
            return "kill -9 of all"
        if kind in ("kill two in turn", "kill as another returns"):
            return self._kill_two(kind, victim, label, roles, down)
        victim.kill()
        time.sleep(down)
        return f"kill -9 of {label}, down for {down} s"

    def _kill_two(self, kind: str, victim: BrokerProcess, label: str, roles: Roles, down: float) -> str:
        other = self._rng.choice([broker for broker in self.cluster.brokers if broker is not victim])
        victim.kill()
        time.sleep(down)
        if kind == "kill as another returns":
            victim.start()
            victim.wait_ready()
            time.sleep(self._rng.choice([0.0, 0.05, 0.5]))
            other.kill()
            return f"kill -9 of {label}, and of {self._label(other, roles)} just when the first was back"
        other.kill()
        time.sleep(down)
        victim.start()
        time.sleep(self._rng.choice([0.0, 1.0, 3.0]))
        return f"kill -9 of {label}, then of {self._label(other, roles)}, {down} s apart"

    def _victim(self, kind: str, roles: Roles) -> BrokerProcess:
        brokers = self.cluster.brokers
        leading = [broker for broker in brokers if broker.node_id in roles.leaders.values()]
        if kind.endswith("leader"):
            brokers = leading or brokers
        elif kind.endswith("controller"):
            brokers = [broker for broker in brokers if broker.node_id == roles.controller] or brokers
        elif kind.endswith("follower"):
            leads = list(roles.leaders.values())
            fewest = min(leads.count(broker.node_id) for broker in brokers)
            least = [broker for broker in brokers if leads.count(broker.node_id) == fewest]
            brokers = [broker for broker in least if broker.node_id != roles.controller] or least
        return self._rng.choice(brokers)

    def _label(self, broker: BrokerProcess, roles: Roles) -> str:
        leads = list(roles.leaders.values()).count(broker.node_id)
        controller = ", the active controller" if roles.controller == broker.node_id else ""
        return f"broker {broker.node_id} (leads {leads} of {self.settings.partitions}{controller})"

    def _all_up(self) -> None:
        """Everybody runs again; nobody may have gone on his own."""
        for broker in self.cluster.brokers:
            if broker.ended_by_itself:
                self._find(f"broker {broker.node_id} ended by itself; see {broker.folder}")
            if not broker.is_running:
                broker.start()
        for broker in self.cluster.brokers:
            broker.wait_ready()

    def _await_progress(self, after: str) -> None:
        """Until every partition has taken a new record."""
        before = [len(told.offsets) for told in self.ledger.acknowledged]
        if not until(lambda: self._all_longer(before) or bool(self.ledger.problems), self.settings.patience_seconds):
            stuck = [p for p, told in enumerate(self.ledger.acknowledged) if len(told.offsets) == before[p]]
            self._find(f"partitions {stuck} took no record for {self.settings.patience_seconds:.0f} s after {after}")
        for problem in self.ledger.problems[:MOST_FINDINGS]:
            self._find(problem)

    def _all_longer(self, before: Sequence[int]) -> bool:
        return all(len(told.offsets) > count for told, count in zip(self.ledger.acknowledged, before, strict=True))

    # -- quiet

    def _quiet(self, producers: Sequence[clients.SequencedProducer]) -> None:
        """Everything sent is acknowledged, everything acknowledged is read, all replicas have all of it."""
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
            self._find(f"the replicas did not reach the same size within {patience:.0f} s after the last record")

    def _all_read(self) -> bool:
        return all(
            len(self.ledger.consumed[p].offsets) >= len(told.offsets) + len(self.ledger.unplaced[p])
            and sum(self.ledger.group_read[p]) >= len(told.offsets) + len(self.ledger.unplaced[p])
            for p, told in enumerate(self.ledger.acknowledged)
        )

    def _replicas_level(self) -> bool:
        for partition in range(self.settings.partitions):
            try:
                sizes = {size_bytes(folder) for folder in self._folders(partition)}
            except Damaged:
                return False
            if len(sizes) != 1:
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
        sound = not found  # replicas of brokers that were killed in the end may differ in what is not committed
        for partition in range(self.settings.partitions):
            history = History(partition, self.settings.partitions)
            histories.append(history)
            collect(lambda p=partition, h=history: h.read(self._longest(p), whole=sound), found)  # type: ignore[misc]
            found += history.findings
            found += check_told(history, self.ledger.acknowledged[partition], "was acknowledged at")
            found += check_unplaced(history, self.ledger.unplaced[partition])
            if sound:
                collect(lambda p=partition: check_replicas(self._folders(p)), found)  # type: ignore[misc]
                for folder in self._folders(partition):
                    collect(lambda f=folder: self._check_indexes(f), found)  # type: ignore[misc]
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

    def _longest(self, partition: int) -> Path:
        return max(self._folders(partition), key=size_bytes)

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {text}  [{self.ledger.acknowledged_count:,} acknowledged]"
        self.verdict.history.append(line)
        self._say(line)

    def _find(self, text: str) -> None:
        self.verdict.findings.append(text)
        self._note(f"FOUND: {text}")
