"""A follower with several disks, one of which hangs, still follows the partitions on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.directory_threads import DirectoryThreads
from ballast_wire.names import TopicPartition

T = TypeVar("T")
TOPIC = "orders"
BOTH = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))


class Held:
    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def run(self, work: Callable[[], T]) -> T:
        await self.let_go.wait()
        return work()


def hang(directory: LogDirectory) -> Held:
    held = Held()
    directory.threads = DirectoryThreads(held, lambda *_: None)
    directory.slow_until = float("inf")
    return held


async def two_partitions(cluster: Cluster) -> tuple[Node, Node, Node]:
    """Two future leaders, and a follower that has a replica of each in its own directory."""
    first, second, follower = await cluster.add(1, 2, 3, directories=2, num_replica_fetchers=1)
    cluster.controller.create_topic(TOPIC, [[1, 2, 3], [1, 2, 3]])
    await eventually(lambda: all(each in follower.logs.logs for each in BOTH))
    assert follower.log(BOTH[0]).directory is not follower.log(BOTH[1]).directory
    return first, second, follower


@pytest.mark.spec("REP-01", "REP-04", "LOG-32")
async def test_partitions_of_another_disk_are_followed_meanwhile(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader, _, follower = await two_partitions(cluster)
        hung, well = BOTH
        held = hang(follower.log(hung).directory)
        leader.produce(hung, "a")
        for number in range(3):
            leader.produce(well, str(number))
            await eventually(lambda: follower.log(well).log_end_offset == leader.log(well).log_end_offset)
        leader.produce(hung, "b")
        assert follower.log(hung).log_end_offset == 0
        held.let_go.set()
        await eventually(lambda: follower.log(hung).log_end_offset == 2)
        assert follower.stored(hung) == ["a", "b"]


@pytest.mark.spec("REP-01", "REP-21")
async def test_a_new_epoch_does_not_wait_for_what_is_being_written(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second, follower = await two_partitions(cluster)
        hung = BOTH[0]
        held = hang(follower.log(hung).directory)
        first.produce(hung, "a")
        await eventually(lambda: follower.log(hung).slow_appends == 1 and second.log(hung).log_end_offset == 1)
        await first.crash()
        await eventually(lambda: second.state(hung).is_leader)
        second.produce(hung, "b")
        await eventually(lambda: follower.log(hung).slow_appends == 2, "what the new leader gives waits for its turn")
        held.let_go.set()
        await eventually(lambda: follower.log(hung).log_end_offset == 2)
        assert follower.stored(hung) == ["a", "b"]
