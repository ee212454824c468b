"""Runs with more brokers than replicas and all that makes moves hard: three log directories each that fail for a while,
slow disks, wrong clocks, and segments of only a few batches.

Replicas of several partitions are reassigned to any brokers at once, and the next reassignment replaces this one. In
the end each broker has all replicas, so that anything left behind where they were would be found.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tests.sim.clients import SimClient, reassign
from tests.sim.clocks import MINUTE_MS, MIRROR, ClockedMachine, ClockedRun, ClockFaults, Mirror
from tests.sim.machine import Machine
from tests.sim.recreated import NAME as PASSING
from tests.sim.schedule import Plan
from tests.sim.slow_disks import SlowDiskFaults, SlowDisksMachine, SlowDisksRun

from ballast_wire.names import TopicPartition

SMALL = {"log.index.interval.bytes": "1", "log.index.size.max.bytes": "80"}  # a segment ends where its index does
PLAN = Plan(seconds=40.0, brokers=4, properties=SMALL)
REPLICAS = (2, 3, 3, 4)


class HardMovesMirror(Mirror):
    """Writes several records at once, not in the order of their timestamps."""

    def _times_ms(self, about_ms: int) -> list[int]:
        return [about_ms - self._rng.randrange(MINUTE_MS) for _ in range(self._rng.randint(1, 3))]


class HardMovesMachine(SlowDisksMachine, ClockedMachine):
    def _monotonic(self) -> float:
        return self.uptime_s()


class HardMovesRun(SlowDisksRun, ClockedRun):
    kind_of_machine: type[Machine] = HardMovesMachine
    segments = 0  # the most segments that any partition had in the end

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.movable += [TopicPartition(PASSING, 0), TopicPartition(MIRROR, 0)]

    def _faults(self, hosts: list[str]) -> HardMoveFaults:
        return HardMoveFaults(self, hosts)

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        self._passing.replicas = len(self.machines)  # the last topic may be created after the last reassignment
        return tasks

    def _make_mirror(self, client: SimClient, rng: random.Random) -> Mirror:
        return HardMovesMirror(client, rng, self.plan.seconds)

    def settled(self) -> bool:
        """And each broker has all replicas, as it must in the end."""
        return super().settled() and all(
            len(partition.isr) == len(self.machines)
            for machine in self.machines
            if machine.process is not None
            for topic in machine.process.node.image.topics
            if topic.name in self.topics
            for partition in topic.partitions.values()
        )

    def _verdict(self) -> None:
        super()._verdict()
        for machine in self.machines:
            assert machine.process is not None
            logs = [machine.process.node.logs.get(partition) for partition in self.partitions]
            self.segments = max(self.segments, *(len(log.segments) for log in logs if log is not None))


class HardMoveFaults(SlowDiskFaults, ClockFaults):
    run: HardMovesRun

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [*super()._kinds(), *[self._reassign] * 8]

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        return [self._tire(), self._keep_stepping()]

    async def _reassign_one(self, partition: TopicPartition) -> None:
        """Together with others; perhaps another reassignment replaces it on the way, or a broker dies."""
        everybody = [machine.node_id for machine in self.run.machines]
        for _ in range(self.rng.randint(1, 4)):
            some = {partition, *self.rng.sample(self.run.movable, self.rng.choice([0, 2]))}
            wanted = {each: self.rng.sample(everybody, self.rng.choice(REPLICAS)) for each in sorted(some)}
            self.run.note(f"replicas are to be {wanted}")
            await reassign(self._admin, {**wanted, partition: None} if self.rng.random() < 0.15 else {**wanted})
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5, 2.0]))
        if self.rng.random() < 0.5:
            await self._kill()
