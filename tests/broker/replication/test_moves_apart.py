"""What a move does not affect: other disks, other brokers, their quotas; and when its task ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.broker.replication.cluster import Cluster, eventually

from ballast_broker.replication import mover, movers
from ballast_broker.replication.moves import Stage
from ballast_broker.seams import File
from ballast_broker.storage import directory_threads
from ballast_broker.storage.disk import RealDisk, RealFile, RealThreads
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)
SMALL_SEGMENTS = {"segment.bytes": "1000"}


@pytest.mark.spec("DIR-01")
async def test_the_directories_of_a_broker_hold_different_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1, directories=3)
        cluster.controller.create_topic("orders", [[1]] * 9)
        names = [sorted(path.name for path in directory.glob("orders-*")) for directory in node.directories]
        assert [len(each) for each in names] == [3, 3, 3]
        assert len({name for each in names for name in each}) == 9


@pytest.mark.spec("DIR-17")
async def test_a_move_between_healthy_directories_while_another_is_offline(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1, directories=3)
        cluster.controller.create_topic("orders", [[1]], SMALL_SEGMENTS)
        for number in range(50):
            node.produce(ORDERS, f"record {number}")
        here = Path(node.log(ORDERS).directory.path)
        broken, healthy = (path for path in node.directories if path != here)
        node.lose(broken)
        answers = node.replication.directories.alter({ORDERS: str(healthy)})
        assert answers == {ORDERS: ErrorCode.NONE}
        await eventually(lambda: not node.replication.movers.moves)
        assert node.log(ORDERS).directory.path == str(healthy)
        assert len(await node.consume(ORDERS)) == 50


@pytest.mark.spec("DIR-22", "REP-31")
async def test_a_follower_moves_while_its_leader_cannot_be_reached_and_no_quota_notices(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.add(1)
        [follower] = await cluster.add(2, directories=2)
        cluster.controller.create_topic("orders", [[1, 2]], SMALL_SEGMENTS)
        for side in ("leader", "follower"):
            cluster.controller.configure(2, "orders", {f"{side}.replication.throttled.replicas": "*"})
            cluster.controller.configure(4, "2", {f"{side}.replication.throttled.rate": "1"})
        for number in range(60):
            cluster.nodes[1].produce(ORDERS, f"record {number}")
        cluster.controller.configure(4, "2", {"follower.replication.throttled.rate": "1000000"})
        await eventually(lambda: follower.log(ORDERS).log_end_offset == 60)
        # Its next fetch has arrived and waits: none is in flight any more.
        await eventually(lambda: cluster.nodes[1].log(ORDERS).high_watermark == 60)
        cluster.cuts.add(frozenset({1, 2}))
        replication = follower.replication
        fetches = len(cluster.fetches)
        before = (replication.leader_rate.total_bytes, replication.follower_rate.total_bytes)
        size = follower.log(ORDERS).size_bytes
        target = next(path for path in follower.directories if str(path) != follower.log(ORDERS).directory.path)
        assert replication.directories.alter({ORDERS: str(target)}) == {ORDERS: ErrorCode.NONE}
        await eventually(lambda: not replication.movers.moves)
        assert follower.log(ORDERS).directory.path == str(target)
        assert (replication.leader_rate.total_bytes, replication.follower_rate.total_bytes) == before
        assert replication.moves_rate.total_bytes == size, "it counts against the quota of moves alone"
        assert len(cluster.fetches) == fetches


class HeldReads(RealDisk):
    """A disk on which copies from a directory wait."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.waiting = 0
        self.held = "//"
        self._paths: dict[File, str] = {}

    def open(self, path: str, **keywords: Any) -> RealFile:
        file = super().open(path, **keywords)
        self._paths[file] = path
        return file

    def copy_range(self, source: File, source_position: int, target: File, target_position: int, size: int) -> int:
        if self._paths.get(source, "").startswith(self.held):
            self.waiting += 1
            assert self.let_go.wait(30)
        return super().copy_range(source, source_position, target, target_position, size)


@pytest.mark.spec("DIR-23", "DIR-24")
async def test_moves_of_a_disk_that_does_not_answer_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_threads, "SILENT_AFTER_S", 0.2)
    monkeypatch.setattr(mover, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(movers, "SMALLEST_COPY_BYTES", 100)
    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=1) as cluster:
        cluster.disk, cluster.threads = disk, _ = HeldReads(), RealThreads(8)
        [node] = await cluster.add(1, directories=3)
        cluster.controller.create_topic("orders", [[1]] * 3, SMALL_SEGMENTS)
        partitions = [TopicPartition("orders", number) for number in range(3)]
        for partition in partitions:
            for number in range(50):
                node.produce(partition, f"record {number}")
        first, second, third = (node.log(partition).directory.path for partition in partitions)
        assert len({first, second, third}) == 3
        disk.held = first
        try:
            node.replication.directories.alter({partitions[0]: second, partitions[1]: third})
            await eventually(lambda: disk.waiting)
            waiting = asyncio.create_task(node.log(partitions[0]).directory.threads.run(disk.let_go.wait))
            moves = node.replication.movers.moves
            await eventually(lambda: partitions[1] not in moves)
            assert node.log(partitions[1]).directory.path == third
            node.replication.directories.alter({partitions[2]: first})
            await eventually(lambda: "does not answer" in (moves[partitions[2]].paused or ""))
            node.replication.directories.alter({partitions[1]: second})
            await eventually(lambda: partitions[1] not in moves)
        finally:
            disk.let_go.set()
        await waiting
        await eventually(lambda: not moves)
        assert [node.log(partition).directory.path for partition in partitions] == [second, second, first]
        for partition in partitions:
            assert len(await node.consume(partition)) == 50


@pytest.mark.spec("DIR-27")
async def test_a_mover_waits_without_work_and_ends_without_moves(tmp_path: Path) -> None:
    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=1) as cluster:
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]], SMALL_SEGMENTS)
        node.produce(ORDERS, "before")
        await eventually(lambda: not len(node.replication.assignments))
        all_movers = node.replication.movers
        cluster.controller.away = True
        target = next(path for path in node.directories if str(path) != node.log(ORDERS).directory.path)
        node.replication.directories.alter({ORDERS: str(target)})
        [the_mover] = all_movers._movers.values()
        await eventually(lambda: all_movers.moves[ORDERS].stage is Stage.ASKING)
        assert the_mover.queue.next() is None, "nothing to do while the controller is asked"
        for number in range(50):
            node.produce(ORDERS, f"meanwhile {number}")
        cluster.controller.away = False
        await eventually(lambda: not all_movers.moves)
        assert len(await node.consume(ORDERS)) == 51
        await eventually(lambda: the_mover._task is not None and the_mover._task.done(), "no partition is left")
