"""What the compactor remembers of a log: up to which offset it is clean, and never more than is true."""

# ruff: noqa: ASYNC110 - a test polls for real files
from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from tests.broker.seams import SeededRandom
from tests.broker.storage.conftest import NOW_MS, Bench, Clock, ReadAll
from tests.sim.cleaner import CleanerInThread
from tests.sim.disk import SimDisk, Store

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import checkpoint, cleaner_process
from ballast_broker.storage.cleaner import CleanJob, CleanResult
from ballast_broker.storage.cleaner_process import CleanerDied, CleanerFailed, CleanerProcess
from ballast_broker.storage.compaction import PAUSE_WITHOUT_ROOM_S
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk, RealThreads
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

PARTITION = TopicPartition("t", 0)
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
DIRECTORY = "/d"
NewWorld = Callable[..., "World"]


class BesideOthers(CleanerInThread):
    """A cleaner before whose first read something else happens."""

    def __init__(self, world: World) -> None:
        super().__init__(world.disk, world.threads)
        self._world = world

    async def run(self, job: CleanJob) -> CleanResult:
        meanwhile, self._world.meanwhile = self._world.meanwhile, lambda: None
        meanwhile()
        result = await super().run(job)
        afterwards, self._world.afterwards = self._world.afterwards, lambda: None
        afterwards()
        return result


class Passing(Clock):
    """A clock that advances by a millisecond with each reading."""

    def monotonic(self) -> float:
        self.now_ms += 1
        return super().monotonic()


class World:
    """One directory on a disk that can lose its power."""

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        self.clock = clock
        self.meanwhile = lambda: None  # before the next cleaning reads
        self.afterwards = lambda: None  # after it has read, before its result is taken
        self.store = Store(random.Random(seed), clock.wall_ms)
        self.disk = SimDisk(self.store)
        self.threads = RealThreads(1)

    async def start(self, reserve_bytes: int | None = None) -> LogManager:
        config = StorageConfig(
            node_id=1, log_dirs=(DIRECTORY,), cluster_id="AAAAAAAAAAAAAAAAAAAAAA", log_dir_reserve_bytes=reserve_bytes
        )
        manager = LogManager(
            self.disk, self.clock, self.threads, config, SeededRandom(), config_of=lambda _: COMPACT,
            cleaner=BesideOthers(self),
        )  # fmt: skip
        await manager.start()
        return manager

    async def start_again(self, *, power_lost: bool = False) -> LogManager:
        self.disk.kill()
        if power_lost:
            self.store.lose_power()
        self.disk = SimDisk(self.store)
        return await self.start()

    def leave_room(self, size: int) -> None:
        self.store.capacity[DIRECTORY] = self.store.used(DIRECTORY) + size

    def cleaned_to(self) -> int:
        return checkpoint.read_offsets(self.disk, f"{DIRECTORY}/{checkpoint.CLEANER_OFFSETS}").get(PARTITION, 0)

    def flushed_to(self) -> int:
        return checkpoint.read_offsets(self.disk, f"{DIRECTORY}/{checkpoint.RECOVERY_POINTS}").get(PARTITION, 0)


@pytest.fixture
def new_world(bench: Bench) -> Iterator[NewWorld]:
    worlds = []

    def make(seed: int = 0) -> World:
        worlds.append(World(bench.clock, seed))
        return worlds[-1]

    yield make
    for world in worlds:
        world.threads.close()


def create(manager: LogManager, number: int = 1) -> Log:
    return manager.get_or_create(PARTITION, UUID(int=number), COMPACT, is_new=True)


def put(log: Log, *keys: int) -> None:
    for key in keys:
        batch = encode_batch([Record(b"%d" % key, b"v%d" % log.log_end_offset, 1_750_000_000_000)])
        log.append_as_leader(batch, 0, now_ms=1_750_000_000_000)
    log.update_high_watermark(log.log_end_offset)


def create_dirty(manager: LogManager) -> Log:
    """Create a log with each key twice, in a segment that may be cleaned."""
    log = create(manager)
    put(log, 1, 2, 1, 2)
    log.roll()
    return log


@pytest.mark.spec("LOG-25", "TOP-24")
@pytest.mark.parametrize("killed", [False, True])
def test_of_a_topic_that_is_created_again_nothing_is_clean(
    new_world: NewWorld, read_all: ReadAll, killed: bool
) -> None:
    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create_dirty(manager)
        assert await manager.compactor.clean_dirtiest()
        assert world.cleaned_to() == 4
        manager.compactor.uncleanable[PARTITION] = "it was"
        manager.delete(PARTITION)
        if killed:
            manager = await world.start_again()
        log = create(manager, 2)
        put(log, 1, 2, 1, 2, 3, 4)
        log.roll()
        assert await manager.compactor.clean_dirtiest()
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2, 3, 4]

    asyncio.run(story())


@pytest.mark.spec("LOG-25", "LOG-40")
def test_what_is_written_after_a_cut_is_neither_clean_nor_flushed(new_world: NewWorld) -> None:
    """Also for a start after a crash: both checkpoints are rewritten soon after the truncation."""

    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create_dirty(manager)
        log.flush()
        task = asyncio.create_task(manager.maintenance.run())
        async with asyncio.timeout(45):
            while world.flushed_to() < 4:
                await asyncio.sleep(0.005)
            assert await manager.compactor.clean_dirtiest()
            assert world.cleaned_to() == 4
            log.truncate_to(2)
            assert (log.cleaned_to, log.recovery_point) == (2, 2)
            while world.cleaned_to() > 2 or world.flushed_to() > 2:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.spec("LOG-25", "LOG-40")
@pytest.mark.parametrize("rolled", ["before", "afterwards"])
@pytest.mark.parametrize("passes_ms", [1_000, 0, -3_600_000])
def test_what_was_written_after_a_cut_is_not_clean_for_a_broker_that_was_killed_before_it_could_say_so(
    new_world: NewWorld, read_all: ReadAll, rolled: str, passes_ms: int
) -> None:
    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create_dirty(manager)
        assert await manager.compactor.clean_dirtiest()
        world.clock.now_ms += passes_ms
        log.truncate_to(2)
        put(log, 1, 1, 2, 2)
        if rolled == "before":
            log.roll()
        manager = await world.start_again()
        log = manager.logs[PARTITION]
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        assert await manager.compactor.clean_dirtiest()
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2]

    asyncio.run(story())


@pytest.mark.spec("LOG-25", "LOG-40")
@pytest.mark.parametrize("passes_ms", [10, 0, -3_600_000])
def test_what_was_clean_before_a_kill_is_not_cleaned_again(new_world: NewWorld, passes_ms: int) -> None:
    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create_dirty(manager)
        world.afterwards = lambda: setattr(world.clock, "now_ms", world.clock.now_ms + passes_ms)
        assert await manager.compactor.clean_dirtiest()
        put(log, 3)
        manager = await world.start_again()
        assert manager.logs[PARTITION].cleaned_to == 4

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("seed", range(20))
def test_what_counts_as_clean_after_a_loss_of_power_is_clean(new_world: NewWorld, read_all: ReadAll, seed: int) -> None:
    async def story() -> None:
        world = new_world(seed)
        manager = await world.start()
        log = create_dirty(manager)
        log.flush()
        assert await manager.compactor.clean_dirtiest()
        manager = await world.start_again(power_lost=True)
        if world.cleaned_to():
            assert [int(record.key or b"") for record in read_all(manager.logs[PARTITION])] == [1, 2]

    asyncio.run(story())


@pytest.mark.spec("LOG-25", "LOG-32")
def test_a_cleaner_that_was_killed_while_it_had_nothing_to_do_says_nothing_of_the_next_log(
    tmp_path: Path, bench: Bench
) -> None:
    async def story() -> None:
        config = StorageConfig(node_id=1, log_dirs=(str(tmp_path / "d"),), cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
        threads, runner = RealThreads(1), CleanerProcess()
        manager = LogManager(RealDisk(), bench.clock, threads, config, SeededRandom(), cleaner=runner)
        await manager.start()
        log = create(manager)
        try:
            for end in (4, 8):
                put(log, 1, 2, 1, 2)
                log.roll()
                while await manager.compactor.clean_dirtiest():
                    assert not manager.compactor.uncleanable
                if runner.pid is None:  # it was found dead: another one starts after a while
                    await manager.compactor.clean_dirtiest()
                assert log.cleaned_to == end
                assert runner.pid is not None
                os.kill(runner.pid, signal.SIGKILL)
        finally:
            await runner.close()
            await manager.shutdown()
            threads.close()

    asyncio.run(story())


@pytest.mark.spec("LOG-26")
def test_who_waits_for_something_to_clean_may_be_told_to_wait_less(new_world: NewWorld) -> None:
    async def story() -> None:
        manager = await new_world().start()
        compactor = manager.compactor
        compactor.configure({"log.cleaner.backoff.ms": 3_600_000})
        running = asyncio.create_task(compactor.run())
        for _ in range(100):
            await asyncio.sleep(0)  # nothing is to be cleaned yet
        create_dirty(manager)
        compactor.configure({"log.cleaner.backoff.ms": 1})
        async with asyncio.timeout(45):
            while not compactor.passes:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await manager.shutdown()

    asyncio.run(story())


class Stuck:
    """A process that no signal reaches, as it hangs on its disk."""

    returncode = None
    pid = 0

    def kill(self) -> None:
        pass

    async def wait(self) -> int:
        return await asyncio.get_running_loop().create_future()


async def never_answered(_process: object, _line: str) -> dict[str, Any]:
    return await asyncio.get_running_loop().create_future()


@pytest.mark.spec("LOG-32")
async def test_a_stop_does_not_wait_for_a_cleaner_that_waits_for_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_process, "_ENDS_WITHIN_S", 0.01)
    monkeypatch.setattr(cleaner_process, "_exchange", never_answered)
    runner = CleanerProcess()
    runner._idle = cast(Any, Stuck())
    cleaning = asyncio.create_task(runner.run(CleanJob("/d", [], 0, 0, 1, NOW_MS, 0, 1, 1)))
    await asyncio.sleep(0)
    cleaning.cancel()
    await asyncio.wait_for(asyncio.gather(cleaning, return_exceptions=True), 45)
    await runner.close()


@pytest.mark.spec("LOG-25", "LOG-32")
def test_a_log_that_the_cleaner_dies_of_again_is_left_alone(new_world: NewWorld) -> None:
    async def story() -> None:
        manager = await (world := new_world()).start()
        put(log := create(manager), 1, 2, 1, 2)
        log.roll()

        def die() -> None:
            raise CleanerDied("killed")

        for died in (False, True):
            world.meanwhile = die
            assert not await manager.compactor.clean_dirtiest() or died
            assert (PARTITION in manager.compactor.uncleanable) is died
        assert await manager.compactor.dirtiest(NOW_MS) is None

    asyncio.run(story())


def failing_with(code: int) -> Callable[[], None]:
    def fail() -> None:
        raise CleanerFailed(os.strerror(code), code)

    return fail


@pytest.mark.spec("LOG-25", "DIR-41")
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOENT])
def test_a_disk_that_fails_the_cleaner_takes_its_directory_offline(new_world: NewWorld, code: int) -> None:
    async def story() -> None:
        manager = await (world := new_world()).start()
        log = create_dirty(manager)
        world.meanwhile = failing_with(code)
        assert await manager.compactor.clean_dirtiest()
        assert not log.directory.online
        assert not manager.compactor.uncleanable

    asyncio.run(story())


@pytest.mark.spec("LOG-25", "DIR-41")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_machine_lacks_for_a_moment_is_held_against_no_log_and_no_disk(
    new_world: NewWorld, read_all: ReadAll, code: int
) -> None:
    async def story() -> None:
        manager = await (world := new_world()).start()
        log = create_dirty(manager)
        world.meanwhile = failing_with(code)
        assert not await manager.compactor.clean_dirtiest()
        assert log.directory.online
        assert await manager.compactor.clean_dirtiest()
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2]

    asyncio.run(story())


RESERVE_BYTES = 10_000


def cleaned_files(log: Log) -> list[str]:
    return [name for name in log.context.disk.list(log.folder.path) if ".cleaned" in name]


@pytest.mark.spec("LOG-26", "DIR-45")
def test_cleaning_does_not_begin_where_it_would_go_into_the_reserve(
    new_world: NewWorld, read_all: ReadAll, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        manager = await (world := new_world()).start(RESERVE_BYTES)
        log = create_dirty(manager)
        world.leave_room(RESERVE_BYTES + log.segments[0].size - 1)
        for _ in range(2):
            assert not await manager.compactor.clean_dirtiest()
        assert log.directory.online
        assert (manager.compactor.passes, manager.compactor.left_alone) == (0, 1)
        assert len([line for line in caplog.messages if "cleaning t-0 has to wait for room in /d" in line]) == 1
        world.leave_room(RESERVE_BYTES + log.segments[0].size)
        assert await manager.compactor.clean_dirtiest()
        assert manager.compactor.left_alone == 0
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2]

    asyncio.run(story())


@pytest.mark.spec("LOG-26", "DIR-42", "DIR-45")
@pytest.mark.parametrize("reserve", [RESERVE_BYTES, 0])
def test_a_disk_that_cleaning_finds_full_stays_online_and_what_was_cleaned_counts(
    new_world: NewWorld, read_all: ReadAll, reserve: int
) -> None:
    """The first segment's result is empty and fits. Of the second one's nothing fits, or all but the time index."""

    async def story() -> None:
        manager = await (world := new_world()).start(reserve)
        log = create(manager)
        for keys in ((1, 1, 1, 2), (3, 2, 4, 5, 6, 7), (1,)):
            put(log, *keys)
            log.roll()
        log.update_config(replace(COMPACT, segment_bytes=log.segments[1].size))
        world.leave_room(reserve + log.segments[0].size if reserve else log.segments[1].size)
        assert await manager.compactor.clean_dirtiest()
        assert log.directory.online
        assert cleaned_files(log) == []
        assert (log.cleaned_to, manager.compactor.left_alone) == (0, 1)
        assert [int(record.key or b"") for record in read_all(log)] == [3, 2, 4, 5, 6, 7, 1]
        assert not await manager.compactor.clean_dirtiest(), "not again and again"
        world.store.capacity.clear()
        world.clock.now_ms += int(PAUSE_WITHOUT_ROOM_S * 1000)
        assert await manager.compactor.clean_dirtiest()
        assert (log.cleaned_to, manager.compactor.left_alone) == (11, 0)

    asyncio.run(story())


@pytest.mark.spec("LOG-26")
@pytest.mark.parametrize("how", ["deleted", "offline", "kept as it is"])
def test_a_log_that_is_gone_or_not_compacted_any_more_waits_for_no_room(new_world: NewWorld, how: str) -> None:
    async def story() -> None:
        manager = await (world := new_world()).start(RESERVE_BYTES)
        log = create_dirty(manager)
        world.leave_room(0)
        assert not await manager.compactor.clean_dirtiest()
        if how == "deleted":
            manager.delete(PARTITION)
        elif how == "offline":
            log.directory.fail(OSError("pulled out"))
        else:
            log.update_config(LogConfig())
        assert not await manager.compactor.clean_dirtiest()
        assert manager.compactor.left_alone == 0

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("how", ["deleted", "cut", "begun again"])
def test_what_others_do_to_a_log_while_it_is_cleaned_does_not_end_its_cleaning(new_world: NewWorld, how: str) -> None:
    """Retention, DeleteRecords or a new leader removes files that the cleaner was about to read."""

    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create(manager)
        for _ in range(3):
            put(log, 1, 2, 1, 2)
            log.roll()

        def meanwhile() -> None:
            if how == "deleted":
                log.advance_log_start_offset(4)
                assert log.delete_old_segments(0) == 1
            elif how == "cut":
                log.truncate_to(5)
            else:
                log.truncate_fully_and_start_at(100)

        world.meanwhile = meanwhile
        assert await manager.compactor.clean_dirtiest()
        assert not manager.compactor.uncleanable
        assert not [name for name in world.disk.list(log.folder.path) if name.endswith(".cleaned")]
        put(log, 3, 4, 3, 4)
        log.roll()
        assert await manager.compactor.clean_dirtiest()
        assert log.cleaned_to == log.log_end_offset

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_others_have_their_turn_while_logs_are_looked_through(new_world: NewWorld) -> None:
    """What happens to the dirtiest log meanwhile is noticed before it is cleaned."""

    world = new_world()
    world.clock = Passing()

    async def looked(manager: LogManager, meanwhile: Callable[[], object]) -> bool:
        began_ms = world.clock.now_ms
        cleaning = asyncio.create_task(manager.compactor.clean_dirtiest())
        while world.clock.now_ms < began_ms + 20:  # it reads the clock for each of the 50 logs
            await asyncio.sleep(0)
        assert not cleaning.done()
        meanwhile()
        return await cleaning

    async def story() -> None:
        manager = await world.start()
        log = create(manager)
        for number in range(1, 50):
            manager.get_or_create(TopicPartition("t", number), UUID(int=number + 1), COMPACT, is_new=True)
        assert not await looked(manager, lambda: None)
        put(log, 1, 2, 1, 2)
        log.roll()
        assert await looked(manager, lambda: manager.delete(PARTITION))  # there may be others: it is to look again
        assert not await looked(manager, lambda: None)
        assert manager.compactor.passes == 0

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_where_a_part_could_not_be_put_in_place_no_later_one_is(new_world: NewWorld, read_all: ReadAll) -> None:
    """A tombstone whose time was over when the leader gave it goes at once, and what it deletes has to go before."""

    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create(manager)
        for key in (1, 2):
            put(log, key)
            log.roll()
        log.update_config(replace(COMPACT, segment_bytes=log.size_bytes))
        gone_ms = log.context.clock.wall_ms() - 1
        tombstone = [Record(b"2", None, gone_ms - 1000)]
        log.append_as_follower(memoryview(encode_batch(tombstone, base_offset=2, delete_horizon_ms=gone_ms)))
        log.update_high_watermark(3)
        log.roll()

        def retention() -> None:
            log.advance_log_start_offset(1)
            assert log.delete_old_segments(0) == 1

        world.afterwards = retention
        for key in (3, 4):
            assert await manager.compactor.clean_dirtiest()
            put(log, key)
            log.roll()
        assert b"2" not in [record.key for record in read_all(log)]

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_what_could_not_be_put_in_place_is_not_clean(new_world: NewWorld, read_all: ReadAll) -> None:
    """Otherwise a tombstone would be removed one day while a value that it deletes is still there."""

    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create(manager)
        put(log, 1)
        log.roll()
        put(log, 2)
        log.roll()
        log.update_config(replace(COMPACT, segment_bytes=log.size_bytes, delete_retention_ms=1000))
        log.append_as_leader(encode_batch([Record(b"2", None, log.context.clock.wall_ms())]), 0, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        log.roll()

        def retention() -> None:
            log.advance_log_start_offset(1)
            assert log.delete_old_segments(0) == 1

        world.afterwards = retention
        assert await manager.compactor.clean_dirtiest()
        for key in (3, 4):
            world.clock.now_ms += 2000
            put(log, key)
            log.roll()
            assert await manager.compactor.clean_dirtiest()
        assert [(record.key, record.value is None) for record in read_all(log)] == [(b"3", False), (b"4", False)]

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_a_cleaner_that_cannot_be_started_is_started_later(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_all: ReadAll
) -> None:
    """A momentary lack of memory or file descriptors stops neither the broker nor the cleaning of this log."""

    async def story() -> None:
        config = StorageConfig(node_id=1, log_dirs=(str(tmp_path / "d"),), cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
        threads, runner = RealThreads(1), CleanerProcess()
        manager = LogManager(
            bench.disk, bench.clock, threads, config, SeededRandom(), config_of=lambda _: COMPACT, cleaner=runner
        )
        await manager.start()
        log = create_dirty(manager)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(sys, "executable", str(tmp_path / "missing"))
                assert not await manager.compactor.clean_dirtiest()
            assert await manager.compactor.clean_dirtiest()
            assert [int(record.key or b"") for record in read_all(log)] == [1, 2]
        finally:
            await runner.close()
            await manager.shutdown()
            threads.close()

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_a_segment_is_cleaned_once_all_of_it_is_committed_and_not_again_and_again_until_then(
    new_world: NewWorld, read_all: ReadAll
) -> None:
    """While too few replicas are in sync, the high watermark does not advance, but new segments may follow it."""

    async def story() -> None:
        world = new_world()
        manager = await world.start()
        log = create_dirty(manager)
        put(log, 3)
        log.update_high_watermark(3)
        async with asyncio.timeout(45):
            while await manager.compactor.clean_dirtiest():
                pass
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2, 1, 2, 3]
        log.update_high_watermark(5)
        assert await manager.compactor.clean_dirtiest()
        assert not await manager.compactor.clean_dirtiest()
        assert [int(record.key or b"") for record in read_all(log)] == [1, 2, 3]

    asyncio.run(story())
