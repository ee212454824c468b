"""Runs with a group that migrates from the classic to the consumer protocol and back, while its coordinators fail.

New members speak either protocol, whatever the group speaks, and often join just when a plan takes partitions from a
member that has not revoked them yet. No partition has two owners at once, whichever protocol they speak, a group of
well-behaved members can always migrate, and in the end each partition is owned.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.sim.aimed import MOMENT_S, AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import SimClient, find_topic_id
from tests.sim.cooperative import ANSWER_S, Cooperative
from tests.sim.members import PROPERTIES as OF_MEMBERS
from tests.sim.members import Holders, Member
from tests.sim.network import Fabric
from tests.sim.offsets import PARTITIONS as OFFSETS_PARTITIONS
from tests.sim.offsets import TOPIC as OFFSETS
from tests.sim.schedule import QUIET_LIMIT_S, TOPIC, Plan, Run

from ballast_broker.coordinator.service import partition_for
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

GROUP = "mixed"
MEMBERS = 4
LEAVING = -1
PARTITIONS = 6
OF_GROUP = TopicPartition(OFFSETS, partition_for(GROUP, OFFSETS_PARTITIONS))
PLAN = Plan(
    seconds=40.0,
    partitions=PARTITIONS,
    properties={**OF_MEMBERS, "group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "500"},
)


class Modern(Member):
    """One life of a member of the consumer protocol."""

    async def _ask(self) -> Any:
        joins = self.epoch == 0
        answer = await super()._ask()
        if joins and answer is not None and answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise Broken(f"a group can always go over: {self._name} is told {answer.error_message}")
        return answer

    async def leave(self) -> None:
        self._holders.forget(self._name)
        self.epoch = LEAVING
        with contextlib.suppress(OSError, TimeoutError):
            await self._ask()


class MixedGroup:
    def __init__(
        self, fabric: Fabric, hosts: list[str], seed: int, partitions: int, leads: Callable[[str], bool]
    ) -> None:
        self.holders = Holders(leads)
        self.lives: dict[str, int] = {"classic": 0, "consumer": 0}
        self.moves = asyncio.Event()
        self._fabric = fabric
        self._hosts = hosts
        self._partitions = partitions
        self._rng = random.Random(f"mixed {seed}")
        self._finishing = asyncio.Event()
        self._living: dict[int, Cooperative | Modern] = {}

    async def run(self) -> None:
        topic_id = await find_topic_id(self._client("finds"), TOPIC)
        try:
            async with asyncio.TaskGroup() as tasks:
                for place in range(MEMBERS):
                    tasks.create_task(self._live(place, topic_id, tasks))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _live(self, place: int, topic_id: UUID, tasks: asyncio.TaskGroup) -> None:
        """Live one life after the other; the last one goes on until it is cancelled."""
        kind = "classic"
        while True:
            self.lives[kind] += 1
            name = f"{kind}{place}-{self.lives[kind]}"
            member = self._living[place] = self._member(kind, name, topic_id)
            task = tasks.create_task(member.run())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finishing.wait(), self._rng.uniform(3.0, 12.0))
                return
            task.cancel()
            del self._living[place]
            if self._rng.random() < 0.5:
                await member.leave()
            self.holders.forget(name)
            for each in (name, f"{name}-beats"):
                self._fabric.silence(each)
            kind = "consumer" if await self._something_moves() or self._rng.random() < 0.2 else "classic"

    async def _something_moves(self) -> bool:
        """Wait for a plan that revokes something, of which its owner may not have heard yet; whether there was one."""
        found = False
        if self._rng.random() < 0.7:
            self.moves.clear()
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(self.moves.wait(), self._rng.uniform(1.0, MOMENT_S))
        await asyncio.sleep(self._rng.choice([0.0, 0.05, 0.3]))
        return found

    def _member(self, kind: str, name: str, topic_id: UUID) -> Cooperative | Modern:
        rng = random.Random(self._rng.random())
        if kind == "consumer":
            return Modern(self._client(name), rng, TOPIC, self.holders, GROUP)
        clients = self._client(name), self._client(f"{name}-beats")
        return Cooperative(clients, rng, TOPIC, topic_id, self._partitions, self.holders, GROUP, self.moves)

    def _client(self, name: str) -> SimClient:
        return SimClient(self._fabric, name, self._hosts, timeout_s=ANSWER_S)

    # -- the end --------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """From now on nobody joins or leaves."""
        self._finishing.set()

    def is_settled(self) -> bool:
        """Whether each partition is owned and all members own equally many, within one."""
        sizes = [len(member.held) for member in self._living.values()]
        return len(sizes) == MEMBERS and sum(sizes) == self._partitions and max(sizes) - min(sizes) <= 1


class MixedRun(Run):
    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        self.mixed = MixedGroup(
            self.fabric, hosts, self.seed, self.plan.partitions, lambda host: self.leads(host, OF_GROUP)
        )
        self._mixed_task = self.loop.create_task(self.mixed.run())
        return [*tasks, self._mixed_task]

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return MixedFaults(self, hosts)

    async def _quiet(self, background: list[asyncio.Task[None]]) -> None:
        await super()._quiet([task for task in background if task is not self._mixed_task])
        self.mixed.finish()
        try:
            async with asyncio.timeout(QUIET_LIMIT_S):
                while not self.mixed.is_settled():  # noqa: ASYNC110  (virtual time)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise Broken(
                f"a group is whole again: after {QUIET_LIMIT_S} s these hold: {self.mixed.holders.of}"
            ) from None
        await self._stop_clients([self._mixed_task])


class MixedFaults(AimedFaults):
    run: MixedRun

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [*super()._kinds(), *[self._coordinator_dies_as_something_moves] * 5]

    async def _coordinator_dies_as_something_moves(self) -> None:
        moves = self.run.mixed.moves
        moves.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(moves.wait(), MOMENT_S)
            await asyncio.sleep(self.rng.choice([0.0, 0.02, 0.3, 1.0]))
            coordinator = self._leader_of(OF_GROUP)
            if coordinator:
                self.run.note(f"{coordinator.host} dies as partitions go from one member to another")
                await self._kill_and_return(coordinator)
