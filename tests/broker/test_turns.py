"""Work on thousands of things yields to others on the event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from tests.broker import turning
from tests.broker.raft.memory import InlineThreads, LocalNetwork, LoopClock, MemoryDisk, MemoryLog
from tests.broker.replication.cluster import Cluster, eventually
from tests.broker.seams import SeededRandom

from ballast_broker.controller.replica import MetadataReplica
from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.records import record
from ballast_broker.raft import wire
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.voters import Endpoint
from ballast_broker.replication.mover import Mover
from ballast_broker.replication.movers import Movers
from ballast_broker.replication.moves import Move
from ballast_broker.turns import LONGEST_TURN_S, InTurns

STEPS = 12
IN_A_TURN = 3  # steps of 2 ms until 5 are over


class HandClock(LoopClock):
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Turns:
    """Notes how many steps were done whenever others got a turn."""

    def __init__(self) -> None:
        self.done = 0
        self.seen: list[int] = []

    async def look(self) -> None:
        while True:
            self.seen.append(self.done)
            await asyncio.sleep(0)


@asynccontextmanager
async def looking(turns: Turns) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(turns.look())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.spec("CLI-09")
async def test_a_change_of_thousands_is_acted_upon_for_5_ms_at_a_time_and_the_next_waits() -> None:
    clock, turns, told = HandClock(), Turns(), list[str]()
    store = MetadataStore(MemoryDisk(), "/meta", MemoryLog())
    failures: list[Exception] = []
    replica = MetadataReplica(store, clock, InlineThreads(), on_failure=failures.append)
    quorum = wire.Quorum("cluster", {1: Endpoint("n1", 9093)})
    driver = RaftDriver(
        node_id=1, quorum=quorum, store=store, listener=replica, network=LocalNetwork(), clock=clock,
        threads=InlineThreads(), random=SeededRandom(),
    )  # fmt: skip

    def many_steps(delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        for changed in delta.topics_changed.values():
            told.append(f"{changed.name} begins")
            for _ in range(STEPS):
                assert replica.image is image, "the next batch has come before this one was acted upon"
                assert replica.published_offset < image.offset
                clock.now_s += 0.002
                turns.done += 1
                yield

    def behind(delta: MetadataDelta, _image: MetadataImage) -> None:
        told.extend(f"{changed.name} ends" for changed in delta.topics_changed.values())

    replica.add_publisher(many_steps)
    replica.add_publisher(behind)
    await driver.start()
    while not driver.is_leader:
        clock.now_s += 1
        driver.core.tick(driver.now())
        driver.run()
        await asyncio.sleep(0)
    async with looking(turns), asyncio.timeout(10):
        batches = [
            data_batch([record("TopicRecord", topic_id=uuid.UUID(int=number), name=name)], 1)
            for number, name in ((1001, "a"), (1002, "b"))
        ]
        committed = [driver.append(batch)[1] for batch in batches]
        await committed[0]
        assert "a ends" in told, "whoever asked for it goes on when it is done"
        await committed[1]
    assert told == ["a begins", "a ends", "b begins", "b ends"]
    assert not failures
    steps = [after - before for before, after in pairwise(turns.seen)]
    assert 0 < max(steps) <= IN_A_TURN + 1
    await driver.stop()


@pytest.mark.spec("CLI-09", "TOP-01")
async def test_replicas_are_made_and_removed_one_in_a_step(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        [one] = await cluster.add(1)
        counts: list[tuple[int, int]] = []

        def publish(delta: MetadataDelta, image: MetadataImage) -> None:
            before = [len(one.replicas.partitions())]
            steps = one.replication.roles.publish(delta, image)
            before += [len(one.replicas.partitions()) for _ in steps]
            before.append(len(one.replicas.partitions()))
            counts.extend(pairwise(before))

        cluster.controller.replace(1, publish)
        cluster.controller.create_topic("orders", [[1]] * 5)
        cluster.controller.delete_topic("orders")
        changes = [after - before for before, after in counts]
        assert (changes.count(1), changes.count(-1)) == (5, 5)
        assert max(map(abs, changes)) == 1


@pytest.mark.spec("CLI-09")
async def test_others_have_their_turns_between_things(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, turns, now_s = asyncio.get_running_loop(), Turns(), 0.0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    async with looking(turns):
        found = []
        async for each in InTurns(range(STEPS)):
            found.append(each)
            turns.done += 1
            now_s += LONGEST_TURN_S / 2
        assert found == list(range(STEPS))
        assert turns.seen == [3, 6, 9, 12, 12], "and what follows has a turn of its own"


@pytest.mark.spec("DIR-10")
async def test_movers_of_many_empty_logs_leave_others_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path) as cluster:
        [one] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]] * 20)
        turning.end_at_once(monkeypatch)
        turns, step = Turns(), Movers.step

        async def counted(self: Movers, mover: Mover, move: Move) -> None:
            turns.done += 1
            await step(self, mover, move)

        monkeypatch.setattr(Movers, "step", counted)
        async with looking(turns):
            paths = [directory.path for directory in one.logs.directories]
            for partition in one.replicas.partitions():
                log = one.log(partition.topic_partition)
                other = next(path for path in paths if path != log.directory.path)
                one.replication.directories.alter({partition.topic_partition: other})
            await eventually(lambda: not one.replication.movers.moves)
        assert turns.done >= 20
        assert max(after - before for before, after in pairwise(turns.seen)) <= len(paths), "one step of each mover"


@pytest.mark.spec("DIR-32", "CLI-09")
async def test_what_lies_in_directories_is_described_in_turns_as_it_was_when_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path) as cluster:
        [one] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]] * 20)
        turning.end_at_once(monkeypatch)
        directories = one.replication.directories
        found, had = await turning.beside(directories.describe())
        assert had >= 20
        names = [each.topic_partition for directory in found for each in directory.replicas]
        assert sorted(names) == sorted(each.topic_partition for each in one.replicas.partitions())
        asked = asyncio.ensure_future(directories.describe())
        for _ in range(5):
            await asyncio.sleep(0)
        cluster.controller.delete_topic("orders")
        assert [len(each.replicas) for each in await asked] == [len(each.replicas) for each in found]
        assert [each.replicas for each in await directories.describe()] == [[], []]
