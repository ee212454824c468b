"""Runs in which feature levels are raised and lowered all the time, with five dedicated controllers and their faults.

ELR is switched off and on while eligible replicas lose data, or while an ISR is empty; transactions and groups continue
in another version than they began in. In the topic with unclean leader election, records are deleted meanwhile, even
some that its leader lacks. All invariants must still hold, and in the end every node has the acknowledged levels.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from tests.sim.aimed import LAGGING_S, MOMENT_S, AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import SimClient
from tests.sim.controllers_apart import PLAN as OF_APART
from tests.sim.controllers_apart import ControllersApartFaults, ControllersApartRun
from tests.sim.schedule import QUIET_LIMIT_S

from ballast_broker.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS,
    GROUP_VERSION,
    SUPPORTED,
    TRANSACTION_VERSION,
)
from ballast_wire.messages import message

CHANGING = (ELIGIBLE_LEADER_REPLICAS, TRANSACTION_VERSION, GROUP_VERSION)
UPDATE_FEATURES = 2
UPGRADE, UNSAFE_DOWNGRADE = 1, 3
LATE_S = 3.0
PLAN = replace(OF_APART, seconds=30.0, least_faults=4)  # each fault takes long


class FeaturedRun(ControllersApartRun):
    in_the_end: Mapping[str, int] = {}
    levels_changed = 0

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return FeatureFaults(self, hosts)

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        deletes = self.unclean.delete_now_and_then(
            SimClient(self.fabric, "deletes", hosts), random.Random(f"deletes {self.seed}")
        )
        return [*tasks, self.loop.create_task(deletes)]

    def level(self, name: str) -> int:
        """The committed level."""
        self.history.look(self.everybody)
        return self.history.image.features.level(name)

    def _verdict(self) -> None:
        super()._verdict()
        for machine in self.everybody:
            assert machine.process is not None
            levels = machine.process.node.image.features
            told = {name: levels.level(name) for name in self.in_the_end}
            if told != self.in_the_end:
                raise Broken(f"a level stays: {machine.host} has {told}, not {self.in_the_end}")


class FeatureFaults(ControllersApartFaults):
    run: FeaturedRun

    def __init__(self, run: FeaturedRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._of_features = random.Random(f"features of {run.seed}")
        self._upgrader = SimClient(run.fabric, "upgrader", hosts)
        self._turn = asyncio.Lock()  # held by whoever sets levels

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            *[self._who_is_eligible_forgets_while_elr_is_off] * 6,
            *[self._elr_is_off_when_nobody_is_in_sync] * 6,
        ]

    def _until_restored(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep_changing()]

    async def _restore(self) -> None:
        await super()._restore()
        levels = {name: self._some_level(name) for name in CHANGING} | {GROUP_VERSION: 1}  # members go on
        async with asyncio.timeout(QUIET_LIMIT_S):
            is_so = False
            while not is_so:
                for name, level in levels.items():
                    await self._set_level(name, level)
                await asyncio.sleep(LATE_S)  # earlier requests may take effect only now
                is_so = all(self.run.level(name) == level for name, level in levels.items())
        self.run.in_the_end = levels

    def _some_level(self, name: str) -> int:
        lowest, highest = SUPPORTED[name]
        return self._of_features.randint(lowest, highest)

    async def _keep_changing(self) -> None:
        """Change levels, whatever else goes wrong."""
        while True:
            async with self._turn:
                name = self._of_features.choice(CHANGING)
                await self._set_level(name, self._some_level(name))
            await asyncio.sleep(self._of_features.uniform(0.2, 4.0))

    async def _set_level(self, name: str, level: int) -> bool:
        """Ask once; whether it was accepted."""
        before = self.run.level(name)
        kind = message("UpdateFeaturesRequest")
        update = kind.FeatureUpdateKey(
            version=UPDATE_FEATURES, feature=name, max_version_level=level,
            upgrade_type=UPGRADE if level > before else UNSAFE_DOWNGRADE,
        )  # fmt: skip
        request = kind(timeout_ms=3000, feature_updates=[update], validate_only=False)
        try:
            async with asyncio.timeout(MOMENT_S):
                answer = await self._upgrader.ask_any(request, UPDATE_FEATURES)
        except TimeoutError:
            return False
        if answer.error_code == 0 and level != before:
            self.run.note(f"{name} goes from {before} to {level}")
            self.run.levels_changed += 1
        return bool(answer.error_code == 0)

    async def _switch_elr(self, *, on: bool) -> bool:
        """Ask until it is accepted, for at most `MOMENT_S`."""
        deadline = self.run.loop.time() + MOMENT_S
        while not await self._set_level(ELIGIBLE_LEADER_REPLICAS, int(on)):
            if self.run.loop.time() > deadline:
                return False
            await asyncio.sleep(0.2)
        return True

    async def _whole_with_elr(self) -> bool:
        await self._set_minimum(2)
        await self._until(self.run.settled)
        return self.run.settled() and await self._switch_elr(on=True)

    async def _who_is_eligible_forgets_while_elr_is_off(self) -> None:
        """It goes down before the last one, loses data while ELR is off, and returns but cannot catch up: when ELR is
        on again and the last one dies, it must not lead."""
        async with self._turn:
            if not await self._whole_with_elr():
                return
            behind, eligible, last = self.rng.sample(self.run.machines, 3)
            self.run.note(f"{behind.host} is killed, then {eligible.host}, to be eligible")
            behind.kill()
            await asyncio.sleep(LAGGING_S)
            eligible.kill()
            await self._until(lambda: self._all_is_left_to(last, eligible))
            if self._all_is_left_to(last, eligible) and await self._switch_elr(on=False):
                self.run.note(f"{eligible.host}, which is heard by controllers only, has lost its memory")
                eligible.lose_power()
                self.run.fabric.cut |= {(last.host, eligible.host), (eligible.host, last.host)}
                if not eligible.is_up:
                    eligible.start()
                await asyncio.sleep(LAGGING_S / 2)
                await self._switch_elr(on=True)
                self.run.note(f"{last.host} is killed")
                last.kill()
                await asyncio.sleep(LAGGING_S)
                self.run.fabric.cut -= {(last.host, eligible.host), (eligible.host, last.host)}
            for machine in self.rng.sample((behind, eligible, last), 3):
                if not machine.is_up:
                    machine.start()

    async def _elr_is_off_when_nobody_is_in_sync(self) -> None:
        """ELR is switched off while nobody is in sync any more; then the two that were eligible return."""
        async with self._turn:
            if not await self._whole_with_elr():
                return
            behind, *others = self.rng.sample(self.run.machines, 3)
            self.run.note(f"{behind.host} is killed and falls behind, then both others are, and it is back alone")
            behind.kill()
            await asyncio.sleep(LAGGING_S)
            for machine in others:
                machine.kill()
                await asyncio.sleep(LAGGING_S)
            if not behind.is_up:
                behind.start()
            await self._switch_elr(on=False)
            for machine in self.rng.sample(others, 2):
                await asyncio.sleep(self.rng.choice([0.0, 1.0, LAGGING_S]))
                if not machine.is_up:
                    machine.start()
