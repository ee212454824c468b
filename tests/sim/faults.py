"""The faults of a run, drawn from its seed. Each returns when its own part is over; what it broke may still be broken.

Failed disks are repaired, and their broker restarted, before the next fault: replication promises to survive the loss
of one log at a time.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.sim.clients import SimClient, delete_records, move_replica, reassign
from tests.sim.machine import Machine

from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from tests.sim.schedule import Run

DIRECTORIES = ("/data/a", "/data/b")


class Faults:
    def __init__(self, run: Run, hosts: list[str]) -> None:
        self.run = run
        self.rng = run.rng
        self._admin = SimClient(run.fabric, "operator", hosts)

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._stop,
            self._partition,
            self._one_way,
            self._step_clock,
            self._pause,
            self._kill_two,
            self._cut_and_kill,
            self._kill_as_another_returns,
            self._last_of_the_isr_after_one_that_is_behind,
            self._move,
            self._move,
            self._reassign,
            self._disk,
            self._full_disk,
            self._delete_records,
            self._delete_records,
        ]
        return [*kinds, self._power] if self.run.plan.power_loss else kinds

    async def go_on_until(self, end: float) -> None:
        plan, loop, kinds = self.run.plan, self.run.loop, self._kinds()
        gap = (end - loop.time()) / max(1, plan.faults)
        async with _beside(self._all_the_while()):
            async with _beside(self._until_restored()):
                while loop.time() < end or self.run.fault_count < plan.least_faults:
                    await self.rng.choice(kinds)()
                    self.run.fault_count += 1
                    await asyncio.sleep(self.rng.uniform(0.2, gap))
            await self._restore()

    def _until_restored(self) -> list[Coroutine[Any, Any, None]]:
        """Work that runs beside the faults until they end."""
        return []

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        """Work that runs beside the faults and during `_restore`."""
        return []

    async def _restore(self) -> None:
        """Ask for all replicas of every partition again; the cluster may not have recovered yet."""
        self.run.fabric.heal()
        for machine in self.run.everybody:
            if not machine.is_up:
                machine.start()
        everybody = [machine.node_id for machine in self.run.machines]
        wanted = dict.fromkeys(self.run.movable, everybody)
        while not await reassign(self._admin, wanted):  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.5)

    # -- who ------------------------------------------------------------------------------------------------------
    def _victim(self) -> Machine | None:
        """A machine that is up; preferably one that leads something, where mistakes do the most harm."""
        up = [m for m in self.run.machines if m.is_up]
        leading = [m for m in up if self._leads(m)]
        if leading and self.rng.random() < 0.7:
            return self.rng.choice(leading)
        return self.rng.choice(up) if up else None

    def _leads(self, machine: Machine) -> bool:
        broker = machine.process.node.broker if machine.process is not None else None
        return broker is not None and any(state.is_leader for state in broker.replicas.partitions())

    async def _back_later(self, machine: Machine) -> None:
        await asyncio.sleep(self.rng.choice([0.01, 0.5, 2.0, 6.0]))
        if not machine.is_up:
            self.run.note(f"{machine.host} starts")
            machine.start()

    async def _kill(self) -> None:
        machine = self._victim()
        if machine is not None:
            self.run.note(f"{machine.host} is killed")
            machine.kill()
            await self._back_later(machine)

    async def _kill_two(self) -> None:
        victims = self.rng.sample(self.run.machines, 2)
        for machine in victims:
            self.run.note(f"{machine.host} is killed")
            machine.kill()
            await asyncio.sleep(self.rng.choice([0.0, 0.01, 1.0]))
        for machine in victims:
            await self._back_later(machine)

    async def _cut_and_kill(self) -> None:
        """Clients still reach it, but one or all of the other brokers do not; then it dies with what they lack."""
        machine = self._victim()
        if machine is not None:
            others = [m.host for m in self.run.machines if m is not machine]
            cut = self.rng.sample(others, self.rng.choice([1, len(others)]))
            self.run.note(f"{machine.host} is cut off from {cut}, then killed")
            self.run.fabric.partition({machine.host}, set(cut))
            await asyncio.sleep(self.rng.choice([0.1, 0.5, 2.0]))
            machine.kill()
            self.run.fabric.heal()
            await self._back_later(machine)

    async def _kill_as_another_returns(self) -> None:
        """One broker has returned but not yet caught up when another one dies."""
        one, other = self.rng.sample(self.run.machines, 2)
        self.run.note(f"{one.host} is killed; {other.host} will be when it is back")
        one.kill()
        await asyncio.sleep(self.rng.choice([1.0, 4.0]))
        if not one.is_up:
            one.start()
        deadline = self.run.loop.time() + 5.0
        while not self._serves(one) and self.run.loop.time() < deadline:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.001)
        await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.02, 0.1]))
        self.run.note(f"{other.host} is killed")
        other.kill()
        await self._back_later(other)

    async def _last_of_the_isr_after_one_that_is_behind(self) -> None:
        """One broker is down while the others take records; then they die, and the one that lags returns first."""
        behind, one, other = self.rng.sample(self.run.machines, 3)
        self.run.note(f"{behind.host} is killed and falls behind")
        behind.kill()
        await asyncio.sleep(self.rng.choice([1.0, 3.0]))
        for machine in (one, other):
            self.run.note(f"{machine.host} is killed")
            machine.kill()
            await asyncio.sleep(self.rng.choice([0.0, 0.3]))
        for machine in (behind, one, other):
            if not machine.is_up:
                self.run.note(f"{machine.host} starts")
                machine.start()
            await asyncio.sleep(self.rng.choice([0.0, 0.5, 5.0]))

    def _serves(self, machine: Machine) -> bool:
        broker = machine.process.node.broker if machine.process is not None else None
        return broker is not None and broker.is_running

    async def _power(self) -> None:
        """Only while all are in sync: replication does not promise to survive the loss of two logs at once."""
        machine = self._victim()
        if machine is not None and self.run.settled():
            self.run.note(f"{machine.host} loses power")
            machine.lose_power()
            await self._back_later(machine)
            await asyncio.sleep(8.0)  # one at a time: it has to catch up before the next machine may forget

    async def _stop(self) -> None:
        machine = self._victim()
        if machine is not None:
            self.run.note(f"{machine.host} is stopped in order")
            stopping = self.run.loop.create_task(machine.stop())
            await asyncio.wait({stopping}, timeout=40)
            machine.kill()
            await self._back_later(machine)

    async def _partition(self) -> None:
        machine = self.rng.choice(self.run.machines)
        others = {m.host for m in self.run.machines} - {machine.host}
        self.run.note(f"{machine.host} is cut off")
        self.run.fabric.partition({machine.host}, others)
        await asyncio.sleep(self.rng.choice([0.5, 3.0, 9.0]))
        self.run.note("the network is whole")
        self.run.fabric.heal()

    async def _one_way(self) -> None:
        one, other = self.rng.sample(self.run.machines, 2)
        self.run.note(f"{one.host} is not heard by {other.host}")
        self.run.fabric.partition({one.host}, {other.host}, both_ways=False)
        await asyncio.sleep(self.rng.choice([0.5, 3.0, 9.0]))
        self.run.note("the network is whole")
        self.run.fabric.heal()

    async def _pause(self) -> None:
        """It stalls, perhaps longer than its session, and resumes as if it still led its partitions."""
        machine = self._victim()
        if machine is not None:
            seconds = self.rng.choice([0.5, 2.0, 5.0, 12.0])
            self.run.note(f"{machine.host} stands still for {seconds} s")
            machine.stall(seconds)
            await asyncio.sleep(self.rng.choice([0.1, seconds]))

    async def _step_clock(self) -> None:
        machine = self.rng.choice(self.run.machines)
        machine.clock.offset_ms += self.rng.choice([-3_600_000, -5000, 5000, 3_600_000])
        self.run.note(f"{machine.host}'s clock steps to {machine.clock.offset_ms} ms")

    # -- moves, reassignments, disks --------------------------------------------------------------------------------
    async def _move(self) -> None:
        """Move a replica to another directory; perhaps back at once, perhaps a process dies meanwhile."""
        machine = self._victim()
        if machine is None:
            return
        partition, path = self.rng.choice(self.run.movable), self.rng.choice(self.run.directories)
        self.run.note(f"{partition} on {machine.host} is to move to {path}")
        await move_replica(self._admin, machine.host, partition, path)
        await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.05, 0.2]))
        what = self.rng.choice(["nothing", "back", "kill", "kill the controller"])
        if what == "back":
            other = next(each for each in self.run.directories if each != path)
            self.run.note(f"{partition} on {machine.host} is to move to {other}")
            await move_replica(self._admin, machine.host, partition, other)
        elif what == "kill":
            await self._kill_and_return(machine)
        elif what == "kill the controller":
            active = [each for each in self.run.machines if self._is_active(each)]
            for each in active:
                await self._kill_and_return(each)

    async def _reassign(self) -> None:
        await self._reassign_one(self.rng.choice(self.run.movable))

    async def _reassign_one(self, partition: TopicPartition) -> None:
        """Remove or add a replica; perhaps another reassignment replaces this one, or it is cancelled, on the way."""
        everybody = [machine.node_id for machine in self.run.machines]
        for _ in range(self.rng.randint(1, 3)):
            target = self.rng.sample(everybody, self.rng.choice([len(everybody) - 1, len(everybody)]))
            wanted = None if self.rng.random() < 0.2 else target
            self.run.note(f"{partition} is to be on {wanted}" if wanted else f"{partition}'s move is cancelled")
            await reassign(self._admin, {partition: wanted})
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5, 2.0]))
        if self.rng.random() < 0.5:
            await self._kill()

    async def _delete_records(self) -> None:
        """Delete up to any offset, even in the middle of a batch; then a new replica has to begin there."""
        partition, ledger = self.rng.choice(self.run.partitions), self.run.ledger
        newest = max((offset for place, offset in ledger.acked if place == partition), default=0)
        offset = self.rng.randint(0, newest)
        self.run.note(f"{partition} is to begin at {offset}")
        ledger.deleted[partition] = max(offset, ledger.deleted.get(partition, 0))
        await delete_records(self._admin, partition, offset)
        everybody = [machine.node_id for machine in self.run.machines]
        for target in (self.rng.sample(everybody, len(everybody) - 1), everybody):
            self.run.note(f"{partition} is to be on {target}")
            await reassign(self._admin, {partition: target})
            await asyncio.sleep(self.rng.choice([0.2, 0.5]))
        await self._reassign_one(partition)

    async def _disk(self) -> None:
        """A directory fails for a while; a broker that has lost its last one exits."""
        machine = self._victim()
        if machine is None:
            return
        path, code = self.rng.choice(self.run.directories), self.rng.choice([errno.EIO, errno.EROFS])
        self.run.note(f"{machine.host}'s {path} fails with {errno.errorcode[code]}")
        machine.store.fail(path, code)
        await asyncio.sleep(self.rng.choice([0.5, 2.0, 5.0]))
        machine.store.heal(path)
        self.run.note(f"{machine.host}'s {path} is repaired, {machine.host} restarts")
        machine.kill()
        await self._back_later(machine)
        await asyncio.sleep(2.0)

    async def _full_disk(self) -> None:
        """A directory has little or no room left; perhaps its broker is restarted like that."""
        machine = self._victim()
        if machine is None:
            return
        path = self.rng.choice(self.run.directories)
        room = self.rng.choice([0, 1000, 20_000])
        self.run.note(f"{machine.host}'s {path} has room for {room} bytes")
        machine.store.capacity[path] = machine.store.used(path) + room
        await asyncio.sleep(self.rng.choice([0.5, 2.0, 5.0]))
        if self.rng.random() < 0.5:
            await self._kill_and_return(machine)
            await asyncio.sleep(self.rng.choice([0.5, 5.0]))
        machine.store.heal(path)
        self.run.note(f"{machine.host}'s {path} has room again, {machine.host} restarts")
        machine.kill()
        await self._back_later(machine)
        await asyncio.sleep(2.0)

    async def _kill_and_return(self, machine: Machine) -> None:
        self.run.note(f"{machine.host} is killed")
        machine.kill()
        await self._back_later(machine)

    def _is_active(self, machine: Machine) -> bool:
        driver = getattr(machine.process.node, "driver", None) if machine.process is not None else None
        return driver is not None and driver.is_leader


@asynccontextmanager
async def _beside(works: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run these as tasks until the block ends; raise what one of them failed with."""
    tasks = [asyncio.get_running_loop().create_task(each) for each in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()
