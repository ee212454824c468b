"""Runs with throttles of replication and of moves that are set and removed again and again, low enough to stop all
traffic for a time, while replicas are reassigned and moved and brokers fail.

A leader's throttle never holds back in-sync replicas, and once all throttles are removed the cluster recovers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from tests.sim.aimed import AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import SimClient, alter_configs, reassign
from tests.sim.schedule import Plan, Run

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"
MOVES = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES = (f"{LEADER}.rate", f"{FOLLOWER}.rate", MOVES)
BYTES_PER_SECOND = (0, 100, 1000, 10_000)
TOPIC_CONFIG, BROKER_CONFIG = 2, 4
ALL_BROKERS = ""
LONGER_THAN_LAG_S = 5.0
# A replica that fetches batch by batch would fall behind even without a throttle.
PLAN = Plan(seconds=40.0, properties={"replica.fetch.max.bytes": "1048576"})


class ThrottledRun(Run):
    seen_in_sync = 0  # how often it was verified that in-sync replicas are not held back

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return ThrottledFaults(self, hosts)


class ThrottledFaults(AimedFaults):
    run: ThrottledRun

    def __init__(self, run: ThrottledRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._person = SimClient(run.fabric, "throttler", hosts)
        self._turn = asyncio.Lock()  # held by whoever sets throttles

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            *[self._reassign] * 2,
            *[self._everything_moves] * 2,
            *[self._who_is_in_sync_is_not_held_back] * 8,
        ]

    def _until_restored(self) -> list[Coroutine[Any, Any, None]]:
        return [self._throttle()]

    async def _restore(self) -> None:
        await super()._restore()
        await self._set(dict.fromkeys(RATES), of_all_replicas=False)

    async def _throttle(self) -> None:
        """Set and remove throttles, whatever else goes wrong."""
        rng = random.Random(f"throttled {self.run.seed}")
        while True:
            async with self._turn:
                rates = {name: rng.choice([None, *map(str, BYTES_PER_SECOND)]) for name in RATES}
                self.run.note(f"throttles become {list(rates.values())}")
                await self._set(rates)
                await asyncio.sleep(rng.uniform(0.5, 5.0))
                if rng.random() < 0.7:
                    self.run.note("throttles are taken off")
                    await self._set(dict.fromkeys(RATES), of_all_replicas=rng.random() < 0.5)
            await asyncio.sleep(rng.uniform(0.2, 3.0))

    async def _who_is_in_sync_is_not_held_back(self) -> None:
        """However little the throttle leaves to other replicas."""
        async with self._turn:
            await self._set(dict.fromkeys(RATES))
            everybody = [machine.node_id for machine in self.run.machines]
            await reassign(self._admin, dict.fromkeys(self.run.movable, everybody))
            await self._until(self.run.settled)
            if not self.run.settled() or self._somebody_stands_still():
                return
            rate = self.rng.choice(BYTES_PER_SECOND[:2])
            self.run.note(f"leaders give {rate} bytes a second to who is not in sync")
            await self._set({**dict.fromkeys(RATES), RATES[0]: str(rate)})
            acked = len(self.run.ledger.acked)
            await asyncio.sleep(LONGER_THAN_LAG_S)
            if not self.run.settled() or len(self.run.ledger.acked) == acked:
                raise Broken(f"who is in sync is not held back: {self.run._state()}, {acked} acknowledged before")
            self.run.seen_in_sync += 1

    async def _set(self, rates: Mapping[str, str | None], *, of_all_replicas: bool = True) -> None:
        """Ask until it is accepted."""
        replicas = dict.fromkeys((f"{LEADER}.replicas", f"{FOLLOWER}.replicas"), "*" if of_all_replicas else None)
        topics = sorted({partition.topic for partition in self.run.movable})
        wanted = {(BROKER_CONFIG, ALL_BROKERS): rates, **{(TOPIC_CONFIG, topic): replicas for topic in topics}}
        while not await alter_configs(self._person, wanted):  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.2)

    def _somebody_stands_still(self) -> bool:
        processes = [machine.process for machine in self.run.machines]
        return any(each is None or self.run.loop.is_stalled(each.name) for each in processes)
