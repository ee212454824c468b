"""Moves replicas all the time, between directories and between brokers, while brokers are killed; then judges.

The load, the settling and the checks are those of `chaos`; this adds the moves. A move that a killed broker forgot (it
had not begun yet) is requested again, as Kafka's tool does. At the end each broker has exactly the logs that the
metadata assigns to it, once each, and no remains of any move; only strays that a broker has put aside after it was down
may be left. Apache Kafka's dump-log, if its jars are there, must find the logs valid.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException, TopicPartition
from e2e import clients, dump_log, moving
from e2e.chaos import PROPERTIES, TOPIC, Chaos, Settings
from e2e.checker import add_findings, partition_folder
from e2e.partition_files import Damaged
from e2e.processes import BrokerProcess, until

REPLICAS = 2
MEASURED_S = 10.0
AS_FAST_AS_IT_GOES = 10_000_000
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
ASK_AGAIN_S = 1.0
MOVED_WITHIN_S = 600.0  # partitions grow all the time; a move that hangs takes longer
LOOK_EVERY_S = 0.1
TRIMMED_WITHIN_S = 10.0
REDIRECTED = 0.15
SAME_PARTITION = 0.2
STRAY = "-stray"
GONE = (OSError, ConnectionError, KafkaException)


@dataclass(frozen=True)
class MoveSettings(Settings):
    replicas: int = REPLICAS
    rounds: int = 100  # moves between directories, and as many reassignments
    kills: int = 20
    segment_bytes: int = 1 << 20
    keep_bytes: int = 1 << 40  # of a partition; older records are deleted once all consumers have read them
    throttle: int = 16_000_000  # bytes per second; slow enough that kills meet moves
    load_share: float = 0.0  # of the cluster's maximum throughput, which is measured first; 0: use `records_per_second`


class MoveSoak(Chaos):
    """`verdict.faults` counts the kills."""

    settings: MoveSettings
    megabytes_per_second: float = 0.0  # acknowledged while replicas moved
    dumped: int = 0  # replicas that Apache Kafka's dump-log has read
    _places: dict[int, list[int]] | None = None  # replicas of each partition, as the cluster had them in the end
    _producers: Sequence[clients.SequencedProducer] = ()

    properties: ClassVar[Mapping[str, str]] = {**PROPERTIES, "log.retention.check.interval.ms": "2000"}

    @property
    def topic_config(self) -> Mapping[str, str]:
        return {
            "min.insync.replicas": "1",
            "segment.bytes": str(self.settings.segment_bytes),
            "file.delete.delay.ms": "1000",
        }

    def _clients(self) -> tuple[list[clients.SequencedProducer], list[clients.Worker]]:
        producers, readers = super()._clients()
        self._producers = producers
        return producers, readers

    def _faults(self) -> None:
        self._patiently(self._throttle)
        if self.settings.load_share:
            self._set_load()
        began, before = time.monotonic(), self.ledger.acknowledged_count
        self._rounds()
        self.megabytes_per_second = self._megabytes(self.ledger.acknowledged_count - before, time.monotonic() - began)

    def _set_load(self) -> None:
        self._await_progress("the start")
        for producer in self._producers:
            producer.per_second = AS_FAST_AS_IT_GOES
        began, before = time.monotonic(), self.ledger.acknowledged_count
        time.sleep(MEASURED_S)
        seconds, records = time.monotonic() - began, self.ledger.acknowledged_count - before
        for producer in self._producers:
            producer.per_second = max(1, int(self.settings.load_share * records / seconds / len(self._producers)))
        taken = self._megabytes(records, seconds)
        self._note(f"the cluster takes {taken:.1f} MB/s; producers go on with {self.settings.load_share:.0%} of that")

    def _megabytes(self, records: int, seconds: float) -> float:
        return records * self.settings.value_bytes / seconds / 1e6

    def _rounds(self) -> None:
        kill_in = set(self._rng.sample(range(self.settings.rounds), self.settings.kills))
        for number in range(self.settings.rounds):
            if self.verdict.findings:
                return
            began = time.monotonic()
            what = self._round(kill=number in kill_in)
            self._await_progress(what)
            self._note(f"round {number + 1}: {what}; {time.monotonic() - began:.1f} s")
            self._patiently(self._trim)

    def _round(self, *, kill: bool) -> str:
        """One move between directories and one reassignment at the same time, perhaps with a kill in the middle."""
        assigned = self._assigned()
        moved, reassigned = self._rng.sample(range(self.settings.partitions), 2)
        if self._rng.random() < SAME_PARTITION:
            reassigned = moved
        broker = self._broker(self._rng.choice(assigned[moved]))
        target = self._rng.choice([str(volume) for volume in broker.volumes])
        replicas = self._rng.sample([each.node_id for each in self.cluster.brokers], REPLICAS)
        move = _Move(broker, moved, target)
        what = f"{moved} to {target[-1]} on broker {broker.node_id}, {reassigned} to brokers {replicas}"
        requests: list[Callable[[], None]] = [move.ask, lambda: self._reassign(reassigned, replicas)]
        self._rng.shuffle(requests)
        for request in requests:
            self._patiently(request)
        if self._rng.random() < REDIRECTED:
            move.target = self._rng.choice([str(volume) for volume in broker.volumes])
            self._patiently(move.ask)
            what += f", then to {move.target[-1]}"
        if kill:
            what += self._kill()
        self._await_moved(move, reassigned, replicas, what)
        return what

    def _kill(self) -> str:
        time.sleep(self._rng.uniform(0.0, 1.0))
        victim = self._rng.choice(self.cluster.brokers)
        down = self._rng.choice([0.0, 0.5, 2.0])
        victim.kill()
        self.verdict.faults += 1
        time.sleep(down)
        self._all_up()
        return f", kill -9 of broker {victim.node_id} for {down} s"

    def _await_moved(self, move: _Move, partition: int, replicas: list[int], what: str) -> None:
        asked = time.monotonic()

        def there() -> bool:
            nonlocal asked
            time.sleep(LOOK_EVERY_S)
            assigned = self._assigned()
            level = sorted(assigned[partition]) == sorted(replicas) and not self._reassigning()
            if move.broker.node_id not in assigned[move.partition] or move.is_there():
                return level
            if time.monotonic() - asked > ASK_AGAIN_S:
                asked = time.monotonic()
                move.ask()
            return False

        def looked() -> bool:
            with suppress(*GONE):
                return there()
            return False

        if not until(looked, MOVED_WITHIN_S):
            self._find(f"not there after {MOVED_WITHIN_S:.0f} s: {what}")

    # -- asking

    def _patiently(self, request: Callable[[], None]) -> None:
        def accepted() -> bool:
            with suppress(*GONE):
                request()
                return True
            time.sleep(LOOK_EVERY_S)
            return False

        if not until(accepted, self.settings.patience_seconds):
            self._find("a request for a move was not answered")

    def _trim(self) -> None:
        """Have what the consumers have read deleted, so that a long run fits on a small disk."""
        keep = self.settings.keep_bytes // self.settings.value_bytes
        starts = []
        for partition, read in enumerate(self.ledger.group_read):
            gap = read.find(0)
            read_by_all = min(len(self.ledger.consumed[partition].offsets), len(read) if gap < 0 else gap)
            if read_by_all > keep:
                starts.append(TopicPartition(TOPIC, partition, read_by_all - keep))
        for answer in self._admin.delete_records(starts).values() if starts else ():
            answer.result(TRIMMED_WITHIN_S)

    def _throttle(self) -> None:
        """Set dynamically: in the properties file the throttle has no effect, as with Apache Kafka."""
        for broker in self.cluster.brokers:
            moving.configure_broker(broker.address, broker.node_id, {LOG_DIRS_RATE: str(self.settings.throttle)})

    def _reassign(self, partition: int, replicas: list[int]) -> None:
        place = (TOPIC, partition)
        code = moving.reassign(self.cluster.brokers[0].address, {place: replicas})[place]
        if code:
            raise ConnectionError(f"error {code}")

    def _reassigning(self) -> set[moving.Place]:
        return moving.reassigning(self.cluster.brokers[0].address)

    def _assigned(self) -> dict[int, list[int]]:
        """Replicas of each partition; asks until a broker answers."""
        deadline = time.monotonic() + self.settings.patience_seconds
        while True:
            with suppress(KafkaException, KeyError):
                found = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
                if len(found) == self.settings.partitions:
                    return {number: list(each.replicas) for number, each in found.items()}
            if time.monotonic() > deadline:
                raise TimeoutError("nobody tells where replicas are")

    def _broker(self, node_id: int) -> BrokerProcess:
        return next(broker for broker in self.cluster.brokers if broker.node_id == node_id)

    # -- the verdict

    def _stop_in_order(self) -> None:
        self._places = self._assigned()
        if not until(lambda: not self._left_over(), self.settings.patience_seconds):
            self._find(f"what is left where nothing should be: {', '.join(self._left_over()[:5])}")
        super()._stop_in_order()

    def _judge(self) -> None:
        super()._judge()
        kafka = dump_log.jars()
        if kafka is None or self.verdict.findings:
            return
        self._note("reading everything with Apache Kafka's dump-log")
        for partition in range(self.settings.partitions):
            for folder in self._folders(partition):
                add_findings(lambda f=folder: dump_log.check_partition(kafka, f), self.verdict.findings)  # type: ignore[misc]
                self.dumped += 1

    def _left_over(self) -> list[str]:
        """Folders of the topic that the metadata does not explain, and replicas that are missing.

        A broker that was down when its replica was removed puts the log aside as a stray (LOG-34): see `strays`.
        """
        found, places = [], self._places or {}
        for broker in self.cluster.brokers:
            names = [path.name for volume in broker.volumes for path in volume.glob(f"{TOPIC}-*")]
            there = Counter(name for name in names if not name.endswith(STRAY))
            wanted = Counter(f"{TOPIC}-{p}" for p, replicas in places.items() if broker.node_id in replicas)
            found += [f"{name} on broker {broker.node_id}" for name in (there - wanted) | (wanted - there)]
        return found

    def strays(self) -> int:
        volumes = [volume for broker in self.cluster.brokers for volume in broker.volumes]
        return sum(1 for volume in volumes for _ in volume.glob(f"{TOPIC}-*{STRAY}"))

    def _folders(self, partition: int) -> list[Path]:
        name = f"{TOPIC}-{partition}"
        if self._places is not None:
            holders = [self._broker(node_id) for node_id in self._places[partition]]
        else:  # there was a finding and the brokers have ended: only the disk can tell
            holders = [
                each for each in self.cluster.brokers if any((volume / name).is_dir() for volume in each.volumes)
            ]
        folders = [partition_folder(broker.volumes, TOPIC, partition) for broker in holders]
        if not folders:
            raise Damaged(f"{name} has no replica")
        return folders


class _Move:
    """A move of one replica to a directory of its broker."""

    def __init__(self, broker: BrokerProcess, partition: int, target: str) -> None:
        self.broker = broker
        self.partition = partition
        self.target = target

    def ask(self) -> None:
        """Ignores error codes: if the replica has left the broker meanwhile, there is nothing to move."""
        moving.alter_log_dirs(self.broker.address, {(TOPIC, self.partition): self.target})

    def is_there(self) -> bool:
        places = [
            (directory.path, held.is_future)
            for directory in moving.describe_log_dirs(self.broker.address)
            for held in directory.replicas
            if held.place == (TOPIC, self.partition)
        ]
        return places == [(self.target, False)]
