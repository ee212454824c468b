"""A disk that hangs, perhaps for minutes, blocks its own directory and no other."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.broker.replication.cluster import eventually
from tests.broker.storage.conftest import Bench
from tests.broker.storage.managing import TOPIC_ID, World, create, partition, run, write

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import checkpoint, directories, directory_threads, slow_append, startup_watchdog
from ballast_broker.storage.directories import CLEAN_SHUTDOWN, LogDirectory
from ballast_broker.storage.disk import RealDisk, RealFile, RealThreads
from ballast_broker.storage.errors import DirectoryRefused
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_wire.errors import ApiError
from ballast_wire.records import Record, encode_batch


class HungDisk(RealDisk):
    """A disk on which calls under `held` hang in threads until the test lets them go; calls by the event loop are
    noted."""

    def __init__(self) -> None:
        super().__init__()
        self.held = "//"
        self.let_go = threading.Event()
        self.waiting = 0
        self.asked_on_loop: list[str] = []
        self._loop_thread = threading.get_ident()

    def hang(self, path: str) -> None:
        self._loop_thread = threading.get_ident()
        self.held = path

    def _wait(self, path: str) -> None:
        if not path.startswith(self.held) or self.let_go.is_set():
            return
        if threading.get_ident() == self._loop_thread:
            self.asked_on_loop.append(path)
            return
        self.waiting += 1
        assert self.let_go.wait(45)

    def open(self, path: str, **keywords: Any) -> RealFile:
        self._wait(path)
        return super().open(path, **keywords)

    def make_directory(self, path: str) -> bool:
        self._wait(path)
        return super().make_directory(path)

    def list(self, path: str) -> list[str]:
        self._wait(path)
        return super().list(path)

    def is_directory(self, path: str) -> bool:
        self._wait(path)
        return super().is_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._wait(old)
        super().rename(old, new)

    def usage(self, path: str) -> Any:
        self._wait(path)
        return super().usage(path)

    def write_atomically(self, path: str, data: bytes) -> None:
        self._wait(path)
        super().write_atomically(path, data)


class Two:
    """A manager with two directories; the first one's disk hangs once `hang` is called."""

    def __init__(self, manager: LogManager, disk: HungDisk) -> None:
        self.manager = manager
        self.disk = disk
        self.hung, self.well = manager.directories

    def log_in(self, directory: LogDirectory, number: int, **config: Any) -> Log:
        log = create(self.manager, number, assigned_directory=directory.id)
        assert log.directory is directory
        log.update_config(LogConfig(**config))
        write(log)
        return log

    def hang(self) -> None:
        self.disk.hang(self.hung.path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_threads, "SILENT_AFTER_S", 0.3)
    monkeypatch.setattr(directories, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(startup_watchdog, "PATIENCE_S", 0.3)
    monkeypatch.setattr(startup_watchdog, "LOOK_AGAIN_S", 0.02)


@asynccontextmanager
async def two_directories(world: World, **config: Any) -> AsyncIterator[Two]:
    world.disk = disk = HungDisk()
    world.threads.close()
    world.threads = RealThreads(2 * directory_threads.AT_ONCE)
    manager = await world.started(log_dirs=tuple(world.paths[:2]), **config)
    try:
        yield Two(manager, disk)
    finally:
        disk.let_go.set()


@pytest.mark.spec("DIR-41", "LOG-24", "LOG-11", "LOG-32")
def test_files_are_removed_and_logs_flushed_and_checkpointed_elsewhere(world: World) -> None:
    async def story() -> None:
        async with two_directories(
            world, log_retention_check_interval_ms=5, replica_high_watermark_checkpoint_interval_ms=5
        ) as two:
            first, second = two.log_in(two.hung, 0), two.log_in(two.well, 1)
            maintenance = asyncio.create_task(two.manager.run_maintenance())
            two.hang()
            for log in (first, second):
                log.roll()
            removed = f"{two.well.path}/gone.deleted"
            two.manager.maintenance.remove_later([f"{two.hung.path}/gone.deleted"], 0)
            await eventually(lambda: two.hung.threads.silent)
            two.disk.asked_on_loop.clear()
            two.disk.empty_file(removed).close()
            two.manager.maintenance.remove_later([removed], 0)
            await eventually(lambda: not os.path.exists(removed))
            await eventually(lambda: second.recovery_point == 1)
            write(second)
            second.update_config(LogConfig(retention_ms=1))
            first.update_config(LogConfig(retention_ms=1))
            world.clock.now_ms += 3_600_000
            await eventually(lambda: second.log_start_offset == 2)
            path = f"{two.well.path}/{checkpoint.HIGH_WATERMARKS}"
            await eventually(lambda: checkpoint.read_offsets(two.disk, path).get(second.topic_partition) == 2)
            assert first.log_start_offset == 0
            assert two.disk.asked_on_loop == []
            assert two.hung.usage() is None
            two.disk.let_go.set()
            await eventually(lambda: first.log_start_offset == 1)
            await eventually(lambda: not two.hung.threads.silent)
            assert two.hung.usage() is not None
            maintenance.cancel()
            await asyncio.gather(maintenance, return_exceptions=True)

    run(story())


@pytest.mark.spec("LOG-32")
def test_how_full_a_disk_is_is_asked_elsewhere_and_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each scrape of the metrics does, and DescribeLogDirs."""

    async def story() -> None:
        async with two_directories(world) as two:
            await two.hung.ask_usage()
            known = two.hung.known_usage
            assert known is not None
            two.hang()
            with monkeypatch.context() as patched:
                patched.setattr(directories, "USAGE_WAIT_S", 0.05)
                for _ in range(3):
                    await two.hung.learn_usage()
            await eventually(lambda: two.disk.waiting == 1)
            assert two.disk.asked_on_loop == []
            assert two.hung.known_usage is known
            await two.well.ask_usage()
            assert two.well.known_usage is not None
            await eventually(lambda: two.hung.threads.silent)
            two.disk.let_go.set()
            await eventually(lambda: not two.hung.threads.silent)
            await two.hung.learn_usage()
            two.hung.fail(OSError("gone"))
            assert two.hung.known_usage is None

    run(story())


@pytest.mark.spec("DIR-41", "LOG-32")
@pytest.mark.parametrize("why", ["preferred", "assigned"])
def test_a_new_replica_begins_where_the_disk_answers(world: World, why: str) -> None:
    """It is made by the event loop, which would hang with the disk."""

    async def story() -> None:
        async with two_directories(world) as two:
            two.hang()
            await two.hung.learn_usage()
            await eventually(lambda: two.hung.threads.silent)
            if why == "preferred":
                two.manager.set_preferred_directory(partition(), two.hung.path)
            log = create(two.manager, assigned_directory=two.hung.id if why == "assigned" else None)
            assert log.directory is two.well
            assert two.disk.asked_on_loop == []

    run(story())


@pytest.mark.spec("LOG-32")
def test_what_flush_ms_asks_for_is_done_elsewhere(world: World) -> None:
    async def story() -> None:
        async with two_directories(world) as two:
            logs = [two.log_in(directory, n, flush_ms=0) for n, directory in enumerate((two.hung, two.well))]
            two.hang()
            for _ in range(2):
                write(logs[1])
                async with asyncio.timeout(45):
                    await two.manager.maintenance.flush_old()
                    await two.manager.maintenance.done([two.well])  # a sync may take longer than it may be silent
                assert logs[1].recovery_point == logs[1].log_end_offset
            assert logs[0].recovery_point == 0
            assert two.disk.waiting == 1
            two.disk.let_go.set()
            await eventually(lambda: logs[0].recovery_point == 1)

    run(story())


@pytest.mark.spec("DIR-41", "LOG-40")
def test_a_stop_leaves_the_other_directories_clean(world: World) -> None:
    """Killing a broker whose shutdown hangs must not cost hours of recovery on the other disks."""

    async def story() -> None:
        async with two_directories(world) as two:
            logs = [two.log_in(directory, n) for n, directory in enumerate((two.hung, two.well))]
            two.hang()
            stopping = asyncio.create_task(two.manager.shutdown())
            await eventually(lambda: os.path.exists(f"{two.well.path}/{CLEAN_SHUTDOWN}"))
            assert logs[1].recovery_point == 1
            assert not stopping.done()
            two.disk.let_go.set()
            await stopping
            for directory in (two.hung, two.well):
                assert two.disk.exists(f"{directory.path}/{CLEAN_SHUTDOWN}")
                path = f"{directory.path}/{checkpoint.RECOVERY_POINTS}"
                assert list(checkpoint.read_offsets(two.disk, path).values()) == [1]

    run(story())


@pytest.mark.spec("DIR-41", "LOG-40", "LOG-41")
def test_a_stop_marks_a_directory_clean_when_its_checkpoints_are_written(world: World) -> None:
    """A clean start believes them: a broker killed in between must not begin its logs where others of that name did."""

    async def story() -> None:
        async with two_directories(world) as two:
            log = two.log_in(two.hung, 0)
            log.advance_log_start_offset(1)
            path = f"{two.hung.path}/{checkpoint.LOG_START_OFFSETS}"
            two.disk.hang(path)
            stopping = asyncio.create_task(two.manager.shutdown())
            await eventually(lambda: os.path.exists(f"{two.well.path}/{CLEAN_SHUTDOWN}"))
            assert not two.disk.exists(f"{two.hung.path}/{CLEAN_SHUTDOWN}")
            two.disk.let_go.set()
            await stopping
            assert two.disk.exists(f"{two.hung.path}/{CLEAN_SHUTDOWN}")
            assert checkpoint.read_offsets(two.disk, path) == {partition(): 1}

    run(story())


@pytest.mark.spec("LOG-32", "LOG-25")
def test_whether_there_is_room_to_clean_is_asked_elsewhere(world: World) -> None:
    async def story() -> None:
        async with two_directories(world, log_cleaner_backoff_ms=1) as two:
            compacted = {"cleanup_policy": frozenset({"compact"}), "min_cleanable_dirty_ratio": 0.0}
            logs = [two.log_in(directory, n, **compacted) for n, directory in enumerate((two.hung, two.well))]
            for log in logs:
                write(log, 3)
                log.roll()
                log.flush()
            two.hang()
            compacting = asyncio.create_task(two.manager.compactor.run())
            await eventually(lambda: logs[1].cleaned_to == 4)
            assert logs[0].cleaned_to == 0
            assert two.disk.asked_on_loop == []
            two.disk.let_go.set()
            await eventually(lambda: logs[0].cleaned_to == 4)
            compacting.cancel()
            await asyncio.gather(compacting, return_exceptions=True)

    run(story())


@pytest.mark.spec("LOG-32", "DIR-02")
def test_a_new_replica_goes_to_a_disk_that_answers(world: World) -> None:
    """To the other one, though it has fewer logs: creating one is work for the event loop."""

    async def story() -> None:
        async with two_directories(world) as two:
            two.log_in(two.well, 0)
            two.hang()
            waiting = asyncio.create_task(two.hung.threads.run(two.disk.let_go.wait))
            await eventually(lambda: two.hung.threads.silent)
            assert create(two.manager, 1).directory is two.well
            assert two.disk.asked_on_loop == []
            two.disk.let_go.set()
            await waiting
            assert create(two.manager, 2).directory is two.hung

    run(story())


@pytest.mark.spec("LOG-32", "LOG-25")
def test_logs_are_cleaned_elsewhere_while_the_cleaner_waits_for_its_disk(world: World) -> None:
    async def story() -> None:
        async with two_directories(world, log_cleaner_backoff_ms=1) as two:
            compacted = {"cleanup_policy": frozenset({"compact"}), "min_cleanable_dirty_ratio": 0.0}
            logs = [two.log_in(directory, n, **compacted) for n, directory in enumerate((two.hung, two.well))]
            write(logs[0], 5)
            write(logs[1], 3)
            for log in logs:
                log.roll()
                log.flush()
            fifo = f"{logs[0].folder.path}/{0:020d}.log"
            os.rename(fifo, fifo + ".real")
            os.mkfifo(fifo)  # opening it blocks
            compacting = asyncio.create_task(two.manager.compactor.run())
            await eventually(lambda: len(two.manager.compactor.under_way) == 1)
            waiting = asyncio.create_task(two.hung.threads.run(two.disk.let_go.wait))  # as any other work there
            await eventually(lambda: two.hung.threads.silent)
            await eventually(lambda: logs[1].cleaned_to == 4)
            assert logs[0].cleaned_to == 0
            os.rename(fifo + ".real", fifo)
            two.disk.let_go.set()
            await waiting
            compacting.cancel()
            await asyncio.gather(compacting, return_exceptions=True)

    run(story())


async def left_behind(world: World) -> HungDisk:
    """A log in each of two directories of a stopped broker."""
    async with two_directories(world) as two:
        for number, directory in enumerate((two.hung, two.well)):
            two.log_in(directory, number)
        await two.manager.shutdown()
    world.disk = disk = HungDisk()
    return disk


@pytest.mark.spec("DIR-46", "DIR-04")
@pytest.mark.parametrize("where", ["", f"/{partition(1)}"], ids=["at once", "at a log"])
def test_a_start_does_without_a_directory_that_does_not_answer_and_loses_nothing_of_it(
    world: World, where: str
) -> None:
    async def story() -> None:
        disk = await left_behind(world)
        disk.hang(world.paths[1] + where)
        manager = await world.started(log_dirs=tuple(world.paths[:2]))
        well, hung = manager.directories
        assert (well.online, hung.online, hung.threads.silent) == (True, False, True)
        assert list(manager.logs) == [partition(0)]
        with pytest.raises(ApiError, match="are offline"):
            manager.get_or_create(partition(1), TOPIC_ID, LogConfig())
        await manager.shutdown()
        assert disk.exists(f"{well.path}/{CLEAN_SHUTDOWN}")
        assert disk.asked_on_loop == []
        disk.let_go.set()
        await eventually(lambda: not hung.threads.silent)
        again = world.manager(log_dirs=tuple(world.paths[:2]))
        with pytest.raises(DirectoryRefused, match="another name"):
            await again.start()  # the process that had it keeps it until it ends
        world.disk = HungDisk()
        taken_in = await world.started(log_dirs=tuple(world.paths[:2]))
        assert {log.topic_partition: log.end_offset for log in taken_in.logs.values()} == {
            partition(0): 1,
            partition(1): 1,
        }

    run(story())


@pytest.mark.spec("DIR-46")
def test_a_start_waits_for_the_metadata_logs_directory_and_for_one_that_goes_on(world: World) -> None:
    async def story() -> None:
        disk = await left_behind(world)
        disk.hang(world.paths[0])
        busy_until = []

        def list_slowly(path: str) -> list[str]:
            busy_until.append(time.monotonic() + 3 * startup_watchdog.PATIENCE_S)
            while time.monotonic() < busy_until[-1]:
                pass
            return RealDisk.list(disk, path)

        manager = world.manager(log_dirs=tuple(world.paths[:2]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, "list", list_slowly)
            starting = asyncio.create_task(manager.start())
            await asyncio.wait([starting], timeout=3 * startup_watchdog.PATIENCE_S)
            assert not starting.done()
            disk.let_go.set()
            await starting
        assert len(busy_until) >= 2
        assert all(directory.online for directory in manager.directories)
        assert set(manager.logs) == {partition(0), partition(1)}

    run(story())


class Held:
    """Threads that all hang on one disk."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.waiting = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.waiting += 1
        await self.let_go.wait()
        return work()


def batch(value: bytes) -> bytearray:
    return encode_batch([Record(None, value, 1_750_000_000_000)])


@pytest.mark.spec("LOG-32", "LOG-10")
async def test_appends_wait_in_their_order_and_take_few_threads(bench: Bench) -> None:
    """Nor is a new segment created on the event loop meanwhile."""
    logs = [bench.create(segment_bytes=100)]
    bench.folder = bench.root / "topic-99"
    quiet = bench.create(segment_bytes=100)
    bench.append(quiet)
    bench.threads = held = Held()
    for number in range(1, 3 * directory_threads.AT_ONCE):
        bench.folder = bench.root / f"topic-{number}"
        logs.append(bench.create(segment_bytes=100))
    now_ms = bench.clock.now_ms
    first = [asyncio.ensure_future(slow_append.append_as_leader(log, batch(b"1"), 0, now_ms=now_ms)) for log in logs]
    await eventually(lambda: bench.directory.threads.silent)
    assert held.waiting == directory_threads.AT_ONCE
    assert all(log.append_is_slow() for log in logs)
    second = [asyncio.ensure_future(slow_append.append_as_leader(log, batch(b"2"), 0, now_ms=now_ms)) for log in logs]
    third = asyncio.ensure_future(slow_append.append_as_leader(quiet, batch(b"3"), 0, now_ms=now_ms))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(quiet.segments) == 1
    assert held.waiting == directory_threads.AT_ONCE
    held.let_go.set()
    assert [info.first_offset for info in await asyncio.gather(*first)] == [0] * len(logs)
    assert [info.first_offset for info in await asyncio.gather(*second)] == [1] * len(logs)
    assert (await third).first_offset == 1
    assert not bench.directory.threads.silent


@pytest.mark.spec("LOG-32")
async def test_a_disk_that_answers_is_not_silent_because_the_loop_stood_still(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(bench.directory.threads, "_told", lambda silent, _: told.append(silent))
    bench.threads = threads = RealThreads(1)
    for _ in range(3):
        work = asyncio.ensure_future(bench.directory.threads.run(int))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(3 * directory_threads.SILENT_AFTER_S)  # noqa: ASYNC251
        assert await work == 0
        await asyncio.sleep(0)
    threads.close()
    assert told == []


@pytest.mark.spec("LOG-32")
async def test_who_is_cancelled_does_not_wait_but_its_place_stays_taken(bench: Bench) -> None:
    bench.threads = held = Held()
    work = [asyncio.ensure_future(bench.directory.threads.run(int)) for _ in range(directory_threads.AT_ONCE)]
    await eventually(lambda: held.waiting == len(work))
    for each in work:
        each.cancel()
    await asyncio.wait(work)
    another = asyncio.ensure_future(bench.directory.threads.run(int))
    await eventually(lambda: bench.directory.threads.silent)
    assert held.waiting == len(work)
    held.let_go.set()
    assert await another == 0
