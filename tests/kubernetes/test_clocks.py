"""Clocks that step under load, one broker's after the other: nobody is to take it for time that has passed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.clients import GroupMember
from e2e.kubernetes.clocks import (
    HOUR_MS,
    STAMPED,
    STEPS_MS,
    brokers_with_clocks,
    clock_offset_ms,
    stamped_topic,
    step_clock,
)
from e2e.kubernetes.faults import HEAL_SECONDS, seconds_pass
from e2e.kubernetes.load import load
from e2e.kubernetes.story import until_in_sync
from e2e.kubernetes.world import CLUSTER, World, cluster, topic
from e2e.ledger import Ledger

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS = 6
KEPT_MS = 48 * HOUR_MS
LOOK_EVERY_MS = 1000
NEAR_MS = 30_000
LASTS_SECONDS = 11.0  # longer than the sessions of brokers and of members of the group


@pytest.fixture
def stepping(installed: World) -> Iterator[World]:
    """With brokers whose clocks can be stepped, and that look every second for what is too old."""
    with brokers_with_clocks(installed):
        if not installed.image:
            pytest.skip(f"provider {installed.provider.name} has no image with such a clock")
        _run_brokers(installed, cluster(installed, config={"log.retention.check.interval.ms": LOOK_EVERY_MS}))
        yield installed
    _run_brokers(installed, cluster(installed))


def _run_brokers(world: World, body: dict[str, object]) -> None:
    world.apply(body)
    world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
    until_in_sync(world)


class Group:
    """Two members that share a topic and commit as they go."""

    def __init__(self, world: World, name: str) -> None:
        self.ledger = Ledger(PARTITIONS, producers=0)
        self._members = [GroupMember(world.bootstrap, name, self.ledger, number) for number in range(2)]

    @property
    def assignments(self) -> list[int]:
        return [member.assignments for member in self._members]

    @property
    def read(self) -> int:
        return sum(map(sum, self.ledger.group_read))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for member in self._members:
            member.start()
        try:
            yield
        finally:
            for member in self._members:
                member.stop()
            for member in self._members:
                member.join()


@pytest.mark.spec("OPR-45")
def test_clocks_step(stepping: World) -> None:
    name = f"stepped-{time.monotonic_ns()}"
    config = {"min.insync.replicas": "2", "retention.ms": str(KEPT_MS)}
    stepping.apply(topic(name, partitions=PARTITIONS, replicas=3, config=config), stamped_topic(3))
    for each in (name, STAMPED):
        stepping.until_ready("kafkatopic", each)
    until_in_sync(stepping)
    group = Group(stepping, name)
    with group.at_work():
        with load(stepping.bootstrap, name) as account:
            stepping.until("both members have their parts", lambda: all(group.assignments) and group.read > 0)
            seconds_pass(stepping, LASTS_SECONDS)  # whoever came second makes the first one's part smaller
            before = _state(stepping, name), group.assignments
            for broker, pod in enumerate(sorted(stepping.pods())):
                for offset_ms in (max(STEPS_MS), min(STEPS_MS)):
                    _step(stepping, broker, pod, offset_ms)
                    seconds_pass(stepping, LASTS_SECONDS)
                    assert (_state(stepping, name), group.assignments) == before, f"{pod} at {offset_ms} ms"
                _step(stepping, broker, pod, 0)  # what comes of it is seen when the next one's has lasted
            seconds_pass(stepping, LASTS_SECONDS)
            assert (_state(stepping, name), group.assignments) == before, "all clocks are right again"
        assert account.problems == []
        assert account.acknowledged == account.sent
        stepping.until("the group has read all", lambda: group.read == account.acknowledged)
    assert group.ledger.problems == []
    stepping.say(f"the clock of each broker was set 36 h ahead, half an hour back and right again; meanwhile {account}")


def _step(world: World, broker: int, pod: str, offset_ms: int) -> None:
    step_clock(world, pod, offset_ms)
    assert abs(clock_offset_ms(world, broker) - offset_ms) < NEAR_MS


def _state(world: World, name: str) -> object:
    """What a step may not change: who leads, who is in sync, which containers run, what the operator says."""
    pods = world.all("pods")
    restarts = {
        (pod["metadata"]["name"], pod["metadata"]["uid"], one["restartCount"])
        for pod in pods
        for one in pod["status"].get("containerStatuses", ())
    }
    return world.view().topics[name].partitions, restarts, world.ready("kafkacluster", CLUSTER)[0]
