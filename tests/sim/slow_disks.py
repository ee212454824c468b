"""Runs with slow disks: work in threads takes its time, each piece its own, and completes in any order.

A thread may do its work at the beginning or at the end of that time, so whatever the event loop does meanwhile (a new
epoch, a truncation, a deletion, the next append) comes after it or before it. Directories of such machines count as
slow now and then, so that appends alternate between threads and the event loop. Meanwhile replicas move between three
directories, some of which fail for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.directories import DirectoriesRun, DirectoryFaults
from tests.sim.machine import THREAD_COST_S, Machine, SimThreads

# Most work is as quick as usual, or the run would show nothing but timeouts; some is so slow that its directory counts
# as hung.
RESTED_S = (THREAD_COST_S,)
TIRED_S = (THREAD_COST_S, THREAD_COST_S, 0.01, 0.05, 0.3)
WORN_S = (0.01, 0.05, 0.3, 1.5, 6.5)
QUICKEST, SLOWEST = 0.5, 1.5  # factors of these costs
STALLS_S = 4.0


class SlowDiskThreads(SimThreads):
    """`costs_s` returns how long work may take at present. Whether it is done at the beginning or the end is random."""

    def __init__(self, rng: random.Random, costs_s: Callable[[], tuple[float, ...]]) -> None:
        super().__init__()
        self._rng = rng
        self._costs_s = costs_s

    async def run(self, work: Callable[[], Any]) -> Any:
        if self.hung:
            await asyncio.Future()
        costs_s = self._costs_s()
        cost_s = self._rng.choice(costs_s) * self._rng.uniform(QUICKEST, SLOWEST)
        if len(costs_s) == 1 or self._rng.random() < 0.5:
            await asyncio.sleep(cost_s)
            return work()
        try:
            done = work()
        except Exception:
            await asyncio.sleep(cost_s)
            raise
        await asyncio.sleep(cost_s)
        return done


class SlowDisksMachine(Machine):
    costs_s: tuple[float, ...] = RESTED_S

    def _threads(self) -> SimThreads:
        return SlowDiskThreads(random.Random(self._rng.random()), lambda: self.costs_s)

    def stall_appends(self, seconds: float) -> None:
        """Mark its directories as too slow for the event loop, as a few slow writes do."""
        if self.process is not None:
            for directory in self.process.node.logs.directories:
                directory.slow_until = max(directory.slow_until, self._monotonic() + seconds)

    def _monotonic(self) -> float:
        """The monotonic clock as its process reads it."""
        return self.clock.monotonic()


class SlowDisksRun(DirectoriesRun):
    kind_of_machine: type[Machine] = SlowDisksMachine

    def _faults(self, hosts: list[str]) -> DirectoryFaults:
        return SlowDiskFaults(self, hosts)

    def tire(self, machine: Machine, costs_s: tuple[float, ...]) -> None:
        assert isinstance(machine, SlowDisksMachine)
        machine.costs_s = costs_s
        if costs_s is not RESTED_S:
            machine.stall_appends(STALLS_S)


class SlowDiskFaults(DirectoryFaults):
    run: SlowDisksRun

    async def go_on_until(self, end: float) -> None:
        try:
            await super().go_on_until(end)
        finally:
            for machine in self.run.machines:
                self.run.tire(machine, RESTED_S)
        await asyncio.sleep(max(WORN_S) * SLOWEST)  # until all work begun in threads is done

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        return [self._tire()]

    async def _tire(self) -> None:
        """Change the speed of disks throughout the run, whatever else goes wrong."""
        rng = random.Random(f"tired {self.run.seed}")
        while True:
            machine = rng.choice(self.run.machines)
            costs_s = rng.choice([RESTED_S, TIRED_S, TIRED_S, WORN_S])
            self.run.note(f"{machine.host}'s disks take up to {max(costs_s)} s")
            self.run.tire(machine, costs_s)
            await asyncio.sleep(rng.uniform(0.2, 3.0))
