"""Kills a broker at each file operation of a move in turn; after each restart one log has everything."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.broker import turning
from tests.broker.replication.cluster import Cluster, Node, eventually, records_of
from tests.broker.replication.stopping_disk import Killed, StoppingDisk

from ballast_broker.replication import assignments, movers
from ballast_broker.storage.disk import RealDisk
from ballast_wire.errors import ApiError
from ballast_wire.names import TopicPartition

T = TypeVar("T")
ORDERS = TopicPartition("orders", 0)
POINTS_PER_TEST = 10
MOST_POINTS = 200
DELETED = 5  # records: the first file has later ones as well


@pytest.fixture(autouse=True)
def _the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of copying have their share of a small log, nothing waits a second for more to report, and no
    operation's place depends on the machine."""
    monkeypatch.setattr(movers, "SMALLEST_COPY_BYTES", 300)
    monkeypatch.setattr(assignments, "LULL_S", 0.0)
    turning.never_end(monkeypatch)


class InlineThreads:
    """Runs work at once, so that operations always come in the same order; something may happen before each."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.before()
        return work()

    def close(self) -> None:
        return


async def run_until_stopped(folder: Path, operations: int | None) -> list[str]:
    """Kill after so many operations, restart, and check. Return the operations that were done."""
    async with Cluster(folder) as cluster:
        disk = cluster.disk = StoppingDisk()
        threads = cluster.threads = InlineThreads()
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]], {"segment.bytes": "700"})
        acknowledged = [f"record {number}" for number in range(30)]
        for value in acknowledged:
            node.produce(ORDERS, value)
        await node.replicas.delete_records({ORDERS: DELETED}, 1000)
        await node.logs.maintenance.checkpoint_start_offsets()
        del acknowledged[:DELETED]
        await eventually(lambda: not len(node.replication.assignments))
        disk.done.clear()
        disk.left = operations
        unsure = await move_and_produce(node, disk, threads, acknowledged)
        done = list(disk.done)
        await node.crash(noticed=False)
        disk.close_files()
        threads.before = lambda: None
        cluster.disk = RealDisk()
        await node.start()
        await eventually(lambda: not node.replication.movers.moves and not len(node.replication.assignments))
        at = f"killed at {done[-1] if done else 'nothing'}"
        assert node.logs.get(ORDERS) is not None, at
        found = records_of(node.log(ORDERS))
        assert found in (acknowledged, acknowledged + unsure), at
        assert not node.logs.future_logs, at
        assert current_folders(node) == [node.log(ORDERS).folder.path], at
        node.produce(ORDERS, "goes on")
        assert await node.consume(ORDERS) == [*found, "goes on"], at
        registration = cluster.controller.registration(ORDERS)
        assert registration.directories == (node.log(ORDERS).directory.id,), at
        return done


async def move_and_produce(
    node: Node, disk: StoppingDisk, threads: InlineThreads, acknowledged: list[str]
) -> list[str]:
    """Return the record that was being written when the disk stopped, if any."""
    numbers = iter(range(10))
    unsure: list[str] = []

    def produce() -> None:
        number = next(numbers, None)
        if number is None or disk.stopped:
            return
        value = f"meanwhile {number}"
        try:
            node.produce(ORDERS, value)
            acknowledged.append(value)
        except (Killed, ApiError):
            unsure.append(value)

    threads.before = produce
    with contextlib.suppress(Killed, ApiError):
        node.replication.directories.alter({ORDERS: str(node.directories[1])})
    await eventually(lambda: not node.replication.movers.moves or disk.stopped)
    for _ in range(10):
        produce()
    await asyncio.sleep(0)
    return unsure


def current_folders(node: Node) -> list[str]:
    return [str(folder) for directory in node.directories for folder in directory.glob("orders-0")]


@pytest.mark.spec("DIR-31", "DIR-29")
@pytest.mark.parametrize("first", range(0, MOST_POINTS, POINTS_PER_TEST))
async def test_every_restart_ends_with_one_log(tmp_path: Path, first: int) -> None:
    for operations in range(first, first + POINTS_PER_TEST):
        folder = tmp_path / str(operations)
        done = await run_until_stopped(folder, operations)
        shutil.rmtree(folder)
        if len(done) <= operations:
            return  # the move was over before


async def test_the_points_above_are_all_there_are(tmp_path: Path) -> None:
    done = await run_until_stopped(tmp_path, None)
    assert 40 < len(done) < MOST_POINTS, done
    again = await run_until_stopped(tmp_path / "again", None)
    assert kinds(done) == kinds(again), "each number is the same point each time"


def kinds(operations: list[str]) -> list[str]:
    return [operation.split(" ")[0] for operation in operations]
