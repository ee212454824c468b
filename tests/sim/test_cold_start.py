"""All nodes are killed and restart on machines that are short of CPU: how soon does every partition accept writes?

A process that gets little CPU time answers late. A client that waits for a fixed time and then asks again may never get
an answer: because of that, elections once went on for minutes, and brokers registered again and again.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import TOPIC, Plan, Run
from tests.sim.test_many import pool, settle_down

SEEDS = range(8)
ROUNDS = 4
CLOCKS_MS = (-60_000, -5_000, 0, 5_000, 60_000)
APART_S = (0.0, 0.05, 0.5, 3.0)
GIVE_UP_S = 600.0
AS_DELIVERED = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.lag.time.max.ms": "30000",
}
# The average seconds for which a process runs and then stalls, and the seconds after which writes must succeed.
WELL = (0.1, 0.01, 10.0)
SHORT = (0.05, 0.3, 40.0)
STARVED = (0.05, 1.0, 250.0)
# As long as Kafka's producers wait: a shorter timeout would itself delay the writes that are measured.
CLIENT_TIMEOUT_S = 30.0


class ColdStart(Run):
    async def begin(self) -> None:
        hosts = [machine.host for machine in self.machines]
        for machine in self.machines:
            machine.start()
        await create_topic(SimClient(self.fabric, "admin", hosts), TOPIC, 3, 3, min_insync_replicas="2")
        self._clients(hosts)

    def starve(self, runs_s: float, stands_s: float) -> None:
        for machine in self.machines:
            self.loop.create_task(self._starve(machine, runs_s, stands_s))

    async def _starve(self, machine: Machine, runs_s: float, stands_s: float) -> None:
        rng = random.Random(self.rng.random())
        while True:
            stall = min(rng.expovariate(1 / stands_s), 4 * stands_s)
            machine.stall(stall)
            await asyncio.sleep(stall + rng.expovariate(1 / runs_s))

    async def kill_all(self) -> None:
        for machine in self.rng.sample(self.machines, len(self.machines)):
            machine.kill()
            machine.clock.offset_ms = self.rng.choice(CLOCKS_MS)
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5]))
        for machine in self.rng.sample(self.machines, len(self.machines)):
            await asyncio.sleep(self.rng.choice(APART_S))
            machine.start()

    async def until_all_write(self) -> float:
        """The seconds until every partition has acknowledged another record."""
        began, before = self.loop.time(), self._written()
        while any(now == then for now, then in zip(self._written(), before, strict=True)):
            if self.loop.time() - began > GIVE_UP_S:
                return GIVE_UP_S
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    def _written(self) -> list[int]:
        return [sum(place[0] == partition for place in self.ledger.acked) for partition in self.partitions]


def silences(seed: int, runs_s: float, stands_s: float) -> list[float]:
    """The seconds without writes in each round."""

    async def play() -> list[float]:
        cluster = ColdStart(seed, Plan(properties=AS_DELIVERED, client_timeout_s=CLIENT_TIMEOUT_S))
        try:
            await cluster.begin()
            await cluster.until_all_write()
            cluster.starve(runs_s, stands_s)
            took = []
            for _ in range(ROUNDS):
                await cluster.kill_all()
                took.append(await cluster.until_all_write())
            return took
        finally:
            for machine in cluster.machines:
                machine.kill()

    settle_down()
    return run(play())


@pytest.mark.spec("CLU-02")
def test_after_a_loss_of_all_processes_every_partition_takes_writes_again() -> None:
    runs_s, stands_s, limit_s = WELL
    assert max(silences(0, runs_s, stands_s)) < limit_s


@pytest.mark.simulation
@pytest.mark.spec("CLU-01", "CLU-02")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shortage", [WELL, SHORT, STARVED], ids=["well", "short", "starved"])
def test_so_they_do_on_machines_that_are_short_of_processors(shortage: tuple[float, float, float]) -> None:
    runs_s, stands_s, limit_s = shortage
    with pool() as workers:
        took = list(workers.map(silences, SEEDS, [runs_s] * len(SEEDS), [stands_s] * len(SEEDS)))
    assert max(max(each) for each in took) < limit_s, took
