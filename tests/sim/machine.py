"""A simulated machine: its disks persist while processes of the real node come and go on it."""

from __future__ import annotations

import asyncio
import contextvars
import random
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.broker.seams import DrawnRandom
from tests.sim.cleaner import SlowCleaner
from tests.sim.disk import SimDisk, Store
from tests.sim.loop import NODE, SimLoop
from tests.sim.network import Fabric, SimListening, SimNetwork

from ballast_broker.app import Node
from ballast_broker.config.broker import broker_config
from ballast_broker.replication import movers
from ballast_broker.world import World

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000
THREAD_COST_S = 0.0005
# Simulated partitions are small: let moves copy files all the same, not only read and append.
movers.SMALLEST_COPY_BYTES = 500


class SimClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return self._loop.time()


class SimThreads:
    def __init__(self) -> None:
        self.hung = False  # all of them block on a disk that does not respond

    async def run(self, work: Any) -> Any:
        if self.hung:
            await asyncio.Future()
        await asyncio.sleep(THREAD_COST_S)
        return work()


@dataclass
class Process:
    """One life of a node, from a start to its end."""

    name: str
    node: Node
    disk: SimDisk
    task: asyncio.Task[None]


class Machine:
    kind_of_clock: type[SimClock] = SimClock

    def __init__(
        self, loop: SimLoop, fabric: Fabric, rng: random.Random, node_id: int, properties: dict[str, str]
    ) -> None:
        self.node_id = node_id
        self.host = f"n{node_id}"
        self.clock = self.kind_of_clock(loop)
        self.store = Store(random.Random(rng.random()), self.clock.wall_ms)
        self.process: Process | None = None
        self.failures: list[BaseException] = []
        self._loop = loop
        self._fabric = fabric
        self._rng = rng
        self._properties = properties
        self.directories = properties["log.dirs"].split(",")
        self._lives = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        assert self.process is None
        self._lives += 1
        name = f"{self.host}#{self._lives}"
        context = contextvars.copy_context()
        context.run(NODE.set, name)
        context.run(self._launch, name)

    def _launch(self, name: str) -> None:
        disk, threads = SimDisk(self.store), self._threads()
        world = World(
            disk,
            self.clock,
            DrawnRandom(random.Random(self._rng.random())),
            threads,
            self._threads(),
            SimNetwork(self._fabric, self.host),
            SimListening(self._fabric, self.host),
            SlowCleaner(disk, threads, random.Random(self._rng.random())),
        )
        node = Node(broker_config(self._properties), world)
        task = self._loop.create_task(self._live(node), name=f"{name} main")
        self.process = Process(name, node, disk, task)

    def _threads(self) -> SimThreads:
        return SimThreads()

    async def _live(self, node: Node) -> None:
        try:
            await node.start()
            await node.failed
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not (self.store.failing or self.store.capacity):  # else its disks are reason enough to exit
                self.failures.append(error)
            self._loop.call_soon(self.kill, context=contextvars.Context())

    def kill(self) -> None:
        """kill -9: nothing of the process continues, the page cache survives."""
        process, self.process = self.process, None
        if process is None:
            return
        process.disk.kill()
        if process.node.failed.done() and not process.node.failed.cancelled():
            process.node.failed.exception()  # mark it as retrieved: the process died before `_live` could
        self._fabric.silence(self.host)
        self._loop.bury(process.name)

    def stall(self, seconds: float) -> None:
        """The process gets no CPU for `seconds`, as if it were paused."""
        if self.process is not None:
            self._loop.stall(self.process.name, seconds)

    def hang_quorum(self) -> None:
        """From now on this process waits for ever for the disk of the metadata log."""
        if self.process is not None:
            threads = self.process.node.world.quorum_threads
            assert isinstance(threads, SimThreads)
            threads.hung = True

    def lose_power(self) -> None:
        self.kill()
        self.store.lose_power()

    async def stop(self) -> None:
        """SIGTERM."""
        process = self.process
        if process is None:
            return
        if hasattr(process.node, "driver"):  # else it is still starting and has nothing to stop
            context = contextvars.copy_context()
            context.run(NODE.set, process.name)
            await self._loop.create_task(process.node.stop(), context=context)
        self.kill()
