"""What checkpoints say after a start, and whether they are about the log that is there."""

# ruff: noqa: ASYNC110, ASYNC240 - a test looks at real files and polls for them
from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from uuid import UUID

import pytest
from tests.broker.storage.managing import TOPIC_ID, BadDisk, SideBySide, World, create, partition, run, write

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import checkpoint
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager


def test_deleting_and_creating_again(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        write(create(manager), 2)
        manager.delete(partition())
        assert manager.get(partition()) is None
        assert create(manager).log_end_offset == 0
        world.kill(manager)
        again = await world.started()
        assert again.logs[partition()].log_end_offset == 0
        assert not again.future_logs

    run(story())


@pytest.mark.spec("TOP-24", "TOP-26")
@pytest.mark.parametrize("by", ["deleted", "deleted before a crash", "set aside"])
def test_a_namesake_does_not_begin_where_the_old_log_did(world: World, by: str) -> None:
    """The checkpoint of log start offsets is written once a minute: until then it is about the deleted log."""
    path = f"{world.paths[0]}/{checkpoint.LOG_START_OFFSETS}"

    async def without_the_old_one(manager: LogManager) -> None:
        task = asyncio.create_task(manager.maintenance.run())
        async with asyncio.timeout(45):
            while checkpoint.read_offsets(world.disk, path):
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_start_offsets()
        assert checkpoint.read_offsets(world.disk, path) == {partition(): 7}
        (manager.rename_stray if by == "set aside" else manager.delete)(partition())
        if by == "deleted before a crash":
            world.kill(manager)
            manager = await world.started(log_dirs=(world.paths[0],))
        await without_the_old_one(manager)
        write(create(manager), 3)
        world.kill(manager)
        again = await world.started(log_dirs=(world.paths[0],))
        log = again.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    run(story())


@pytest.mark.spec("TOP-24", "LOG-22", "LOG-41")
@pytest.mark.parametrize("clean", [False, True])
def test_of_two_topics_logs_the_right_one_begins_where_it_did_however_late_that_is_known(
    world: World, clean: bool
) -> None:
    """Brokers are restarted while no controller is there, too. What DeleteRecords had deleted came back."""

    async def story() -> None:
        other = UUID(int=7)
        for directory, topic_ids in zip(world.paths, ((other, TOPIC_ID), (TOPIC_ID, other)), strict=False):
            manager = await world.started(log_dirs=(directory,))
            for number, topic_id in enumerate(topic_ids):
                log = manager.get_or_create(partition(number), topic_id, LogConfig(), is_new=True)
                write(log, 9)
                log.advance_log_start_offset(7)
            await manager.shutdown()
        manager = await world.started(log_dirs=tuple(world.paths[:2]))
        await manager.maintenance.checkpoint_everything()
        if clean:
            await manager.shutdown()
        else:
            world.kill(manager)
        manager = await world.started(log_dirs=tuple(world.paths[:2]))
        for number in range(2):
            manager.set_aside_namesakes(partition(number), TOPIC_ID)
            log = manager.logs[partition(number)]
            assert (log.topic_id, log.log_start_offset, log.log_end_offset) == (TOPIC_ID, 7, 9)

    run(story())


CLOCKS = {"goes on": 0, "was set back": -3_600, "was set forward": 3_600}


def bear_times_of_a_clock_that(world: World, goes: str, *paths: str) -> None:
    """Give files modification times as if the clock had changed between the writes."""
    for path in paths:
        when = Path(path).stat().st_mtime + CLOCKS[goes]
        os.utime(path, (when, when))


@pytest.mark.spec("TOP-24", "LOG-41")
@pytest.mark.parametrize("goes", CLOCKS)
@pytest.mark.parametrize("clean", [False, True])
def test_checkpoints_from_before_a_log_was_made_speak_of_a_namesake(world: World, clean: bool, goes: str) -> None:
    """A process that is killed within a second after a topic was re-created must not lose acknowledged records."""

    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_everything()
        manager.delete(partition())
        log = create(manager)
        write(log, 8)
        if clean:
            log.advance_log_start_offset(2)
            await manager.shutdown()
        else:
            world.kill(manager)
        bear_times_of_a_clock_that(world, goes, f"{log.folder.path}/{checkpoint.PARTITION_METADATA}")
        again = await world.started(log_dirs=(world.paths[0],))
        log = again.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (2 if clean else 0, 8)
        assert not list(Path(log.folder.path).glob("*.outdated")) or not clean

    run(story())


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("goes", CLOCKS)
@pytest.mark.parametrize("namesake", [False, True])
def test_what_was_written_since_a_log_was_made_is_believed(world: World, goes: str, namesake: bool) -> None:
    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        if namesake:
            write(create(manager), 1)
            await manager.maintenance.checkpoint_everything()
            manager.delete(partition())
        log = create(manager)
        write(log, 9)
        log.flush()
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_everything()
        assert not list(Path(log.folder.path).glob("*.outdated"))
        bear_times_of_a_clock_that(
            world,
            goes,
            *(f"{world.paths[0]}/{name}" for name in (checkpoint.LOG_START_OFFSETS, checkpoint.RECOVERY_POINTS)),
        )
        world.kill(manager)
        again = await world.started(log_dirs=(world.paths[0],))
        log = again.logs[partition()]
        assert (log.log_start_offset, log.recovery_point, log.high_watermark) == (7, 9, 9)

    run(story())


@pytest.mark.spec("LOG-41", "DIR-31")
def test_a_log_that_comes_back_to_a_directory_is_not_what_its_checkpoints_say(world: World) -> None:
    """They are from before it moved away; it was truncated elsewhere."""

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        write(log, 9)
        log.flush()
        first, second = log.directory, next(each for each in manager.directories if each is not log.directory)
        await manager.maintenance.checkpoint_everything()
        for directory in (second, first):
            future = manager.create_future(partition(), directory)
            write(future, 3)
            manager.swap_future(partition())()
        world.kill(manager)
        again = await world.started()
        log = again.logs[partition()]
        assert (log.directory.path, log.log_end_offset, log.recovery_point) == (first.path, 3, 0)
        await again.maintenance.checkpoint_everything()
        assert not list(Path(log.folder.path).glob("*.outdated"))

    run(story())


@pytest.mark.spec("LOG-41", "TOP-24")
def test_a_checkpoint_that_was_being_written_as_a_log_went_speaks_of_that(world: World) -> None:
    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)

        class Meanwhile(BadDisk):
            def write_atomically(self, path: str, data: bytes) -> None:
                if path.endswith(checkpoint.LOG_START_OFFSETS) and partition() in manager.logs:
                    loop.call_soon_threadsafe(again)
                    assert done.wait(45)
                super().write_atomically(path, data)

        def again() -> None:
            manager.delete(partition())
            write(create(manager), 3)
            done.set()

        loop, done = asyncio.get_running_loop(), threading.Event()
        manager.disk = Meanwhile()
        await manager.maintenance.checkpoint_start_offsets()
        assert checkpoint.read_offsets(world.disk, f"{world.paths[0]}/{checkpoint.LOG_START_OFFSETS}") == {
            partition(): 7
        }
        world.kill(manager)
        another = await world.started(log_dirs=(world.paths[0],))
        log = another.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    run(story())


@pytest.mark.spec("LOG-41", "TOP-24")
def test_a_checkpoint_that_is_about_to_be_written_as_a_log_goes_speaks_of_that(world: World) -> None:
    """The values are collected already, and the write is only begun in the next turn of the event loop."""

    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)

        async def again() -> None:
            manager.delete(partition())
            write(create(manager), 3)

        await asyncio.gather(manager.maintenance.checkpoint_start_offsets(), again())
        world.kill(manager)
        another = await world.started(log_dirs=(world.paths[0],))
        log = another.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    run(story())


@pytest.mark.spec("LOG-41")
def test_a_log_that_was_cut_before_its_start_does_not_begin_behind_its_end(world: World) -> None:
    """As after the election of a leader that lacked what DeleteRecords had deleted here."""

    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_everything()
        log.truncate_to(4)
        write(log, 2)
        world.kill(manager)
        again = await world.started(log_dirs=(world.paths[0],))
        assert again.logs[partition()].log_end_offset == 6

    run(story())


class SlowDisk(BadDisk):
    """A disk that counts concurrent replacements of files."""

    def __init__(self) -> None:
        super().__init__()
        self.replacing = SideBySide()

    def write_atomically(self, path: str, data: bytes) -> None:
        with self.replacing:
            super().write_atomically(path, data)


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_checkpoint_is_written_by_one_at_a_time(world: World, cancelled: bool) -> None:
    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = create(manager)
        disk = manager.disk = SlowDisk()
        first, second = (
            asyncio.create_task(checkpoint_of_a_record(manager, log)),
            asyncio.create_task(checkpoint_of_a_record(manager, log)),
        )
        if cancelled:
            await asyncio.to_thread(disk.replacing.begun.wait)
            first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert disk.replacing.most == 1
        assert log.directory.online
        assert checkpoint.read_offsets(disk, f"{world.paths[0]}/{checkpoint.RECOVERY_POINTS}") == {partition(): 2}

    run(story())


async def checkpoint_of_a_record(manager: LogManager, log: Log) -> None:
    write(log, 1)
    log.flush()
    await manager.maintenance.checkpoint_recovery_points()


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("name", [checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, checkpoint.LOG_START_OFFSETS])
def test_checkpoints_cut_in_the_middle_only_cost_work(world: World, name: str) -> None:
    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        for number in range(5):
            write(create(manager, number), 4)
        for log in manager.logs.values():
            log.flush()
        await manager.maintenance.checkpoint_recovery_points()
        await manager.maintenance.checkpoint_high_watermarks()
        await manager.maintenance.checkpoint_start_offsets()
        world.kill(manager)
        path = Path(world.paths[0], name)
        for size in range(len(path.read_bytes())):
            path.write_bytes(path.read_bytes()[: -1 if size else None])
            again = await world.started(log_dirs=(world.paths[0],))
            assert [log.log_end_offset for log in again.logs.values()] == [4] * 5
            world.kill(again)

    run(story())
