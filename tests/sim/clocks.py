"""Runs with clocks that disagree: each machine's monotonic clock has its own rate and restarts after a power loss; its
wall clock is minutes or hours wrong and keeps stepping.

The event loops of the nodes go by these clocks. Clients and checkers have the right time.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tests.sim.aimed import AimedFaults
from tests.sim.checkers import Broken, check_times, records
from tests.sim.clients import SimClient, create_topic
from tests.sim.loop import NODE, SimHandle, SimLoop
from tests.sim.machine import EPOCH_MS, Machine, SimClock
from tests.sim.members import PROPERTIES as OF_MEMBERS
from tests.sim.schedule import TOPIC, TOPICS, Plan, Run

from ballast_wire.names import TopicPartition
from ballast_wire.records import Record

RATES = (0.9, 1.1)
BEGINS_S = (0.5, 20.0, 100_000.0)  # how long a machine has been up when its process starts
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
WRONG_MS = (
    0, 0, -5_000, 5_000, -3 * MINUTE_MS, 3 * MINUTE_MS, -40 * MINUTE_MS, 40 * MINUTE_MS,
    -HOUR_MS, HOUR_MS, -30 * HOUR_MS,
)  # fmt: skip
MOST_AHEAD_MS = max(WRONG_MS)
STEPS_EVERY_S = 2.0
MIRROR = "mirror"
OLDEST_MS = 4 * HOUR_MS
RETENTION_MS = 2 * HOUR_MS
LATE_MS = 5_000
OF_MIRROR = {
    "min_insync_replicas": "2",
    "segment_ms": "60000",
    "retention_ms": str(RETENTION_MS),
    "message_timestamp_after_max_ms": str(10**12),  # to a broker whose clock is behind, right timestamps are future
}
CALM = Plan(seconds=40.0, members=3, properties=OF_MEMBERS)


class ClockedLoop(SimLoop):
    """Each process reads the time, and sets timers, by its own machine's clock."""

    def __init__(self) -> None:
        super().__init__()
        self._clocks: dict[str, tuple[float, float]] = {}  # by process: the clock's rate, and what it showed at 0

    def keep_time(self, process: str, rate: float, zero: float) -> None:
        self._clocks[process] = rate, zero

    def time(self) -> float:
        clock = self._clocks.get(NODE.get())
        return self._now if clock is None else clock[1] + self._now * clock[0]

    def right_time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        clock = self._clocks.get(NODE.get())
        if clock is None:
            return super().call_at(when, callback, *args, context=context)
        due = max(self._now, (when - clock[1]) / clock[0])
        while clock[1] + due * clock[0] < when:  # rounding must not make the timer fire early
            due = math.nextafter(due, math.inf)
        handle = super().call_at(due, callback, *args, context=context)
        handle._when = when
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)


class WrongClock(SimClock):
    _loop: ClockedLoop

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.right_time() * 1000) + self.offset_ms


class ClockedMachine(Machine):
    kind_of_clock = WrongClock

    def __init__(self, loop: SimLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        assert isinstance(loop, ClockedLoop)
        self._of_clocks = random.Random(f"clocks of {self.host} {self._rng.random()}")
        self._clocked = loop
        self._rate = self._of_clocks.uniform(*RATES)
        self.clock.offset_ms = self._of_clocks.choice(WRONG_MS)
        self._begin()

    def _begin(self) -> None:
        self._zero = self._of_clocks.choice(BEGINS_S) - self._clocked.right_time() * self._rate

    def uptime_s(self) -> float:
        """By its own clock."""
        return self._zero + self._clocked.right_time() * self._rate

    def _launch(self, name: str) -> None:
        self._clocked.keep_time(name, self._rate, self._zero)
        super()._launch(name)

    def lose_power(self) -> None:
        super().lose_power()
        self._begin()


class ClockedRun(Run):
    kind_of_loop = ClockedLoop
    kind_of_machine: type[Machine] = ClockedMachine
    topics = (*TOPICS, MIRROR)
    steps = 0  # clock steps so far

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        client = SimClient(self.fabric, "mirror", hosts, timeout_s=self.plan.client_timeout_s)
        self.mirror = self._make_mirror(client, random.Random(f"mirror {self.seed}"))
        return [*tasks, self.loop.create_task(self.mirror.run()), self.loop.create_task(self._look())]

    def _make_mirror(self, client: SimClient, rng: random.Random) -> Mirror:
        return Mirror(client, rng, self.plan.seconds)

    async def _look(self) -> None:
        while True:
            self.mirror.look(self.machines)
            await asyncio.sleep(0.5)

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return ClockFaults(self, hosts)

    def _verdict(self) -> None:
        super()._verdict()
        self.mirror.check(self.machines)


class ClockFaults(AimedFaults):
    run: ClockedRun

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep_stepping()]

    async def _keep_stepping(self) -> None:
        """Step clocks throughout the run, whatever else goes wrong."""
        rng = random.Random(f"steps of {self.run.seed}")
        while True:
            await asyncio.sleep(rng.expovariate(1 / STEPS_EVERY_S))
            machine = rng.choice(self.run.machines)
            machine.clock.offset_ms = rng.choice(WRONG_MS)
            self.run.steps += 1
            self.run.note(f"{machine.host}'s clock steps to {machine.clock.offset_ms} ms")

    async def _step_clock(self) -> None:
        """No fault of its own here: clocks step anyway."""


class Mirror:
    """A topic into which a client copies old records, hours old at first and then ever younger: retention goes by the
    records' timestamps, and deletes nothing that is too young by every clock of the run."""

    def __init__(self, client: SimClient, rng: random.Random, seconds: float) -> None:
        self._client = client
        self._rng = rng
        self._seconds = seconds
        self._partition = TopicPartition(MIRROR, 0)
        self._acked: dict[int, int] = {}  # timestamps by offset
        self.begins_at = 0  # the greatest log start offset seen

    async def run(self) -> None:
        await create_topic(self._client, MIRROR, 1, 3, **OF_MIRROR)
        began_s = asyncio.get_running_loop().time()
        while True:
            left = max(0.0, 1 - (asyncio.get_running_loop().time() - began_s) / (0.8 * self._seconds))
            await self._produce(_right_ms() - int(left * OLDEST_MS))
            await asyncio.sleep(self._rng.expovariate(3))

    async def _produce(self, timestamp_ms: int) -> None:
        leader = await self._client.leader_of(self._partition)
        if leader is not None:
            times_ms = self._times_ms(timestamp_ms)
            batch = [Record(value=str(each).encode(), timestamp=each) for each in times_ms]
            offset = await self._client.produce(leader, self._partition, batch, timeout_ms=1000)
            if offset is not None:
                self._acked.update(enumerate(times_ms, offset))

    def _times_ms(self, about_ms: int) -> list[int]:
        """The timestamps of the records of one batch."""
        return [about_ms]

    def look(self, machines: list[Machine]) -> None:
        for machine in machines:
            log = None if machine.process is None else getattr(machine.process.node, "logs", {}).get(self._partition)
            start = 0 if log is None else log.log_start_offset
            self.begins_at = max(self.begins_at, start)
            youngest_ms = max((ms for offset, ms in self._acked.items() if offset < start), default=0)
            if youngest_ms >= _right_ms() + MOST_AHEAD_MS - RETENTION_MS:
                raise Broken(f"what is young stays: {machine.host} begins at {start}, one before is of {youngest_ms}")

    def check(self, machines: list[Machine]) -> None:
        self.look(machines)
        for machine in machines:
            assert machine.process is not None
            check_times(machine, self._partition)
            log = machine.process.node.logs.get(self._partition)
            assert log is not None
            there = {record.offset: record for record in records(machine, self._partition)}
            lost = [each for each in self._acked if each >= log.log_start_offset and each not in there]
            if lost:
                raise Broken(f"acked is never lost: {machine.host} has no {lost[:5]} of {MIRROR}")
            first = log.segments[0]
            if first.size and first.largest_timestamp() < machine.clock.wall_ms() - RETENTION_MS - LATE_MS:
                raise Broken(f"what is old goes: {machine.host} begins at {first.base_offset}")


def _right_ms() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ClockedLoop)
    return EPOCH_MS + int(loop.right_time() * 1000)


# -- nothing but clock steps ------------------------------------------------------------------------------------------
class OnlyClocksRun(ClockedRun):
    """Clock steps alone: they must not make anybody be taken for dead, slow or somebody else."""

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.fabric.max_delay_s, self.fabric.slow_chance = 0.003, 0.0

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return OnlyClocks(self, hosts)

    def standing(self) -> dict[str, object]:
        """What would change if somebody were: epochs, registered brokers, group members."""
        told: dict[str, object] = {}
        for machine in self.machines:
            assert machine.process is not None
            node = machine.process.node
            found = [node.image.topics.by_name(name) for name in (TOPIC, MIRROR)]
            told[machine.host] = (
                node.driver.epoch, node.image.cluster.brokers,
                [(p.leader_epoch, p.partition_epoch) for each in found if each for p in each.partitions.values()],
            )  # fmt: skip
        assert self.members is not None
        told["members"] = self.members.standing()
        return told


class OnlyClocks(ClockFaults):
    run: OnlyClocksRun

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._nothing]

    async def _nothing(self) -> None:
        """No fault besides the clock steps."""

    async def go_on_until(self, end: float) -> None:
        before = self.run.standing()
        await super().go_on_until(end)
        after = self.run.standing()
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        if changed:
            raise Broken(f"clocks that step change nothing: {changed}")

    async def _restore(self) -> None:
        """Nothing to restore."""
