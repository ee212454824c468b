"""A broker is killed at each file operation of a move in turn; each restart ends with one log that has everything."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually, records_of
from tests.broker.replication.stopping_disk import Killed, StoppingDisk

from ballast_broker.storage.disk import RealDisk
from ballast_wire.errors import ApiError
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)
POINTS_PER_TEST = 25
MOST_POINTS = 200


async def run_until_stopped(folder: Path, operations: int | None) -> tuple[int, list[str]]:
    """Kill after so many operations, start again, and look. Answers the number of operations of a whole move."""
    async with Cluster(folder) as cluster:
        disk = cluster.disk = StoppingDisk()
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]], {"segment.bytes": "700"})
        acknowledged = [f"record {number}" for number in range(30)]
        for value in acknowledged:
            node.produce(ORDERS, value)
        await eventually(lambda: not len(node.replicas.assignments))
        disk.done.clear()
        disk.left = operations
        unsure = await move_and_produce(node, disk, acknowledged)
        done = list(disk.done)
        await node.crash(noticed=False)
        cluster.disk = RealDisk()
        await node.start()
        await eventually(lambda: not node.replicas.movers.moves and not len(node.replicas.assignments))
        found = records_of(node.logs.get(ORDERS))
        at = f"killed at {done[-1] if done else 'nothing'}"
        assert found in (acknowledged, acknowledged + unsure), at
        assert not node.logs.future_logs, at
        assert current_folders(node) == [node.logs.get(ORDERS).folder.path], at
        node.produce(ORDERS, "goes on")
        assert await node.consume(ORDERS) == [*found, "goes on"], at
        registration = cluster.controller.image.topics.by_name("orders").partitions[0]
        assert registration.directories == (node.logs.get(ORDERS).directory.id,), at
        return len(done), done


async def move_and_produce(node: Node, disk: StoppingDisk, acknowledged: list[str]) -> list[str]:
    """Answers the record that was being written when the disk stopped, if there was one."""
    value = ""
    try:
        node.replicas.alter_replica_log_dirs({ORDERS: str(node.directories[1])})
        number = 0
        while node.replicas.movers.moves and not disk.stopped:
            if number < 10:
                value = f"meanwhile {number}"
                node.produce(ORDERS, value)
                acknowledged.append(value)
                number += 1
            await asyncio.sleep(0.0005)
        value = "after the swap"
        node.produce(ORDERS, value)
        acknowledged.append(value)
    except (Killed, ApiError):
        return [value]
    return []


def current_folders(node: Node) -> list[str]:
    return [str(folder) for directory in node.directories for folder in directory.glob("orders-0")]


@pytest.mark.spec("DIR-31", "DIR-29")
@pytest.mark.parametrize("first", range(0, MOST_POINTS, POINTS_PER_TEST))
async def test_every_restart_ends_with_one_log(tmp_path: Path, first: int) -> None:
    for operations in range(first, first + POINTS_PER_TEST):
        folder = tmp_path / str(operations)
        done, _ = await run_until_stopped(folder, operations)
        shutil.rmtree(folder)
        if done <= operations:
            return  # the move was over before


async def test_the_points_above_are_all_there_are(tmp_path: Path) -> None:
    done, operations = await run_until_stopped(tmp_path, None)
    assert 40 < done < MOST_POINTS, operations
