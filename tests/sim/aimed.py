"""Faults that wait for a certain situation, or bring it about: a kill at a random time would rarely hit it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tests.sim import transactors
from tests.sim.clients import move_replica, reassign
from tests.sim.disk import Folder
from tests.sim.faults import Faults
from tests.sim.machine import Machine

from ballast_broker.coordinator.service import partition_for
from ballast_wire.names import TopicPartition

MOMENT_S = 10.0
"""How long to wait for a situation, at most."""
LAGGING_S = 6.0  # a broker that is down for so long has left the ISR: it is fenced, or lags as a follower


class AimedFaults(Faults):
    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            self._coordinator_dies_with_what_it_was_asked,
            self._coordinator_dies_before_its_markers_arrive,
            self._only_who_is_behind_returns_whole,
            self._everything_moves,
        ]

    # -- transactions ---------------------------------------------------------------------------------------------
    async def _coordinator_dies_with_what_it_was_asked(self) -> None:
        """It is cut off from all other brokers from the moment at which a producer is about to commit."""
        transaction = await self.run.transactions.next_commit(MOMENT_S)
        coordinator = transaction and self._leader_of(state_of(transaction.name))
        if coordinator:
            self.run.note(f"{coordinator.host} is cut off as it is asked to commit the {transaction}, then killed")
            await self._die_alone(coordinator, self._others(coordinator))

    async def _coordinator_dies_before_its_markers_arrive(self) -> None:
        """The other replica of its log still hears it; the leader of a partition that awaits a marker does not."""
        far, state = self._leader_of(self.rng.choice(transactors.PARTITIONS)), state_of(transactors.IDS[0])
        if far is None:
            return
        near = [machine.node_id for machine in self._others(far)]
        self.run.note(f"{state} is to be on {near}")
        await reassign(self._admin, {state: near})
        await self._until(lambda: self._is_on(state, near))
        transaction = await self.run.transactions.next_commit(MOMENT_S)
        coordinator = transaction and self._leader_of(state_of(transaction.name))
        if coordinator and coordinator is not far:
            self.run.note(
                f"{coordinator.host}, about to commit the {transaction}, is cut off from {far.host}, then killed"
            )
            await self._die_alone(coordinator, [far])

    async def _die_alone(self, machine: Machine, unheard: Iterable[Machine]) -> None:
        self.run.fabric.partition({machine.host}, {each.host for each in unheard})
        await asyncio.sleep(self.rng.choice([0.2, 0.5, 1.5]))
        machine.kill()
        self.run.fabric.heal()
        await self._back_later(machine)

    # -- elections ------------------------------------------------------------------------------------------------
    async def _only_who_is_behind_returns_whole(self) -> None:
        """Of the two that have everything acknowledged, one stays down and one returns without one of its disks."""
        behind, one, other = self.rng.sample(self.run.machines, 3)
        path = self.run.directories[-1]  # not the one with the metadata
        self.run.note(f"{behind.host} is killed and falls behind")
        behind.kill()
        await asyncio.sleep(LAGGING_S)
        self.run.note(f"{one.host} and {other.host} are killed, {one.host} returns without {path}")
        for machine in (one, other):
            machine.kill()
        one.store.fail(path)
        for machine in (behind, one):
            if not machine.is_up:
                machine.start()
        await asyncio.sleep(self.rng.choice([2.0, LAGGING_S]))
        one.store.heal(path)
        self.run.note(f"{one.host}'s {path} is repaired, {one.host} restarts, {other.host} starts")
        one.kill()
        for machine in (one, other):
            if not machine.is_up:
                machine.start()
        await asyncio.sleep(2.0)

    # -- moves ----------------------------------------------------------------------------------------------------
    async def _everything_moves(self) -> None:
        """Move each replica of one broker to another directory."""
        machine = self._victim()
        if machine is None:
            return
        self.run.note(f"everything on {machine.host} is to move")
        for partition in self.run.movable:
            here = f"{partition.topic}-{partition.partition}"
            there = [
                path for path in self.run.directories if not isinstance(machine.store.find(f"{path}/{here}"), Folder)
            ]
            if there:
                await move_replica(self._admin, machine.host, partition, self.rng.choice(there))
        await asyncio.sleep(self.rng.choice([0.05, 0.5, 2.0]))

    # -- what is known --------------------------------------------------------------------------------------------
    async def _until(self, holds: Callable[[], bool]) -> None:
        deadline = self.run.loop.time() + MOMENT_S
        while not holds() and self.run.loop.time() < deadline:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.05)

    def _others(self, machine: Machine) -> list[Machine]:
        return [each for each in self.run.machines if each is not machine]

    def _leader_of(self, partition: TopicPartition) -> Machine | None:
        return next((each for each in self.run.machines if each.is_up and self.run.leads(each.host, partition)), None)

    def _is_on(self, partition: TopicPartition, nodes: list[int]) -> bool:
        """Whether exactly these nodes are its replicas and in sync, as the first running broker knows it."""
        for machine in self.run.machines:
            if machine.process is not None and machine.process.node.broker is not None:  # else it has none yet
                topic = machine.process.node.image.topics.by_name(partition.topic)
                found = None if topic is None else topic.partitions.get(partition.partition)
                return found is not None and set(found.replicas) == set(found.isr) == set(nodes)
        return False


def state_of(name: str) -> TopicPartition:
    """The partition in which the coordinator of a transactional id keeps its state."""
    return TopicPartition(transactors.STATE, partition_for(name, transactors.STATE_PARTITIONS))
