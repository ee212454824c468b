"""Replicas move between directories of a broker while it serves: real logs on real files."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.replication.cluster import Cluster, Node, batch_of, eventually, records_of
from tests.sim.cleaner import CleanerInThread
from tests.sim.disk import Usage

from ballast_broker.replication import movers
from ballast_broker.replication.assignments import ASSIGN_VERSION, Wish
from ballast_broker.replication.mover import Mover
from ballast_broker.replication.movers import Movers
from ballast_broker.replication.moves import Move, Position, Stage, Step, next_step
from ballast_broker.replication.quotas import ByteRate
from ballast_broker.storage.common_end import CommonEnd
from ballast_broker.storage.disk import RealDisk
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 0)
SMALL_SEGMENTS = {"segment.bytes": "1000"}


async def holding(
    cluster: Cluster, records: int = 100, *, directories: int = 2, configs: Mapping[str, str] | None = None
) -> Node:
    """One broker with `orders` in its first directory, in many small segments."""
    [node] = await cluster.add(1, directories=directories)
    cluster.controller.create_topic("orders", [[1]], {**SMALL_SEGMENTS, **(configs or {})})
    for number in range(records):
        node.produce(ORDERS, f"record {number}")
    assert node.log(ORDERS).directory.path == str(node.directories[0])
    return node


def move(node: Node, directory: Path, topic_partition: TopicPartition = ORDERS) -> ErrorCode:
    return node.replication.directories.alter({topic_partition: str(directory)})[topic_partition]


async def moved(node: Node, directory: Path, topic_partition: TopicPartition = ORDERS) -> None:
    await eventually(lambda: not node.replication.movers.moves, f"{topic_partition} moves to {directory}")
    assert node.log(topic_partition).directory.path == str(directory), node.replication.movers.ended


def folders(directory: Path) -> list[str]:
    return sorted(path.name.split(".")[0] + path.suffix[-7:] for path in directory.iterdir() if path.is_dir())


@pytest.mark.spec("DIR-20", "DIR-28", "DIR-29", "DIR-30")
async def test_a_move_keeps_everything_and_serves_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        before = files_of(node)
        assert len(before) > 5, "several segments"
        expected = records_of(node.log(ORDERS))
        first, second = node.directories
        assert move(node, second) is ErrorCode.NONE
        node.produce(ORDERS, "meanwhile")
        await moved(node, second)
        assert records_of(node.log(ORDERS)) == [*expected, "meanwhile"]
        assert await node.consume(ORDERS) == [*expected, "meanwhile"]
        node.produce(ORDERS, "afterwards")
        assert (await node.consume(ORDERS))[-1] == "afterwards"
        after = files_of(node)
        for name, data in before.items():
            assert after[name].startswith(data) if name == max(before) else after[name] == data, name
        assert [name.partition("-delete")[1] for name in folders(first)] == ["-delete"]


def files_of(node: Node) -> dict[str, bytes]:
    folder = Path(node.log(ORDERS).folder.path)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}


@pytest.mark.spec("DIR-29")
async def test_the_controller_agrees_before_the_swap(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        await eventually(lambda: not len(node.replication.assignments))
        first, second = node.directories
        cluster.controller.away = True
        move(node, second)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        node.produce(ORDERS, "while waiting")
        await asyncio.sleep(0.05)
        assert node.log(ORDERS).directory.path == str(first), "no swap without the controller"
        cluster.controller.away = False
        await moved(node, second)
        assert (await node.consume(ORDERS))[-1] == "while waiting"
        registration = cluster.controller.registration(ORDERS)
        assert registration.directories == (node.log(ORDERS).directory.id,)


@pytest.mark.spec("DIR-16", "DIR-29")
async def test_a_cancelled_move_leaves_nothing_and_the_controller_knows(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        first, second = node.directories
        cluster.controller.away = True
        move(node, second)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        assert move(node, first) is ErrorCode.NONE
        assert not node.replication.movers.moves
        assert not node.logs.future_logs
        cluster.controller.away = False
        await eventually(lambda: not len(node.replication.assignments))
        assert node.log(ORDERS).directory.path == str(first)
        assert node.log(ORDERS).cleaning_paused == 0
        registration = cluster.controller.registration(ORDERS)
        assert registration.directories == (node.log(ORDERS).directory.id,)


@pytest.mark.spec("DIR-16", "DIR-29")
async def test_what_is_told_of_an_earlier_move_and_comes_after_this_one_was_agreed_to_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        second = node.directories[1]
        assignments, source = node.replication.assignments, node.log(ORDERS).directory.id
        step = Movers.step

        async def after_a_late_request(self: Movers, mover: Mover, move: Move) -> None:
            if move.flushed:
                late = assignments._request([Wish((move.topic_id, ORDERS.partition), source)])
                await cluster.controller.call(late, ASSIGN_VERSION)
                assert cluster.controller.registration(ORDERS).directories == (source,)
            await step(self, mover, move)

        monkeypatch.setattr(Movers, "step", after_a_late_request)
        move(node, second)
        await moved(node, second)
        await eventually(lambda: not len(assignments))
        registration = cluster.controller.registration(ORDERS)
        assert registration.directories == (node.log(ORDERS).directory.id,) != (source,)


@pytest.mark.spec("DIR-16", "DIR-29", "DIR-31")
async def test_a_move_that_was_agreed_to_before_a_crash_is_cancelled_and_the_controller_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the replica for one of a directory in which it is not, should either of the two fail."""

    def before_the_swap(wanted: Move, at: Position) -> Step:
        return Step.WAIT if wanted.stage is Stage.AGREED else next_step(wanted, at)

    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        first, second = node.directories
        with monkeypatch.context() as patched:
            patched.setattr(movers, "next_step", before_the_swap)
            move(node, second)
            await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.AGREED)
            await node.crash()
        await node.start()
        [destination] = [each.id for each in node.logs.directories if each.path == str(second)]
        assert cluster.controller.registration(ORDERS).directories == (destination,)
        assert node.replication.movers.moves[ORDERS].stage is Stage.COPYING
        assert move(node, first) is ErrorCode.NONE
        source = node.log(ORDERS).directory.id
        await eventually(lambda: cluster.controller.registration(ORDERS).directories == (source,))


@pytest.mark.spec("DIR-16")
async def test_a_move_is_redirected(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, directories=3)
        _, second, third = node.directories
        cluster.controller.away = True
        move(node, second)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        assert move(node, third) is ErrorCode.NONE
        cluster.controller.away = False
        await moved(node, third)
        assert [ended.stage for ended in node.replication.movers.ended] == [Stage.CANCELLED, Stage.DONE]


@pytest.mark.spec("DIR-21")
async def test_cleaning_pauses_for_the_time_of_the_move(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        cluster.controller.away = True
        move(node, node.directories[1])
        log = node.log(ORDERS)
        assert log.cleaning_paused == 1
        log.advance_log_start_offset(90)
        assert log.delete_old_segments(2**62) == 0
        cluster.controller.away = False
        await moved(node, node.directories[1])
        log = node.log(ORDERS)
        assert (log.cleaning_paused, log.log_start_offset) == (0, 90)
        assert log.delete_old_segments(0) > 0


@pytest.mark.spec("DIR-13", "DIR-14", "DIR-15")
async def test_what_is_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, directories=3)
        _, second, third = node.directories
        node.lose(third)
        unknown = TopicPartition("elsewhere", 0)
        long = TopicPartition("l" * 214, 0)
        refused = node.replication.directories.alter(
            {unknown: str(second), long: str(second), TopicPartition("orders", 1): "relative", ORDERS: str(third)}
        )
        assert list(refused.values()) == [
            ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.LOG_DIR_NOT_FOUND,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ]  # fmt: skip
        assert move(node, tmp_path / "not-configured") is ErrorCode.LOG_DIR_NOT_FOUND
        assert not node.replication.movers.moves
        cluster.controller.create_topic("elsewhere", [[1]])
        assert node.log(unknown).directory.path == str(second), "the preference is remembered"


@pytest.mark.spec("DIR-43")
async def test_the_destination_fails_in_the_middle(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        expected = records_of(node.log(ORDERS))
        cluster.controller.away = True
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        node.lose(node.directories[1])
        assert not node.replication.movers.moves
        assert node.replication.movers.ended[-1].stage is Stage.FAILED
        assert node.produce(ORDERS, "goes on") == 100
        assert await node.consume(ORDERS) == [*expected, "goes on"]
        assert node.log(ORDERS).cleaning_paused == 0


@pytest.mark.spec("DIR-43", "DIR-29")
async def test_the_destination_fails_between_the_two_renames(tmp_path: Path) -> None:
    class FailingRename(RealDisk):
        def rename(self, old: str, new: str) -> None:
            if old.endswith("-future") and new.endswith("orders-0"):
                raise OSError(5, "Input/output error")
            super().rename(old, new)

    async with Cluster(tmp_path) as cluster:
        cluster.disk = FailingRename()
        node = await holding(cluster)
        expected = records_of(node.log(ORDERS))
        move(node, node.directories[1])
        await eventually(lambda: not node.replication.movers.moves)
        assert node.replication.movers.ended[-1].stage is Stage.FAILED
        assert str(node.directories[1]) in [each.path for each in node.logs.directories if not each.online]
        assert node.produce(ORDERS, "goes on") == 100
        assert await node.consume(ORDERS) == [*expected, "goes on"]
        await node.crash(noticed=False)
        cluster.disk = RealDisk()
        await node.start()
        assert await node.consume(ORDERS) == [*expected, "goes on"]


@pytest.mark.spec("DIR-45")
async def test_a_mover_pauses_before_the_reserve_is_touched(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        node.logs.placement._reserve = 1 << 60
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].paused)
        assert "reserve" in (node.replication.movers.moves[ORDERS].paused or "")
        node.logs.placement._reserve = 0
        await moved(node, node.directories[1])


@pytest.mark.spec("DIR-26", "DIR-25")
async def test_the_rate_of_all_moves_is_bounded_and_may_change(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 0, configs={"segment.bytes": "1000000"})
        for _ in range(40):
            node.produce(ORDERS, "x" * 50_000)
        cluster.controller.configure(4, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": "400000"})
        loop = asyncio.get_running_loop()
        began = loop.time()
        move(node, node.directories[1])
        current = node.replication.movers.moves[ORDERS]
        await eventually(lambda: loop.time() - began > 2)
        assert 700_000 <= current.copied_bytes <= 2 * 400_000 + 100_000 + 100_000
        cluster.controller.configure(4, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": "100000000"})
        await moved(node, node.directories[1])
        assert loop.time() - began < 4


@pytest.mark.spec("DIR-26")
async def test_what_wakes_a_mover_in_the_middle_of_a_segment_does_not_keep_it_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would check its rate in a busy loop, and nothing else in the broker would run."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 0, configs={"segment.bytes": "1000000"})
        for _ in range(30):
            node.produce(ORDERS, "x" * 50_000)
        cluster.controller.configure(4, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": "10000"})
        rate, asked = node.replication.moves_rate, 0
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].copied_bytes and rate.exceeded())

        def counted() -> float:
            nonlocal asked
            asked += 1
            assert asked < 100, "it does not wait"
            return ByteRate.wait_s(rate)

        monkeypatch.setattr(rate, "wait_s", counted)
        node.replication.movers.wake()
        await eventually(lambda: asked)
        await asyncio.sleep(0)
        assert not node.replication.movers.ended
        cluster.controller.configure(4, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": "100000000"})
        await moved(node, node.directories[1])


@pytest.mark.spec("DIR-23", "DIR-24")
async def test_a_mover_stays_with_a_partition_and_goes_in_order(tmp_path: Path) -> None:
    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=1) as cluster:
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]] * 6, SMALL_SEGMENTS)
        targets = {}
        for number in reversed(range(6)):
            partition = TopicPartition("orders", number)
            for value in range(30):
                node.produce(partition, f"{value}")
            here = node.log(partition).directory.path
            targets[partition] = next(str(path) for path in node.directories if str(path) != here)
        assert set(node.replication.directories.alter(targets).values()) == {ErrorCode.NONE}
        await eventually(lambda: not node.replication.movers.moves)
        ended = node.replication.movers.ended
        assert [move.topic_partition.partition for move in ended] == list(range(6))
        assert {move.topic_partition: node.log(move.topic_partition).directory.path for move in ended} == targets


@pytest.mark.spec("DIR-28")
async def test_a_truncation_in_the_middle_truncates_the_copy(tmp_path: Path) -> None:
    """The moving replica is a follower whose leader turns out to have another history."""
    async with Cluster(tmp_path) as cluster:
        [a] = await cluster.add(1)
        [b] = await cluster.add(2, directories=2)
        cluster.controller.create_topic(
            "orders", [[2, 1]], {**SMALL_SEGMENTS, "unclean.leader.election.enable": "true"}
        )
        assert await b.produce_to_all(ORDERS, "both") is ErrorCode.NONE
        await a.crash()
        for number in range(60):
            assert await b.produce_to_all(ORDERS, f"only b {number}") is ErrorCode.NONE
        await b.crash()
        await a.start()
        await cluster.controller.elect_uncleanly()
        assert await a.produce_to_all(ORDERS, "only a") is ErrorCode.NONE
        # B comes back, cut off; its replica is copied to the other directory before it hears of A's history.
        cluster.cuts.add(frozenset({1, 2}))
        await b.start()
        other = next(path for path in b.directories if str(path) != b.log(ORDERS).directory.path)
        cluster.controller.away = True
        assert move(b, other) is ErrorCode.NONE
        await eventually(lambda: b.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        assert b.logs.future_logs[ORDERS].log_end_offset == 61
        cluster.cuts.clear()
        await eventually(lambda: b.stored(ORDERS) == ["both", "only a"])
        cluster.controller.away = False
        await moved(b, other)
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        assert b.stored(ORDERS) == a.stored(ORDERS) == ["both", "only a"]


@pytest.mark.spec("DIR-29")
async def test_producers_meet_no_error_during_many_moves(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 10, configs={"segment.bytes": "20000"})
        written = [f"record {number}" for number in range(10)]
        done = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not done.is_set():
                written.append(f"more {number}")
                assert await node.produce_to_all(ORDERS, written[-1]) is ErrorCode.NONE
                number += 1
                await asyncio.sleep(0.0005)

        producer = asyncio.get_running_loop().create_task(produce())
        for turn in range(10):
            target = node.directories[1 - turn % 2]
            assert move(node, target) is ErrorCode.NONE
            await moved(node, target)
        done.set()
        await producer
        assert await node.consume(ORDERS) == written
        pauses = [ended.pause_ms for ended in node.replication.movers.ended]
        assert len(pauses) == 10
        assert sorted(pauses)[4] < 20


@pytest.mark.spec("DIR-31", "DIR-20")
async def test_an_unfinished_move_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread compares what was copied, as it may not be in the page cache."""
    compared_by, find = [], CommonEnd.find

    def noted(self: CommonEnd) -> int | None:
        compared_by.append(threading.get_ident())
        return find(self)

    monkeypatch.setattr(CommonEnd, "find", noted)
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        expected = records_of(node.log(ORDERS))
        cluster.controller.away = True
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        await node.crash()
        cluster.controller.away = False
        await node.start()
        await moved(node, node.directories[1])
        assert records_of(node.log(ORDERS)) == expected
        assert node.replication.movers.ended[-1].copied_bytes == 0, "continued, not begun again"
        assert len(compared_by) == 1
        assert threading.get_ident() not in compared_by


@pytest.mark.spec("DIR-16", "DIR-31")
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("restarted", [False, True])
async def test_of_two_copies_after_a_loss_of_power_the_one_asked_for_last_goes_on(
    tmp_path: Path, order: int, restarted: bool
) -> None:
    """The rename that marks the first one for removal had not reached the disk; or that disk was offline when the
    second was requested. Meanwhile the clock was set back."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, directories=3)
        second, third = node.directories[1:][::order]
        cluster.controller.away = True
        move(node, second)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        [first_copy] = second.glob("orders-0.*-future")
        kept = tmp_path / "kept"
        shutil.copytree(first_copy, kept)
        if restarted:
            await node.crash()
            shutil.rmtree(first_copy)
            cluster.controller.away = False
            await node.start()
            cluster.controller.away = True
        move(node, third)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        await node.crash()
        [last_copy] = third.glob("orders-0.*-future")
        for path in last_copy.iterdir():
            os.utime(path, (1_000_000_000, 1_000_000_000))
        for renamed in second.glob("orders-0.*-delete"):
            shutil.rmtree(renamed)
        kept.rename(first_copy)
        cluster.controller.away = False
        await node.start()
        await moved(node, third)
        await node.logs.maintenance.remove_everything_waiting()
        assert folders(second) == []
        await node.stop()
        await node.start()
        assert not node.replication.movers.moves
        assert node.log(ORDERS).directory.path == str(third)


@pytest.mark.spec("DIR-28", "DIR-31", "LOG-25")
async def test_a_copy_from_before_its_log_was_compacted_does_not_bring_back_what_was_deleted(tmp_path: Path) -> None:
    """The destination failed and returned with a restart, long after a tombstone was cleaned with what it deletes."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 0)
        for _ in range(20):
            put(node, b"kept", b"value".ljust(100))
            put(node, b"secret", b"value".ljust(100))
        log = node.log(ORDERS)
        cluster.controller.away = True
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        node.lose(node.directories[1], OSError(errno.EIO, "gone"))
        put(node, b"secret", None)
        log.roll()
        await compact(node, cluster)
        put(node, b"kept", b"newest")
        log.roll()
        await compact(node, cluster)
        assert await node.consume(ORDERS) == ["newest"]
        await node.crash()
        cluster.controller.away = False
        await node.start()
        await moved(node, node.directories[1])
        assert await node.consume(ORDERS) == ["newest"]


def put(node: Node, key: bytes, value: bytes | None) -> None:
    node.replicas.append(ORDERS, None, encode_batch([Record(key, value, 1_750_000_000_000)]), 1)


async def compact(node: Node, cluster: Cluster) -> None:
    """Clean the log; tombstones are removed with the next cleaning."""
    log, compactor = node.log(ORDERS), node.logs.compactor
    policy: dict[str, Any] = {
        "cleanup_policy": frozenset({"compact"}),
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": 0,
    }
    log.update_config(replace(log.config, **policy))
    compactor._runner = CleanerInThread(cluster.disk, cluster.threads)
    assert await compactor.clean_dirtiest()


@pytest.mark.spec("DIR-31", "DIR-43")
@pytest.mark.parametrize("source", ["there", "replaced"])
async def test_a_copy_that_a_loss_of_power_left_a_hole_in_is_cut_before_it(tmp_path: Path, source: str) -> None:
    """A copied segment lost its end, which was not synced yet, and the next one did not."""
    async with Cluster(tmp_path) as cluster:
        leader, node = await cluster.add(1, 2, directories=2)
        cluster.controller.create_topic("orders", [[1, 2]], SMALL_SEGMENTS)
        await leader.produce_to_all(ORDERS, "first")
        for number in range(30):
            leader.produce(ORDERS, f"record {number} ".ljust(100))
        await eventually(lambda: node.stored(ORDERS) == leader.stored(ORDERS))
        cluster.controller.away = True
        here = Path(node.log(ORDERS).directory.path)
        target = next(path for path in node.directories if path != here)
        move(node, target)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        segment = node.logs.future_logs[ORDERS].segments[2]
        last = list(segment.batches())[-1][0]
        await node.crash()
        [file] = target.glob(f"orders-0.*-future/{segment.base_offset:020d}.log")
        with file.open("r+b") as opened:
            opened.truncate(last)
        if source == "replaced":
            shutil.rmtree(here)
        cluster.controller.away = False
        await node.start()
        await eventually(lambda: not node.replication.movers.moves)
        leader.produce(ORDERS, "afterwards")
        await eventually(lambda: node.stored(ORDERS)[-1] == "afterwards")
        assert node.log(ORDERS).directory.path == str(target)
        assert node.stored(ORDERS) == leader.stored(ORDERS)


@pytest.mark.spec("DIR-28", "DIR-31")
async def test_what_was_deleted_before_a_move_stays_deleted_when_the_broker_is_killed_after_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        await node.replicas.delete_records({ORDERS: 55}, 1000)
        expected = await node.consume(ORDERS)
        move(node, node.directories[1])
        await moved(node, node.directories[1])
        await node.crash()
        await node.start()
        assert await node.consume(ORDERS) == expected
        assert node.log(ORDERS).log_start_offset == 55


@pytest.mark.spec("DIR-32")
async def test_describe_log_dirs_shows_current_and_future(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster)
        cluster.controller.away = True
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        node.produce(ORDERS, "one", "two")
        first, second = await node.replication.directories.describe()
        size = node.log(ORDERS).size_bytes
        assert [tuple_of(info) for info in first.replicas] == [(ORDERS, size, 0, False)]
        assert [tuple_of(info)[2:] for info in second.replicas] == [(2, True)]
        assert 0 < first.usable_bytes < first.total_bytes
        node.lose(node.directories[1])
        failed = (await node.replication.directories.describe())[1]
        assert (failed.error, failed.replicas, failed.total_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, [], -1)


def unplug(directory: Path) -> None:
    directory.rename(directory.parent / "unplugged")
    directory.write_text("not a directory")


def tuple_of(info: Any) -> tuple[Any, ...]:
    return (info.topic_partition, info.size_bytes, info.offset_lag, info.is_future)


@pytest.mark.spec("DIR-41", "DIR-04")
async def test_a_failed_directory_takes_only_its_own_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1], [1]])
        here, there = TopicPartition("orders", 0), TopicPartition("orders", 1)
        assert node.log(here).directory is not node.log(there).directory
        await eventually(lambda: not len(node.replication.assignments))
        failed = node.log(here).directory
        failed.fail(OSError("unplugged"))
        result = await node.produce_to_all(here, "a")
        assert result is ErrorCode.KAFKA_STORAGE_ERROR
        assert await node.produce_to_all(there, "a") is ErrorCode.NONE
        assert move(node, Path(node.log(there).directory.path), here) is ErrorCode.KAFKA_STORAGE_ERROR
        # A broker that starts without that disk must not make the partition anew on another one.
        await node.crash()
        unplug(Path(failed.path))
        await node.start()
        assert node.logs.get(here) is None
        assert await node.produce_to_all(here, "b") is not ErrorCode.NONE


RESERVE = 1 << 40


class NearlyFull(RealDisk):
    """A disk with little more than the reserve: not enough for a piece."""

    def usage(self, path: str) -> Usage:
        return Usage(1 << 50, RESERVE + self.more_bytes if path.endswith("d2") else 1 << 49)

    more_bytes = 1000


@pytest.mark.timeout(20)
async def test_a_destination_with_little_more_than_its_reserve_stops_one_move_and_nothing_else(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = NearlyFull()
        [node] = await cluster.add(1, directories=3)
        node.logs.placement._reserve = RESERVE
        cluster.controller.create_topic("orders", [[1]] * 2)
        for number in range(2):
            await node.replicas.append_own(TopicPartition("orders", number), batch_of("x"), 1)
        node.replication.movers._count = lambda: 1
        here = [node.log(TopicPartition("orders", number)).directory.path[-2:] for number in range(2)]
        assert here == ["d1", "d2"]
        move(node, node.directories[1])
        await eventually(lambda: node.replication.movers.moves[ORDERS].paused)
        other = TopicPartition("orders", 1)
        assert node.replication.directories.alter({other: str(node.directories[2])}) == {other: ErrorCode.NONE}
        await eventually(lambda: node.log(other).directory.path.endswith("d3"))
        disk.more_bytes = 1 << 30
        await eventually(lambda: node.log(ORDERS).directory.path.endswith("d2"))


class Asked(RealDisk):
    """A disk that notes which threads ask how full it is."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[int] = []

    def usage(self, path: str) -> Any:
        self.by.append(threading.get_ident())
        return super().usage(path)


@pytest.mark.spec("DIR-45", "LOG-32")
async def test_a_move_asks_how_full_its_destination_is_in_a_thread(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = Asked()
        node = await holding(cluster, 10)
        disk.by.clear()
        assert move(node, node.directories[1]) is ErrorCode.NONE
        await moved(node, node.directories[1])
        assert disk.by
        assert threading.get_ident() not in disk.by


class Filling(RealDisk):
    """A disk whose third directory has limited room."""

    room_bytes = 7_500_000

    def usage(self, path: str) -> Usage:
        taken = sum(file.stat().st_blocks * 512 for file in Path(path).rglob("*.log"))
        return Usage(1 << 50, RESERVE + self.room_bytes - taken if path.endswith("d3") else 1 << 49)


@pytest.mark.spec("DIR-45")
@pytest.mark.timeout(30)
async def test_two_moves_do_not_each_begin_a_segment_where_there_is_room_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise both would wait in the middle for ever, and their movers with them."""
    monkeypatch.setattr(movers, "SEGMENT_PIECE_BYTES", 250_000)
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = Filling()
        [node] = await cluster.add(1, directories=3)
        node.logs.placement._reserve = RESERVE
        cluster.controller.create_topic("orders", [[1]] * 2, {"segment.bytes": "4000000"})
        both = [TopicPartition("orders", number) for number in range(2)]
        for _ in range(60):
            for partition in both:
                node.produce(partition, "x" * 100_000)
        assert {node.log(partition).directory.path[-2:] for partition in both} == {"d1", "d2"}
        moves = node.replication.movers
        target = str(node.directories[2])
        assert set(node.replication.directories.alter(dict.fromkeys(both, target)).values()) == {ErrorCode.NONE}
        await eventually(lambda: len(moves.ended) == 1 and all(move.paused for move in moves.moves.values()))
        assert moves.ended[0].stage is Stage.DONE
        [waiting] = moves.moves.values()
        assert waiting.copied_bytes == 0
        disk.room_bytes = 1 << 30
        await eventually(lambda: [node.log(each).directory.path for each in both] == [target] * 2)


@pytest.mark.spec("DIR-45")
@pytest.mark.timeout(30)
async def test_a_move_whose_destination_fills_in_the_middle_of_a_segment_lets_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may be what makes room there."""
    monkeypatch.setattr(movers, "SEGMENT_PIECE_BYTES", 250_000)
    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=1) as cluster:
        disk = cluster.disk = Filling()
        [node] = await cluster.add(1, directories=3)
        node.logs.placement._reserve = RESERVE
        cluster.controller.create_topic("orders", [[1]] * 2, {"segment.bytes": "4000000"})
        other = TopicPartition("orders", 1)
        for number in range(60):
            node.produce(ORDERS, f"{number}" + "x" * 100_000)
        node.produce(other, "a")
        before = node.stored(ORDERS)
        first, second, third = node.directories
        assert [node.log(each).directory.path for each in (ORDERS, other)] == [str(first), str(second)]
        assert move(node, third) is ErrorCode.NONE
        current = node.replication.movers.moves[ORDERS]
        await eventually(lambda: current.copied_bytes > 0)
        disk.room_bytes = 2_000_000
        await eventually(lambda: current.paused)
        assert current.copied_bytes < 4_000_000
        assert move(node, first, other) is ErrorCode.NONE
        await eventually(lambda: node.log(other).directory.path == str(first))
        assert current.paused
        disk.room_bytes = 1 << 30
        await moved(node, third)
        assert node.stored(ORDERS) == before


@pytest.mark.spec("DIR-31")
async def test_the_disk_that_a_replica_was_moving_away_from_is_replaced(tmp_path: Path) -> None:
    """Only the copy is left, and no offline directory could have more: it continues from there as a follower."""
    async with Cluster(tmp_path) as cluster:
        leader, node = await cluster.add(1, 2, directories=2)
        cluster.controller.create_topic("orders", [[1, 2]])
        await leader.produce_to_all(ORDERS, *map(str, range(20)))
        cluster.controller.away = True
        here = node.log(ORDERS).directory.path
        target = next(path for path in node.directories if str(path) != here)
        move(node, target)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        await node.crash()
        cluster.controller.away = False
        shutil.rmtree(here)
        leader.produce(ORDERS, "while it was away")
        await node.start()
        leader.produce(ORDERS, "afterwards")
        await eventually(lambda: node.stored(ORDERS) == leader.stored(ORDERS))
        assert node.log(ORDERS).directory.path == str(target)
        assert not node.logs.future_logs


@pytest.mark.spec("DIR-13", "DIR-44")
async def test_nobody_prefers_a_cordoned_directory(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 1, directories=3)
        _, second, third = node.directories
        early, late = TopicPartition("early", 0), TopicPartition("late", 0)
        assert move(node, second, early) is ErrorCode.REPLICA_NOT_AVAILABLE
        cluster.controller.configure(4, "1", {"cordoned.log.dirs": str(second)})
        assert move(node, second, late) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert node.logs.placement.preferred(late) is None
        cluster.controller.create_topic("early", [[1]])
        assert node.log(early).directory.path == str(third)


@pytest.mark.spec("DIR-44")
async def test_a_directory_that_is_cordoned_while_its_broker_runs_takes_nothing_new(tmp_path: Path) -> None:
    """As the operator does it; also at a start of the broker, when replicas arrive at the same time."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 1, directories=3)
        first, second, third = map(str, node.directories)
        cluster.controller.configure(4, "1", {"cordoned.log.dirs": second})
        assert move(node, Path(second)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        cluster.controller.create_topic("more", [[1]] * 6)
        assert {node.log(TopicPartition("more", n)).directory.path for n in range(6)} == {first, third}
        assert [told.cordoned for told in await node.replication.directories.describe(None)] == [False, True, False]
        await node.stop()
        cluster.controller.create_topic("absent", [[1]] * 6)
        await node.start()
        assert {node.log(TopicPartition("absent", n)).directory.path for n in range(6)} == {first, third}
        cluster.controller.configure(4, "1", {"cordoned.log.dirs": ""})
        cluster.controller.create_topic("last", [[1]] * 6)
        assert {node.log(TopicPartition("last", n)).directory.path for n in range(6)} == {second}
