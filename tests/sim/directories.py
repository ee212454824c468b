"""Runs with three log directories per broker, one of which fails, often over restarts of its broker, and then returns.

Meanwhile its replicas are re-created elsewhere, moved, reassigned and written to: when it returns there are two logs of
each partition, copies of moves that nobody remembers, and folders that were renamed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from tests.sim.aimed import LAGGING_S, AimedFaults
from tests.sim.clients import move_replica
from tests.sim.controllers_apart import ControllersApartFaults, ControllersApartRun
from tests.sim.faults import DIRECTORIES
from tests.sim.machine import Machine, SimThreads
from tests.sim.schedule import Run


class DirectoriesRun(Run):
    directories = (*DIRECTORIES, "/data/c")

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return DirectoryFaults(self, hosts)


class DirectoryFaults(AimedFaults):
    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            *[self._wander] * 4,
            *[self._away] * 6,
            *[self._everything_moves_to_one] * 2,
            *[self._disk_is_replaced] * 2,
            self._disks_do_not_answer,
        ]

    async def _wander(self) -> None:
        """Move one replica again and again, each time before the last move has completed."""
        machine = self._victim()
        if machine is None:
            return
        partition = self.rng.choice(self.run.movable)
        for _ in range(self.rng.randint(2, 6)):
            path = self.rng.choice(self.run.directories)
            self.run.note(f"{partition} on {machine.host} is to move to {path}")
            await move_replica(self._admin, machine.host, partition, path)
            await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.02, 0.05, 0.2]))
        if self.rng.random() < 0.4:
            await self._kill_and_return(machine)

    async def _everything_moves_to_one(self) -> None:
        machine = self._victim()
        if machine is None:
            return
        path = self.rng.choice(self.run.directories)
        self.run.note(f"everything on {machine.host} is to move to {path}")
        for partition in self.run.movable:
            await move_replica(self._admin, machine.host, partition, path)
        await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.2]))
        await self.rng.choice([self._reassign, lambda: self._kill_and_return(machine), lambda: self._lose(machine)])()

    async def _away(self) -> None:
        machine = self._victim()
        if machine is None:
            return
        if self.rng.random() < 0.5:
            await self._move()
        await self._lose(machine)

    async def _lose(self, machine: Machine) -> None:
        """A directory fails for a while; not the one with the metadata log, without which the broker does not start."""
        if self._who_else_may_lead_is_away(machine):
            return
        path, code = self.rng.choice(self.run.directories[1:]), self.rng.choice([errno.EIO, errno.EROFS])
        self.run.note(f"{machine.host}'s {path} is away with {errno.errorcode[code]}")
        machine.store.fail(path, code)
        await asyncio.sleep(self.rng.choice([0.0, 0.5, 12.0]))
        if self.rng.random() < 0.8:
            await self._kill_and_return(machine)
            await asyncio.sleep(self.rng.choice([1.0, 3.0]))
        for _ in range(self.rng.randint(0, 4)):
            await self.rng.choice([self._wander, self._move, self._reassign, self._delete_records, self._kill])()
        await asyncio.sleep(self.rng.choice([0.0, 1.0, 5.0]))
        machine.store.heal(path)
        self.run.note(f"{machine.host}'s {path} is there again")
        await self._kill_and_return(machine)
        await asyncio.sleep(4.0)

    def _who_else_may_lead_is_away(self, machine: Machine) -> bool:
        """Whether everybody else who may lead some partition is down, and may return from an unclean shutdown no longer
        eligible. Replication does not promise to survive the loss of two logs at once: a person would have to choose
        the leader."""
        if machine.process is None or not self._serves(machine):
            return False
        unfit = {machine.node_id, *(each.node_id for each in self._others(machine) if not self._serves(each))}
        partitions = [each for topic in machine.process.node.image.topics for each in topic.partitions.values()]
        return any({*each.isr, *each.elr} <= unfit for each in partitions if machine.node_id in each.isr)

    async def _disk_is_replaced(self) -> None:
        """A broker returns with an empty directory while the others have everything that was in it."""
        machine = self._victim()
        if machine is None or not self.run.settled():
            return
        path = self.run.directories[-1]
        self.run.note(f"{machine.host} is killed, its {path} is replaced")
        machine.kill()
        machine.store.empty(path)
        await self._back_later(machine)
        await self._until(self.run.settled)  # one lost log at a time

    async def _disks_do_not_answer(self) -> None:
        """All threads block on the disks, perhaps longer than the session timeout; then the broker is killed."""
        machine = self._victim()
        if machine is None or machine.process is None:
            return
        threads = machine.process.node.world.threads
        assert isinstance(threads, SimThreads)
        self.run.note(f"{machine.host}'s disks do not answer any more")
        threads.hung = True
        await asyncio.sleep(self.rng.choice([0.5, LAGGING_S]))
        await self._kill_and_return(machine)


class ControllersApartDirectoriesRun(DirectoriesRun, ControllersApartRun):
    """With dedicated controllers that fail as well: leaders are elected because directories fail, from the ELR or
    uncleanly, also while replicas move between two directories."""

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return ControllersApartDirectoryFaults(self, hosts)


class ControllersApartDirectoryFaults(DirectoryFaults, ControllersApartFaults):
    pass
