"""What was sent on a connection that its client closed may still arrive, after what was sent on the next one.

So may a transaction marker: its coordinator gave up on the leader that it was sent to, and the next leader wrote it. By
the time it arrives, the first one leads again and has records of the producer's next transaction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.sim.atomicity import everything_of
from tests.sim.clients import SimClient, create_topic, find_topic_id, reassign
from tests.sim.diary import Diary
from tests.sim.directories import DirectoriesRun
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import Plan, Run
from tests.sim.test_many import check_that_all_hold, many
from tests.sim.transactions import BROKER_ADDS, Group, Incarnation
from tests.sim.transactors import NAME

from ballast_broker.replication.partition import Partition
from ballast_broker.storage.producers import ProducerStates
from ballast_wire.names import TopicPartition

ID, STATE, WRITTEN = "x", TopicPartition("__transaction_state", 0), TopicPartition(NAME, 0)
SEEDS = range(8000, 8004)
LATE_S = 8.0
MOMENT_S = 20.0


def is_active(machine: Machine) -> bool:
    driver = getattr(machine.process.node, "driver", None) if machine.process is not None else None
    return driver is not None and driver.is_leader


def state_at(machine: Machine, partition: TopicPartition) -> Partition | None:
    broker = None if machine.process is None else machine.process.node.broker
    return None if broker is None else broker.replicas.partition(partition)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(MOMENT_S):
        while not holds():  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.02)


class Scene:
    """Three nodes: the active controller, the transaction coordinator, and the leader of the topic."""

    def __init__(self) -> None:
        self.cluster = Run(1, Plan(properties={"transaction.state.log.num.partitions": "1"}))
        self.fabric, machines = self.cluster.fabric, self.cluster.machines
        self.fabric.given_up_arrives = True
        hosts = [machine.host for machine in machines]
        self.admin = SimClient(self.fabric, "admin", hosts)
        self.client = SimClient(self.fabric, "producer", hosts)
        self.diary = Diary()

    async def begin(self) -> Incarnation:
        for machine in self.cluster.machines:
            machine.start()
        await create_topic(self.admin, NAME, 1, 3)
        await until(lambda: any(map(is_active, self.cluster.machines)))
        producer = Incarnation(
            self.client, self.diary, ID, BROKER_ADDS, [WRITTEN], await find_topic_id(self.admin, NAME),
            Group("g", WRITTEN), random.Random(1), timeout_ms=60_000, per_second=1.0,
        )  # fmt: skip
        await producer._init()
        self.coordinator, self.leader = [each for each in self.cluster.machines if not is_active(each)]
        self.third = next(each for each in self.cluster.machines if is_active(each))
        await self.lead(self.coordinator, STATE, self.third)
        await self.lead(self.leader, WRITTEN, self.third)
        return producer

    async def lead(self, leader: Machine, partition: TopicPartition, *others: Machine) -> None:
        await reassign(self.admin, {partition: [leader.node_id]})
        await until(lambda: (state := state_at(leader, partition)) is not None and state.is_leader)
        if others:
            replicas = {leader.node_id, *(each.node_id for each in others)}
            await reassign(self.admin, {partition: sorted(replicas, key=lambda node_id: node_id != leader.node_id)})
            await until(lambda: (state := state_at(leader, partition)) is not None and set(state.isr) == replicas)

    async def write(self, producer: Incarnation, values: int) -> None:
        """Write one more transaction and leave it open."""
        transaction = self.diary.begin(ID, [WRITTEN])
        while len(transaction.values[WRITTEN]) < values:
            await producer._write(transaction, WRITTEN)


async def play() -> None:
    scene = Scene()
    producer = await scene.begin()
    coordinator, leader = scene.coordinator, scene.leader
    await scene.write(producer, 1)
    await producer._commit(scene.diary.transactions[-1])  # over a connection that stays open
    await scene.write(producer, 1)
    scene.fabric.partition({coordinator.host}, {leader.host})
    await producer._commit(scene.diary.transactions[-1])
    await asyncio.sleep(0.1)  # the marker is on its way
    scene.fabric.late_s = lambda: LATE_S  # type: ignore[method-assign]
    gives_up_s = scene.cluster.loop.time()
    await scene.lead(scene.third, WRITTEN)
    await until(lambda: not everything_of(scene.third, WRITTEN).open)
    scene.fabric.heal()
    await scene.lead(scene.third, WRITTEN, leader)
    await scene.lead(leader, WRITTEN)
    await scene.write(producer, 2)
    assert scene.cluster.loop.time() < gives_up_s + LATE_S, "it has come already"
    opened, [end] = everything_of(leader, WRITTEN).open, scene.diary.transactions[-1:]
    assert opened
    await asyncio.sleep(2 * LATE_S)
    assert everything_of(leader, WRITTEN).open == opened, "the next transaction is ended by it"
    await producer._abort(end)
    await until(lambda: not everything_of(leader, WRITTEN).open)
    committed = [value for each in scene.diary.transactions[:2] for value in each.values[WRITTEN]]
    assert [*everything_of(leader, WRITTEN).visible.values()] == committed
    for machine in scene.cluster.machines:
        machine.kill()


class LateRun(DirectoriesRun):
    """Replicas move and directories fail as well, of which brokers tell the controllers."""

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.fabric.given_up_arrives = True


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_everything_holds_though_what_was_given_up_arrives_late() -> None:
    check_that_all_hold(many(SEEDS), LateRun)


@pytest.mark.spec("CLI-05", "REP-12")
@pytest.mark.timeout(60)
def test_a_marker_that_comes_late_ends_nothing_that_began_since() -> None:
    run(play())


@pytest.mark.interpreted  # compiled code calls its own functions
@pytest.mark.timeout(60)
def test_it_would_if_it_was_let(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check_ends_earlier", lambda *_: None)
    with pytest.raises(AssertionError, match="ended by it"):
        run(play())
