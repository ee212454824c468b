"""What is flushed and when, what may happen meanwhile, and what is there after a crash."""

# ruff: noqa: ASYNC110 - a test looks at real files and polls for them
from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.storage.managing import BadDisk, World, create, partition, run, write

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import checkpoint, loading
from ballast_broker.storage.disk import RealFile
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_broker.storage.recovery import scan_segment
from ballast_broker.storage.segment import Segment


class RacingDisk(BadDisk):
    """A disk on which something happens right before the n-th lookup of a name."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.event: Callable[[], object] = lambda: None

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.event()

    def open(self, path: str, **keywords: Any) -> RealFile:
        self._count()
        return super().open(path, **keywords)

    def empty_file(self, path: str) -> RealFile:
        self._count()
        return super().empty_file(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


def retain_less(manager: LogManager, log: Log) -> None:
    log.update_config(LogConfig(retention_ms=1))
    assert log.delete_old_segments(log.context.clock.wall_ms() + 10**9) == 3


def delete(manager: LogManager, log: Log) -> None:
    manager.delete(log.topic_partition)


def delete_and_remove(manager: LogManager, log: Log) -> None:
    manager.delete(log.topic_partition)
    shutil.rmtree(log.folder.path)


def rename_folder(manager: LogManager, log: Log) -> None:
    manager._folders.rename(log, "-stray")


@pytest.mark.spec("LOG-11", "LOG-24", "TOP-24")
@pytest.mark.parametrize("event", [retain_less, delete, delete_and_remove, rename_folder])
def test_a_flush_survives_that_its_files_go_or_get_other_names(
    world: World, event: Callable[[LogManager, Log], object]
) -> None:
    """Flushes run in threads: what the event loop does to the log meanwhile must not count as a disk failure."""
    disk = world.disk = RacingDisk()

    async def story(moment: int) -> None:
        manager = await world.started()
        log = create(manager, moment)
        for _ in range(3):
            write(log, 2)
            log.roll()
        disk.left = moment
        disk.event = lambda: event(manager, log)
        log.flush(6)
        disk.left = 0
        assert log.directory.online, log.directory.error
        if event is not delete_and_remove:
            assert log.recovery_point == 6
        world.kill(manager)
        shutil.rmtree(world.paths[0].rsplit("/", 1)[0])

    for moment in range(1, 12):
        run(story(moment))


def cut_back(log: Log) -> None:
    log.truncate_to(2)


def begin_before(log: Log) -> None:
    log.truncate_fully_and_start_at(1)


def begin_after(log: Log) -> None:
    log.truncate_fully_and_start_at(100)


@pytest.mark.spec("LOG-40")
@pytest.mark.parametrize("cut", [cut_back, begin_before, begin_after])
def test_a_flush_in_the_middle_of_a_cut_vouches_for_nothing_behind_it(
    world: World, cut: Callable[[Log], object]
) -> None:
    """Records written there later would count as flushed: neither synced, nor scanned after a crash."""
    disk = world.disk = RacingDisk()

    async def story(moment: int) -> bool:
        manager = await world.started()
        log = create(manager, moment)
        for _ in range(3):
            write(log, 2)
            log.roll()
        write(log, 2)
        flushed: list[int] = []

        def flush() -> None:
            if not log.flush_lock.locked():  # else the thread would wait until it is free
                log.flush()
                flushed.append(log.recovery_point)

        disk.left, disk.event = moment, flush
        cut(log)
        disk.left = 0
        end = log.log_end_offset
        write(log)
        assert log.recovery_point <= end
        log.flush()
        assert log.recovery_point == end + 1
        world.kill(manager)
        shutil.rmtree(world.paths[0].rsplit("/", 1)[0])
        return bool(flushed)

    assert any([run(story(moment)) for moment in range(1, 12)])  # noqa: C419 - all of them


@pytest.mark.spec("LOG-40")
def test_of_two_flushes_at_once_none_vouches_for_epochs_that_only_the_other_is_about_to_sync(world: World) -> None:
    """The recovery point may be on the disk, and the power fail, before the other one has done it."""
    asked: list[str] = []

    class Noting(BadDisk):
        def open(self, path: str, **keywords: Any) -> RealFile:
            asked.append(path)
            if path.endswith(checkpoint.LEADER_EPOCHS) and asked.count(path) == 1:
                log.flush()
                assert log.recovery_point == log.log_end_offset
                assert asked.count(path) == 2, "the flush in between syncs them as well"
            return super().open(path, **keywords)

    async def story() -> Log:
        return create(await world.started())

    world.disk = Noting()
    log = run(story())
    write(log)
    log.flush()
    write(log)
    log.flush()
    assert len([path for path in asked if path.endswith(checkpoint.LEADER_EPOCHS)]) == 2, "once is enough"


@pytest.mark.spec("DIR-29", "LOG-40")
def test_what_is_flushed_after_a_swap_is_found_after_a_loss_of_power(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it happens before a thread has made the swap's own renames durable."""

    async def story() -> None:
        manager = await world.started()
        write(create(manager), 2)
        future = manager.create_future(partition(), manager.directories[1])
        write(future, 2)
        future.flush()
        manager.swap_future(partition())
        write(future)
        synced: list[str] = []
        sync = world.disk.sync_directory

        def noted(path: str) -> None:
            synced.append(path)
            sync(path)

        monkeypatch.setattr(world.disk, "sync_directory", noted)
        future.flush()
        assert future.directory.path in synced

    run(story())


@pytest.mark.spec("LOG-40")
def test_a_start_after_a_crash_scans_only_what_the_one_before_did_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon crashes follow each other, not everything since the last minute's checkpoint is scanned again."""
    scanned = []

    def scan(segment: Segment, *arguments: Any, **keywords: Any) -> Any:
        scanned.append(segment.base_offset)
        return scan_segment(segment, *arguments, **keywords)

    monkeypatch.setattr(loading, "scan_segment", scan)

    def points(manager: LogManager) -> int:
        path = f"{manager.logs[partition()].directory.path}/{checkpoint.RECOVERY_POINTS}"
        return checkpoint.read_offsets(world.disk, path).get(partition(), 0) if os.path.exists(path) else 0

    async def maintained(manager: LogManager, point: int) -> LogManager:
        task = asyncio.create_task(manager.maintenance.run())
        async with asyncio.timeout(60):
            while points(manager) < point:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        world.kill(manager)
        again = world.manager()
        scanned.clear()
        await again.start()
        return again

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        for _ in range(3):
            write(log, 2)
            log.roll()
        world.kill(manager)
        manager = await world.started()
        assert scanned == [0, 2, 4, 6]
        manager = await maintained(manager, 6)
        assert scanned == [6]
        write(manager.logs[partition()], 2)
        manager.logs[partition()].roll()
        await maintained(manager, 8)
        assert scanned == [8]

    run(story())


@pytest.mark.spec("LOG-30", "LOG-32")
@pytest.mark.parametrize("interval_ms", [0, -1])
def test_flushing_by_the_clock_every_zero_milliseconds_leaves_the_loop_to_others(
    world: World, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka flushes once in this case."""

    async def story() -> None:
        manager = await world.started(log_flush_scheduler_interval_ms=interval_ms)
        times = iter(range(2))

        async def flush_old() -> None:
            next(times)

        monkeypatch.setattr(manager.maintenance, "flush_old", flush_old)
        task = asyncio.create_task(manager.maintenance.run())
        await asyncio.sleep(0.01)
        assert not task.done()
        assert next(times) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story())


@pytest.mark.spec("LOG-30")
def test_flush_ms_is_time_that_passes_whatever_the_clock_is_set_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set back by an hour must not leave an hour's records unflushed."""

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        log.update_config(LogConfig(flush_ms=1000))
        for passed_s, end, flushed in ((5.0, 1, 1), (5.5, 2, 1), (6.0, 3, 3), (7.5, 4, 4)):
            monkeypatch.setattr(world.clock, "monotonic", lambda passed_s=passed_s: passed_s)
            write(log)
            assert log.log_end_offset == end
            await manager.maintenance.flush_old()
            assert log.recovery_point == flushed
            world.clock.now_ms -= 3_600_000

    run(story())


@pytest.mark.spec("LOG-30", "LOG-32")
def test_many_segments_are_flushed_for_a_second_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an unclean shutdown: in one go, a slow disk would be taken for a hung one."""
    passed_s, synced, each_time = [0.0], [0], []

    def sync(file: RealFile) -> None:
        passed_s[0] += 0.4
        synced[0] += 1

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        for _ in range(8):
            write(log)
            log.roll()
        monkeypatch.setattr(world.clock, "monotonic", lambda: passed_s[0])
        monkeypatch.setattr(RealFile, "sync", sync)
        asked = log.directory.threads.run

        async def by_thread(work: Callable[[], Any]) -> Any:
            synced[0] = 0
            done = await asked(work)
            each_time.append((log.recovery_point, synced[0]))
            return done

        monkeypatch.setattr(log.directory.threads, "run", by_thread)
        await manager.maintenance._chores[log.directory].flush([log])
        points = [point for point, _ in each_time]
        assert points[-1] == log.log_end_offset == 8
        assert points == sorted(set(points))
        assert len(points) >= 8 * 3 * 0.4 // 2
        most = max(count for _, count in each_time[1:])  # the first has what belongs to the whole log
        assert most <= 6, "what has begun within the second, and no more"
        assert not [name for name in os.listdir(log.folder.path) if name.endswith(".unflushed")]

    run(story())
