"""The active controller, a real process, is killed at every single step of adding partitions: all are there, or none.

`tests/broker/controller/test_expansion_is_all_or_nothing.py` does it message by message, in one process. Here steps are
what the process does to its disks and its connections, down to the logs that it makes as a broker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from e2e import clients
from e2e.asking import ask, message
from e2e.processes import BrokerProcess, Cluster, until

PATIENCE_S = 60.0
FEWEST_POINTS = 12  # a change has 17 to 22 steps; fewer would show that something is not seen
MOST_POINTS = 500
REPLICAS = 3
LOOK_EVERY_S = 0.03
NEW = 2  # partitions that are added, or that a new topic has
NONE, TOPIC_EXISTS, INVALID_PARTITIONS = 0, 36, 37
CREATED, EXPANDED = "CreateTopicsRequest", "CreatePartitionsRequest"
PROPERTIES = {"broker.session.timeout.ms": "6000", "leader.imbalance.check.interval.seconds": "3600"}


@dataclass(frozen=True)
class Change:
    """To make `topic`, or to bring it, to `count` partitions; it has `count - NEW` before."""

    name: str
    topic: str
    count: int

    @property
    def refusal(self) -> int:
        """What is answered where it has happened already."""
        return TOPIC_EXISTS if self.name == CREATED else INVALID_PARTITIONS

    def ask(self, broker: BrokerProcess, *, only_validate: bool = False) -> int:
        """The error code. OSError where the broker breaks off."""
        kind = message(self.name)
        timing = {"timeout_ms": int(PATIENCE_S * 1000), "validate_only": only_validate}
        if self.name == CREATED:
            topic = kind.CreatableTopic(
                name=self.topic, num_partitions=self.count, replication_factor=REPLICAS, assignments=[], configs=[]
            )
            request, version = kind(topics=[topic], **timing), 5
        else:
            topic = kind.CreatePartitionsTopic(name=self.topic, count=self.count, assignments=None)
            request, version = kind(topics=[topic], **timing), 3
        answer = ask(broker.address, request, version, PATIENCE_S)
        (result,) = answer.topics if self.name == CREATED else answer.results
        return int(result.error_code)


def partitions(broker: BrokerProcess, topic: str) -> dict[int, int]:
    """Leader of each partition of the topic that this broker knows."""
    kind = message("MetadataRequest")
    asked = kind(topics=[kind.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (found,) = ask(broker.address, asked, 8, PATIENCE_S).topics
    return {each.partition_index: each.leader_id for each in found.partitions}


@dataclass
class Watch:
    """Asks brokers again and again what they know of the topic that is being changed."""

    brokers: list[BrokerProcess]
    topic: str
    allowed: tuple[int, ...]
    seen: int = 0
    half: list[str] = field(default_factory=list)

    @contextmanager
    def on(self) -> Iterator[None]:
        over = threading.Event()
        threads = [threading.Thread(target=self._look, args=(each, over), daemon=True) for each in self.brokers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert not self.half, self.half

    def _look(self, broker: BrokerProcess, over: threading.Event) -> None:
        """At least once, however soon it is over."""
        while True:
            with suppress(OSError):
                known = partitions(broker, self.topic)
                self.seen += 1
                if len(known) not in self.allowed or sorted(known) != list(range(len(known))):
                    self.half.append(f"broker {broker.node_id} knows of {sorted(known)}")
            if over.wait(LOOK_EVERY_S):
                return


class Points:
    """Each point of one kind of change, in a cluster that lives on from one to the next."""

    def __init__(self, folder: Path, name: str, *, forwarded: bool) -> None:
        self.cluster = Cluster(folder, REPLICAS, PROPERTIES)
        self._fatal = folder / "kill-after"
        self._name = name
        self._forwarded = forwarded
        self.points = 0
        self.happened = 0  # before the client asked again
        for broker in self.cluster.brokers:
            broker.module = "tests.chaos.killed_controller"
            broker.environment["BALLAST_TEST_KILL_AFTER"] = str(self._fatal)

    def run(self, every: int) -> None:
        """Until the controller lives on when all is done."""
        with self.cluster:
            self.cluster.start()
            for point in range(0, MOST_POINTS, every):
                change, controller = self._change(point), self._controller()
                others = [broker for broker in self.cluster.brokers if broker is not controller]
                # Not the controller itself: the answers would be steps, and hide some of those that count.
                watch = Watch(others, change.topic, (change.count - NEW, change.count))
                with watch.on():
                    died = self._play(change, point, controller, others)
                assert watch.seen, "nobody looked"
                if not died:
                    return
                self.points += 1
        raise AssertionError(f"{MOST_POINTS} steps were not enough")

    def _change(self, point: int) -> Change:
        topic = f"topic-{point}"
        if self._name == CREATED:
            return Change(CREATED, topic, NEW)
        clients.create_topic(self.cluster.bootstrap, topic, NEW, REPLICAS, {})
        # Brokers hear of it after its answer, and a watch would take who has not for one that knows half of it.
        assert until(lambda: all(len(partitions(each, topic)) == NEW for each in self.cluster.brokers), PATIENCE_S)
        return Change(EXPANDED, topic, 2 * NEW)

    def _play(self, change: Change, point: int, controller: BrokerProcess, others: list[BrokerProcess]) -> bool:
        """Whether the controller died of it."""
        self._fatal.write_text(f"{point} {change.name}")
        code = None
        with suppress(OSError):
            code = change.ask(others[0] if self._forwarded else controller)
        assert not self._fatal.exists(), "the controller took it up"
        if code is not None or self._forwarded:  # a broker that was asked asks the next controller itself
            assert code in (NONE, change.refusal), f"{change} was answered {code} at step {point}"
        else:
            assert until(lambda: not controller.is_running, PATIENCE_S)
            self._ask_again(change, others)
        died = False

        def whole() -> bool:
            nonlocal died
            if not controller.is_running:
                died = True
                controller.start()
                controller.wait_ready()
            return all(self._is_whole(change, broker) for broker in self.cluster.brokers)

        assert until(whole, PATIENCE_S), f"{change} at step {point} is not everywhere"
        self._write(change)
        return died

    def _ask_again(self, change: Change, others: list[BrokerProcess]) -> None:
        """Whoever asks whether it could be done is told the truth, and is told the same who does it then."""
        told = change.ask(others[0], only_validate=True)
        assert told in (NONE, change.refusal), told
        assert change.ask(others[1]) == told
        self.happened += told == change.refusal

    def _controller(self) -> BrokerProcess:
        found: list[int] = []

        def known() -> bool:
            found[:] = [n for n in [self.cluster.active_controller()] if n is not None]
            return bool(found)

        assert until(known, PATIENCE_S)
        return self.cluster.brokers[found[0] - 1]

    def _is_whole(self, change: Change, broker: BrokerProcess) -> bool:
        """The broker knows all of it, with leaders, and has the logs."""
        with suppress(OSError):
            known = partitions(broker, change.topic)
            led = len(known) == change.count and all(leader > 0 for leader in known.values())
            return led and self._has_logs(change, broker)
        return False

    @staticmethod
    def _has_logs(change: Change, broker: BrokerProcess) -> bool:
        """Each log once, and none that nobody asked for."""
        names = [path.name for volume in broker.volumes for path in volume.glob(f"{change.topic}-*")]
        return sorted(names) == sorted(f"{change.topic}-{number}" for number in range(change.count))

    def _write(self, change: Change) -> None:
        failed: list[KafkaError] = []

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({**clients.QUIET, "bootstrap.servers": self.cluster.bootstrap, "acks": "all"})
        for partition in range(change.count - NEW, change.count):
            producer.produce(change.topic, b"x", partition=partition, on_delivery=note)
        assert producer.flush(PATIENCE_S) == 0
        assert not failed, failed


@pytest.mark.simulation
@pytest.mark.timeout(1200)
@pytest.mark.spec("TOP-11", "TOP-05", "TOP-12")
@pytest.mark.parametrize(("forwarded", "every"), [(False, 1), (True, 5)], ids=["asked-itself", "asked-by-a-broker"])
@pytest.mark.parametrize("name", [EXPANDED, CREATED], ids=["expansion", "creation"])
def test_the_controller_is_killed_at_every_step(tmp_path: Path, name: str, forwarded: bool, every: int) -> None:
    points = Points(tmp_path, name, forwarded=forwarded)
    points.run(every)
    assert points.points >= FEWEST_POINTS // every
    if not forwarded:
        assert 0 < points.happened < points.points, "some died before it counted, some after"
