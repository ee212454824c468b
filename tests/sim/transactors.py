"""Transactional ids and the incarnations that use them: one after the other, or one while its predecessor goes on as a
zombie; some vanish in the middle and leave a transaction open, which has to time out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from uuid import UUID

from tests.sim.clients import SimClient, create_topic, find_topic_id
from tests.sim.diary import Diary
from tests.sim.isolation import ReadCommitted, read_everything
from tests.sim.network import Fabric
from tests.sim.transactions import BROKER_ADDS, CLIENT_ADDS, Group, Incarnation

from ballast_wire.names import TopicPartition
from ballast_wire.records import Record

NAME = "transacted"
PARTITIONS = [TopicPartition(NAME, number) for number in range(2)]
STATE = "__transaction_state"
STATE_PARTITIONS = 2
IDS = ("x", "y")
HOW_MANY_IDS = (1, 1, 1, 2)  # a run with one id costs half as much
TIMEOUTS_MS = (2000, 6000)
CONFIGS = {"min_insync_replicas": "2"}
PROPERTIES = {
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
PLAIN_PER_SECOND = 0.2


class Transactors:
    per_second = 0.3  # transactions of one id

    def __init__(self, fabric: Fabric, hosts: list[str], rng: random.Random, *, timeout_s: float) -> None:
        self.diary = Diary()
        self._fabric = fabric
        self._hosts = hosts
        self._rng = rng
        self._timeout_s = timeout_s
        self.admin = SimClient(fabric, "transactors", hosts, timeout_s=timeout_s)
        self._finishing, self._exists = asyncio.Event(), asyncio.Event()
        self.topic_id = UUID(int=0)
        self.readers: list[ReadCommitted] = []

    async def run(self) -> None:
        """Run until `finish` is called and every transaction whose producer still lives has ended."""
        await create_topic(self.admin, NAME, len(PARTITIONS), 3, **CONFIGS)
        self.topic_id = await find_topic_id(self.admin, NAME)
        self._exists.set()
        async with asyncio.TaskGroup() as group:
            for name in IDS[: self._rng.choice(HOW_MANY_IDS)]:
                rng = random.Random(self._rng.random())
                group.create_task(_Lives(self, name, rng).run())
            group.create_task(self._write_plainly(random.Random(self._rng.random())))

    async def read(self, rng: random.Random) -> None:
        """Read for ever: committed records, and everything."""
        await self._exists.wait()
        async with asyncio.TaskGroup() as group:
            for partition in PARTITIONS:
                reader = ReadCommitted(
                    self.client(f"committed{partition.partition}"), self.diary, partition, self.topic_id
                )
                self.readers.append(reader)
                group.create_task(reader.run())
                client = self.client(f"everything{partition.partition}")
                group.create_task(read_everything(client, self.diary, partition, random.Random(rng.random())))

    def finish(self) -> None:
        self._finishing.set()

    async def is_finishing(self, seconds: float) -> bool:
        """Wait for `finish`, at most `seconds`; whether it has been called."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finishing.wait(), seconds)
        return self._finishing.is_set()

    def client(self, name: str) -> SimClient:
        return SimClient(self._fabric, name, self._hosts, timeout_s=self._timeout_s)

    def vanish(self, client: SimClient) -> None:
        """Drop the client's connections; what it had sent may still arrive."""
        self._fabric.silence(client.name)

    def cut_off(self, client: SimClient, seconds: float) -> None:
        def reconnect() -> None:
            self._fabric.cut = {way for way in self._fabric.cut if client.name not in way}

        self._fabric.partition({client.name}, set(self._hosts))
        asyncio.get_running_loop().call_later(seconds, reconnect)

    async def _write_plainly(self, rng: random.Random) -> None:
        """Write records outside of transactions; they are not stable while an earlier transaction is open."""
        client, number = self.client("plain"), 0
        while not await self.is_finishing(rng.expovariate(PLAIN_PER_SECOND)):
            partition, number = rng.choice(PARTITIONS), number + 1
            leader = await client.leader_of(partition)
            if leader is None:
                continue
            value = f"plain:{number}".encode()
            self.diary.plain.add(value)
            offset = await client.produce(leader, partition, [Record(value=value, timestamp=1)], timeout_ms=1000)
            if offset is not None:
                self.diary.acked[partition, offset] = value


class _Lives:
    """The incarnations of one transactional id."""

    def __init__(self, everybody: Transactors, name: str, rng: random.Random) -> None:
        self._everybody = everybody
        self._name = name
        self._rng = rng
        self._group = group_of(name)

    async def run(self) -> None:
        incarnations: list[Incarnation] = []
        async with asyncio.TaskGroup() as tasks:
            finishing = False
            while not finishing:
                client = self._everybody.client(f"{self._name}{len(incarnations) + 1}")
                incarnation = Incarnation(
                    client, self._everybody.diary, self._name, self._rng.choice((CLIENT_ADDS, BROKER_ADDS)),
                    PARTITIONS, self._everybody.topic_id, self._group, random.Random(self._rng.random()),
                    self._rng.choice(TIMEOUTS_MS), self._everybody.per_second,
                )  # fmt: skip
                incarnations.append(incarnation)
                task = tasks.create_task(incarnation.run())
                await self._until_it_has_begun(task, incarnation)
                finishing = await self._everybody.is_finishing(self._rng.uniform(3.0, 15.0))
                if not finishing and not task.done():
                    finishing = await self._go(client, incarnation, task)
            for incarnation in incarnations:
                incarnation.finish()

    async def _until_it_has_begun(self, task: asyncio.Task[None], incarnation: Incarnation) -> None:
        """Wait until it has its identity, perhaps once its predecessor's transaction has ended, or until it is over."""
        waiting = asyncio.create_task(incarnation.has_begun.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def _go(self, client: SimClient, incarnation: Incarnation, task: asyncio.Task[None]) -> bool:
        """Let it give way to the next one, perhaps by going on as a zombie. Whether the run is finishing meanwhile."""
        how = self._rng.choice(["in order", "vanishes", "vanishes for long", "goes on", "is cut off"])
        if how == "in order":
            incarnation.finish()
            await task
        elif how == "is cut off":
            self._everybody.cut_off(client, self._rng.choice([1.0, 5.0]))
        elif how != "goes on":
            self._everybody.vanish(client)
            task.cancel()
        return how == "vanishes for long" and await self._everybody.is_finishing(12.0)


def group_of(name: str) -> Group:
    return Group(f"group of {name}", PARTITIONS[0])
