"""All logs of a broker: start, choosing a directory, failure, replacement, stop."""

# ruff: noqa: ASYNC110, ASYNC240 - a test looks at real files and polls for them
from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import threading
from pathlib import Path
from uuid import UUID

import pytest
from tests.sim.disk import SimDisk, Store

from ballast_broker.log_config import LogConfig
from ballast_broker.storage import adoption, checkpoint, loading, starting
from ballast_broker.storage.common_end import CommonEnd
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk, RealThreads
from ballast_broker.storage.errors import DirectoryRefused, LogDirectoryFailure
from ballast_broker.storage.index import OFFSET_ENTRY, TIME_ENTRY
from ballast_broker.storage.maintenance import PROBE_S
from ballast_broker.storage.manager import LogManager
from ballast_broker.storage.recovery import scan_segment
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")


class BadDisk(RealDisk):
    """Fails under some paths."""

    def __init__(self):
        self.bad = ()

    def _check(self, path):
        if path.startswith(self.bad or ("//",)):
            raise OSError(5, "Input/output error", path)

    def open(self, path, **keywords):
        self._check(path)
        return super().open(path, **keywords)

    def empty_file(self, path):
        self._check(path)
        return super().empty_file(path)

    def make_directory(self, path):
        self._check(path)
        return super().make_directory(path)

    def write_atomically(self, path, data):
        self._check(path)
        super().write_atomically(path, data)

    def rename(self, old, new):
        self._check(old)
        super().rename(old, new)


class World:
    def __init__(self, root: Path, clock, random, directories=3) -> None:
        self.paths = [str(root / f"d{number}") for number in range(directories)]
        self.clock, self.random = clock, random
        self.disk = BadDisk()
        self.threads = RealThreads(2)
        self.managers: list[LogManager] = []

    def manager(self, **config) -> LogManager:
        keywords = {"node_id": 1, "log_dirs": tuple(self.paths), "cluster_id": CLUSTER} | config
        manager = LogManager(self.disk, self.clock, self.threads, StorageConfig(**keywords), self.random)
        self.managers.append(manager)
        return manager

    def kill(self, manager: LogManager) -> None:
        """As if the process had died: nothing is written, locks and descriptors go."""
        for log in [*manager.logs.values(), *manager.future_logs.values()]:
            for segment in log.segments:
                segment.close()
        for directory in manager.all_directories:
            directory.unlock()


@pytest.fixture
def world(tmp_path, bench):
    from random import Random

    class Seeded(Random):
        def bytes_of(self, count):
            return self.randbytes(count)

    made = World(tmp_path / "broker", bench.clock, Seeded(5))
    yield made
    for manager in made.managers:
        made.kill(manager)
    made.threads.close()


def partition(number=0, topic="t"):
    return TopicPartition(topic, number)


def create(manager, number=0, **keywords):
    return manager.get_or_create(partition(number), TOPIC_ID, LogConfig(), is_new=True, **keywords)


def write(log, count=1):
    for _ in range(count):
        log.append_as_leader(encode_batch([Record(b"k", b"v" * 50, 1_750_000_000_000)]), 0, now_ms=1_750_000_000_000)
    log.update_high_watermark(log.log_end_offset)


def run(work):
    return asyncio.run(work)


@pytest.mark.spec("CLU-03")
@pytest.mark.parametrize("clean", [True, False])
def test_the_metadata_log_may_have_a_directory_of_its_own_which_takes_no_replicas(world, tmp_path, clean):
    async def story():
        apart = str(tmp_path / "metadata")
        manager = world.manager(metadata_log_dir=apart)
        await manager.start()
        log = await manager.open_raft_log(LogConfig())
        assert log.folder.path == f"{apart}/__cluster_metadata-0"
        write(log, 3)
        for number in range(9):
            create(manager, number)
        assert {one.directory.path for one in manager.logs.values()} == set(world.paths)
        assert manager.directory(apart) is None
        if clean:
            await manager.shutdown()
        else:
            world.kill(manager)
        again = world.manager(metadata_log_dir=apart)
        await again.start()
        assert (await again.open_raft_log(LogConfig())).log_end_offset == 3
        assert len(again.logs) == 9

    run(story())


@pytest.mark.spec("LOG-40")
@pytest.mark.parametrize("clean", [True, False])
def test_stop_and_start(world, clean):
    async def story():
        manager = world.manager()
        await manager.start()
        for number in range(9):
            write(create(manager, number), number)
        assert [sum(log.directory is d for log in manager.logs.values()) for d in manager.directories] == [3, 3, 3]
        if clean:
            await manager.shutdown(broker_epoch=12)
            mark = json.loads(Path(world.paths[0], ".kafka_cleanshutdown").read_text())
            assert mark == {"version": 0, "brokerEpoch": 12}
        else:
            await manager.maintenance.checkpoint_high_watermarks()
            world.kill(manager)
        again = world.manager()
        await again.start()
        assert [d.was_clean for d in again.directories] == [clean] * 3
        assert not os.path.exists(os.path.join(world.paths[0], ".kafka_cleanshutdown"))
        for number in range(9):
            log = again.logs[partition(number)]
            assert (log.log_end_offset, log.high_watermark, log.topic_id) == (number, number, TOPIC_ID)
            assert log.directory.path == manager.logs[partition(number)].directory.path
            write(log)
        if clean:
            assert again.directories[0].previous_broker_epoch == 12

    run(story())


@pytest.mark.spec("LOG-42")
def test_a_directory_that_another_process_has_is_refused(world):
    import subprocess
    import sys

    os.makedirs(world.paths[0])
    code = (
        "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.lockf(f, fcntl.LOCK_EX)\nprint('held', flush=True)\n"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, f"{world.paths[0]}/.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryRefused, match="another process"):
            run(world.manager().start())
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()
    run(world.manager().start())


@pytest.mark.spec("DIR-05")
def test_identity_survives_and_strangers_are_refused(world):
    async def start(**config):
        manager = world.manager(**config)
        await manager.start()
        ids = [directory.id for directory in manager.directories]
        log = manager.get(partition())
        world.kill(manager)
        return ids, log

    async def story():
        manager = world.manager()
        await manager.start()
        write(create(manager), 3)
        await manager.shutdown()
        ids, _ = await start()
        assert len(set(ids)) == 3
        with pytest.raises(DirectoryRefused, match="cluster id"):
            await start(cluster_id="BBBBBBBBBBBBBBBBBBBBBB")
        with pytest.raises(DirectoryRefused, match="node id"):
            await start(node_id=2)
        home = manager.logs[partition()].directory.path
        moved = home + "-elsewhere"
        shutil.move(home, moved)
        world.paths[world.paths.index(home)] = moved
        ids_after, log = await start(cluster_id=None)
        assert ids_after == ids
        assert log.log_end_offset == 3
        assert log.directory.path == moved

    run(story())


@pytest.mark.spec("DIR-05", "LOG-40")
@pytest.mark.parametrize("seed", range(10))
def test_directories_that_were_made_survive_a_loss_of_power(world, seed):
    """A voter whose metadata log is gone forgets its votes, and what it has acknowledged."""

    async def story():
        store = Store(random.Random(seed), world.clock.wall_ms)
        world.disk = SimDisk(store)
        world.disk.make_directory(world.paths[0])  # by a process that died then
        world.disk = SimDisk(store)
        manager = world.manager()
        await manager.start()
        await manager.shutdown()
        store.lose_power()
        for directory in manager.directories:
            assert world.disk.exists(f"{directory.path}/meta.properties")

    run(story())


def test_a_cluster_id_is_generated_only_when_asked_for(world):
    async def story():
        with pytest.raises(DirectoryRefused, match=r"cluster\.id"):
            await world.manager(cluster_id=None).start()
        world.kill(world.managers[-1])
        manager = world.manager(cluster_id=None, generate_cluster_id=True)
        await manager.start()
        assert len(manager.cluster_id) == 22
        world.kill(manager)
        again = world.manager(cluster_id=None, generate_cluster_id=True)
        await again.start()
        assert again.cluster_id == manager.cluster_id

    run(story())


@pytest.mark.spec("DIR-02")
def test_preferred_before_assigned_before_fewest(world):
    async def story():
        manager = world.manager()
        await manager.start()
        first, second, third = manager.directories
        assert create(manager, 0, assigned_directory=third.id).directory is third
        assert create(manager, 1, assigned_directory=third.id).directory is third
        manager.set_preferred_directory(partition(2), second.path)
        assert create(manager, 2, assigned_directory=third.id).directory is second
        assert manager.preferred_directory(partition(2)) is None
        manager.set_preferred_directory(partition(2), second.path)
        assert manager.preferred_directory(partition(2)) is None
        assert create(manager, 3).directory is first
        manager.create_future(partition(0), first)
        assert create(manager, 4).directory is second  # first: one and a future one
        assert create(manager, 4) is manager.get(partition(4))

    run(story())


@pytest.mark.spec("DIR-44")
def test_a_cordoned_directory_takes_nothing_new(world):
    async def story():
        manager = world.manager(cordoned_log_dirs=frozenset({world.paths[0]}))
        await manager.start()
        assert {create(manager, n).directory.path for n in range(6)} == set(world.paths[1:])

    run(story())


@pytest.mark.spec("DIR-03")
@pytest.mark.spec("DIR-04")
def test_a_failing_disk_is_passed_over_and_nothing_old_is_created_again(world):
    async def story():
        manager = world.manager()
        failures = []
        manager.on_directory_failure.append(failures.append)
        await manager.start()
        world.disk.bad = (world.paths[0] + "/t-",)
        assert create(manager, 0).directory.path == world.paths[1]
        assert [directory.path for directory in failures] == [world.paths[0]]
        with pytest.raises(ApiError) as refused:
            manager.get_or_create(partition(1), TOPIC_ID, LogConfig(), is_new=False)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.bad = tuple(path + "/t-" for path in world.paths)
        with pytest.raises(ApiError) as none_left:
            create(manager, 2)
        assert all(path in none_left.value.message for path in world.paths[1:])

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_failed_write_takes_one_directory_offline(world):
    async def story():
        manager = world.manager()
        await manager.start()
        logs = [create(manager, number) for number in range(3)]
        for log in logs:
            write(log, 2)
        bad = logs[0].directory
        logs[0].active.close()
        world.disk.bad = (bad.path,)
        with pytest.raises(LogDirectoryFailure) as failure:
            write(logs[0])
        assert failure.value.directory is bad
        assert not bad.online
        assert logs[0].log_end_offset == 2
        write(logs[1])
        with pytest.raises(LogDirectoryFailure):
            logs[0].read(0, 1, upper_offset=2)
        await manager.shutdown()
        assert not os.path.exists(f"{bad.path}/.kafka_cleanshutdown")
        world.disk.bad = ()
        again = world.manager()
        await again.start()
        assert [again.logs[partition(n)].log_end_offset for n in range(3)] == [2, 3, 2]

    run(story())


@pytest.mark.spec("DIR-29")
@pytest.mark.spec("DIR-30")
def test_swapping_in_a_future_log(world):
    async def story():
        manager = world.manager()
        await manager.start()
        current = create(manager)
        write(current, 5)
        held = current.read(0, 1000, upper_offset=5)
        target = next(d for d in manager.directories if d is not current.directory)
        future = manager.create_future(partition(), target)
        assert future.folder.path.endswith("-future")
        future.append_as_follower(memoryview(current.read(0, 1 << 20, upper_offset=5).read()))
        finish = manager.swap_future(partition())
        finish()
        assert manager.get(partition()) is future
        assert not manager.future_logs
        assert os.listdir(target.path).count("t-0") == 1
        assert len(held.read()) == held.size
        held.release()
        old = [name for name in os.listdir(current.directory.path) if name.endswith("-delete")]
        assert len(old) == 1
        write(future)
        await manager.maintenance.remove_everything_waiting()
        assert not [name for name in os.listdir(current.directory.path) if name.endswith("-delete")]
        with pytest.raises(ApiError):
            write(current)

    run(story())


@pytest.mark.spec("DIR-31", "LOG-32")
@pytest.mark.parametrize("gap", [False, True])
def test_the_loop_reads_nothing_of_a_segment_that_was_copied(world, gap):
    """Whether it reaches the next one, and so whether that one is marked, is found out in the thread."""

    async def story():
        manager = world.manager()
        await manager.start()
        current = create(manager)
        write(current, 5)
        current.roll(7 if gap else None)
        target = next(d for d in manager.directories if d is not current.directory)
        future = manager.create_future(partition(), target)
        copy = adoption.SegmentCopy(current, future)
        copy.file.piece(1 << 20)()
        copy.finish_files()
        for segment in current.segments:
            segment.close()
        shutil.move(current.folder.path, world.paths[0] + "-elsewhere")
        copy.adopt()
        copy.close()
        assert future.log_end_offset == (7 if gap else 5)
        marks = [name for name in os.listdir(future.folder.path) if name.endswith(".unflushed")]
        assert marks == ([] if gap else [f"{5:020d}.unflushed"])

    run(story())


@pytest.mark.spec("DIR-31", "LOG-32")
@pytest.mark.parametrize("same", [0, 3, 7, 9, 12])
@pytest.mark.parametrize("index", ["whole", "lies"])
def test_up_to_where_a_copy_is_right_is_looked_up_beside_the_loop(world, same, index):
    """Up to `same` both have the same; only the copy has segments that begin at 3 and at 9."""

    async def story():
        manager = world.manager()
        await manager.start()
        current = create(manager)
        future = manager.create_future(partition(), next(d for d in manager.directories if d is not current.directory))
        for log in (current, future):
            for offset in range(12):
                if log is future and offset in (3, 9):
                    log.roll()
                value = b"v" * (20 if offset < same or log is current else 30)
                batch = encode_batch([Record(b"k", value, 1_750_000_000_000)])
                log.append_as_leader(batch, 0, now_ms=1_750_000_000_000)
            log.update_high_watermark(12)
        for segment in current.segments:
            segment.close()
        elsewhere = world.paths[0] + "-elsewhere"
        shutil.move(current.folder.path, elsewhere)
        agreed = CommonEnd(current, future)
        shutil.move(elsewhere, current.folder.path)
        if index == "lies":
            Path(current.active.path(".index")).write_bytes(b"\0\0\0\1\0\0\0\7")
            current.active.offset_index.stored(1)
            agreed = CommonEnd(current, future)
        # As far as the copy's segments tell.
        edges = [edge for edge in (0, 3, 9, 12) if edge <= same]
        assert await asyncio.to_thread(agreed.find) == edges[-1]

    run(story())


@pytest.mark.spec("DIR-31")
async def test_files_that_go_while_a_copy_is_compared_are_looked_for_again(world):
    manager = world.manager()
    await manager.start()
    current = create(manager)
    write(current, 5)
    future = manager.create_future(partition(), next(d for d in manager.directories if d is not current.directory))
    write(future, 5)
    agreed = CommonEnd(current, future)
    for segment in current.segments:
        segment.close()
    current.truncate_fully_and_start_at(7)
    await manager.maintenance.remove_everything_waiting()
    assert await asyncio.to_thread(agreed.find) is None
    assert all(directory.online for directory in manager.directories)
    assert await asyncio.to_thread(CommonEnd(current, future).find) == 0
    await manager.shutdown()


@pytest.mark.spec("DIR-31")
@pytest.mark.parametrize("when", ["copying", "between the renames", "both renamed, one forgotten"])
def test_killed_in_the_middle_of_a_move(world, when):
    async def story():
        manager = world.manager()
        await manager.start()
        current = create(manager)
        write(current, 5)
        target = next(d for d in manager.directories if d is not current.directory)
        future = manager.create_future(partition(), target)
        count = 3 if when == "copying" else 5
        future.append_as_follower(memoryview(current.read(0, 1 << 20, upper_offset=count).read()))
        world.kill(manager)
        gone = f"{current.directory.path}/t-0.{'0' * 32}-delete"
        if when == "between the renames":
            os.rename(current.folder.path, gone)
        if when == "both renamed, one forgotten":
            os.rename(future.folder.path, f"{target.path}/t-0")
        again = world.manager()
        await again.start()
        log = again.logs[partition()]
        assert log.log_end_offset == 5
        if when == "copying":
            assert log.directory.path == current.directory.path
            assert again.future_logs[partition()].log_end_offset == 3
        else:
            assert not again.future_logs
        names = [name for directory in again.directories for name in os.listdir(directory.path)]
        assert names.count("t-0") == 1
        write(log)

    run(story())


@pytest.mark.spec("DIR-31", "DIR-41")
def test_a_copy_does_not_take_the_place_of_a_log_whose_directory_is_away(world):
    """A move has just ended, another one begins, the broker is killed, and the disk between the two fails."""

    async def story():
        manager = world.manager()
        await manager.start()
        log = create(manager)
        write(log, 5)
        _, second, third = sorted(manager.directories, key=lambda directory: directory is not log.directory)
        for name in ("copied", "unfinished"):
            future = manager.create_future(partition(), second if name == "copied" else third)
            count = 5 if name == "copied" else 3
            current = manager.logs[partition()]
            future.append_as_follower(memoryview(current.read(0, 1 << 20, upper_offset=count).read()))
            if name == "copied":
                manager.swap_future(partition())
        world.kill(manager)
        world.disk.bad = (second.path,)
        again = world.manager()
        await again.start()
        assert partition() not in again.logs
        world.kill(again)
        world.disk.bad = ()
        healed = world.manager()
        await healed.start()
        assert healed.logs[partition()].log_end_offset == 5
        assert healed.future_logs[partition()].log_end_offset == 3

    run(story())


@pytest.mark.spec("LOG-34")
def test_strays_are_set_aside_and_kept(world):
    async def story():
        manager = world.manager()
        await manager.start()
        write(create(manager), 2)
        manager.rename_stray(partition())
        (path,) = manager.strays
        assert path.endswith("-stray")
        assert manager.get(partition()) is None
        await manager.shutdown()
        again = world.manager()
        await again.start()
        assert dict(again.strays) == {path: partition()}
        assert os.path.exists(path)

    run(story())


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_named_like_a_partition_is_passed_over(world, clean):
    async def story():
        manager = world.manager()
        await manager.start()
        write(create(manager), 2)
        if clean:
            await manager.shutdown()
        world.kill(manager)
        for path in world.paths:
            Path(path, "core-1234").write_bytes(b"not a log")
        again = world.manager()
        await again.start()
        assert len(again.online_directories()) == len(world.paths)
        assert list(again.logs) == [partition()]
        assert again.logs[partition()].log_end_offset == 2

    run(story())


def test_deleting_and_creating_again(world):
    async def story():
        manager = world.manager()
        await manager.start()
        write(create(manager), 2)
        manager.delete(partition())
        assert manager.get(partition()) is None
        assert create(manager).log_end_offset == 0
        world.kill(manager)
        again = world.manager()
        await again.start()
        assert again.logs[partition()].log_end_offset == 0
        assert not again.future_logs

    run(story())


@pytest.mark.spec("TOP-24", "TOP-26")
@pytest.mark.parametrize("by", ["deleted", "deleted before a crash", "set aside"])
def test_a_namesake_does_not_begin_where_the_old_log_did(world, by):
    """The checkpoint of log start offsets is written once a minute: until then it speaks of the log that went."""
    path = f"{world.paths[0]}/{checkpoint.LOG_START_OFFSETS}"

    async def without_the_old_one(manager):
        task = asyncio.create_task(manager.maintenance.run())
        async with asyncio.timeout(10):
            while checkpoint.read_offsets(world.disk, path):
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_start_offsets()
        assert checkpoint.read_offsets(world.disk, path) == {partition(): 7}
        (manager.rename_stray if by == "set aside" else manager.delete)(partition())
        if by == "deleted before a crash":
            world.kill(manager)
            manager = world.manager(log_dirs=(world.paths[0],))
            await manager.start()
        await without_the_old_one(manager)
        write(create(manager), 3)
        world.kill(manager)
        again = world.manager(log_dirs=(world.paths[0],))
        await again.start()
        log = again.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    run(story())


CLOCKS = {"goes on": 0, "was set back": -3_600, "was set forward": 3_600}


def bear_times_of_a_clock_that(world, goes, *paths):
    """What was written last bears another time than what was there before."""
    for path in paths:
        when = Path(path).stat().st_mtime + CLOCKS[goes]
        os.utime(path, (when, when))


@pytest.mark.spec("TOP-24", "LOG-41")
@pytest.mark.parametrize("goes", CLOCKS)
@pytest.mark.parametrize("clean", [False, True])
def test_checkpoints_from_before_a_log_was_made_speak_of_a_namesake(world, clean, goes):
    """A process that is killed in the second after a topic was made again must not lose what was acknowledged."""

    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
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
        again = world.manager(log_dirs=(world.paths[0],))
        await again.start()
        log = again.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (2 if clean else 0, 8)
        assert not list(Path(log.folder.path).glob("*.outdated")) or not clean

    run(story())


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("goes", CLOCKS)
@pytest.mark.parametrize("namesake", [False, True])
def test_what_was_written_since_a_log_was_made_is_believed(world, goes, namesake):
    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
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
        again = world.manager(log_dirs=(world.paths[0],))
        await again.start()
        log = again.logs[partition()]
        assert (log.log_start_offset, log.recovery_point, log.high_watermark) == (7, 9, 9)

    run(story())


@pytest.mark.spec("LOG-41", "DIR-31")
def test_a_log_that_comes_back_to_a_directory_is_not_what_its_checkpoints_say(world):
    """What they say is from before it went; it was cut elsewhere."""

    async def story():
        manager = world.manager()
        await manager.start()
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
        again = world.manager()
        await again.start()
        log = again.logs[partition()]
        assert (log.directory.path, log.log_end_offset, log.recovery_point) == (first.path, 3, 0)
        await again.maintenance.checkpoint_everything()
        assert not list(Path(log.folder.path).glob("*.outdated"))

    run(story())


@pytest.mark.spec("LOG-41", "TOP-24")
def test_a_checkpoint_that_was_being_written_as_a_log_went_speaks_of_that(world):
    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)

        class Meanwhile(BadDisk):
            def write_atomically(self, path, data):
                if path.endswith(checkpoint.LOG_START_OFFSETS) and partition() in manager.logs:
                    loop.call_soon_threadsafe(again)
                    assert done.wait(10)
                super().write_atomically(path, data)

        def again():
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
        another = world.manager(log_dirs=(world.paths[0],))
        await another.start()
        log = another.logs[partition()]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)

    run(story())


@pytest.mark.spec("LOG-41")
def test_a_log_that_was_cut_before_its_start_does_not_begin_behind_its_end(world):
    """After an election of a leader that lacked what DeleteRecords had deleted here."""

    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
        log = create(manager)
        write(log, 9)
        log.advance_log_start_offset(7)
        await manager.maintenance.checkpoint_everything()
        log.truncate_to(4)
        write(log, 2)
        world.kill(manager)
        again = world.manager(log_dirs=(world.paths[0],))
        await again.start()
        assert again.logs[partition()].log_end_offset == 6

    run(story())


class SideBySide:
    """How many are in it at once; each stays a while, or until another comes."""

    def __init__(self):
        self.begun = threading.Event()
        self._another = threading.Event()
        self._inside = 0
        self.most = 0

    def __enter__(self):
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.begun.set()
        if self._inside > 1:
            self._another.set()
        self._another.wait(0.1)

    def __exit__(self, *failure):
        self._inside -= 1


class SlowDisk(BadDisk):
    """Knows how many files are replaced at once."""

    def __init__(self):
        super().__init__()
        self.replacing = SideBySide()

    def write_atomically(self, path, data):
        with self.replacing:
            super().write_atomically(path, data)


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_checkpoint_is_written_by_one_at_a_time(world, cancelled):
    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
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


class CountingDisk(BadDisk):
    """Knows in how many directories logs are being looked at."""

    def __init__(self, waits_for_each_log):
        super().__init__()
        self.waits_for_each_log = waits_for_each_log
        self.waited = 0
        self.looking = SideBySide()

    def waits(self):
        return self.waited

    def list(self, path):
        if path.endswith("-0"):
            with self.looking:
                self.waited += self.waits_for_each_log
        return super().list(path)


@pytest.mark.spec("LOG-33")
@pytest.mark.parametrize("slow", [False, True])
def test_after_a_clean_stop_directories_are_loaded_side_by_side_only_where_the_disk_is_slow(world, monkeypatch, slow):
    monkeypatch.setattr(starting, "SLICE", 1)

    async def story():
        manager = world.manager()
        await manager.start()
        for number, topic in enumerate("abcdefghi"):
            manager.get_or_create(
                partition(topic=topic), UUID(int=number + 1), LogConfig(), is_new=True,
                assigned_directory=manager.directories[number % 3].id,
            )  # fmt: skip
        await manager.shutdown()
        world.disk = CountingDisk(starting.WAITS_OF_SLOW_DISK if slow else 0)
        manager = world.manager()
        await manager.start()
        assert len(manager.logs) == 9
        assert (world.disk.looking.most > 1) == slow

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_directory_that_nobody_writes_to_is_found_out_when_it_fails(world):
    async def story():
        manager = world.manager()
        await manager.start()
        await manager.maintenance.checkpoint_high_watermarks()
        world.disk.bad = (world.paths[1],)
        await manager.maintenance.checkpoint_high_watermarks()
        assert manager.directories[1].online, "there was nothing to write"
        world.clock.now_ms += int(PROBE_S * 1000)
        await manager.maintenance.checkpoint_high_watermarks()
        assert [directory.online for directory in manager.directories] == [True, False, True]

    run(story())


async def checkpoint_of_a_record(manager, log):
    write(log, 1)
    log.flush()
    await manager.maintenance.checkpoint_recovery_points()


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("name", [checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, checkpoint.LOG_START_OFFSETS])
def test_checkpoints_cut_in_the_middle_only_cost_work(world, name):
    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
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
            again = world.manager(log_dirs=(world.paths[0],))
            await again.start()
            assert [log.log_end_offset for log in again.logs.values()] == [4] * 5
            world.kill(again)

    run(story())


class RacingDisk(BadDisk):
    """Something happens right before the n-th look for a name."""

    def __init__(self):
        super().__init__()
        self.left, self.event = 0, lambda: None

    def _count(self):
        self.left -= 1
        if self.left == 0:
            self.event()

    def open(self, path, **keywords):
        self._count()
        return super().open(path, **keywords)

    def empty_file(self, path):
        self._count()
        return super().empty_file(path)

    def sync_directory(self, path):
        self._count()
        super().sync_directory(path)


def retain_less(manager, log):
    log.update_config(LogConfig(retention_ms=1))
    assert log.delete_old_segments(log.context.clock.wall_ms() + 10**9) == 3


def delete(manager, log):
    manager.delete(log.topic_partition)


def delete_and_remove(manager, log):
    manager.delete(log.topic_partition)
    shutil.rmtree(log.folder.path)


def rename_folder(manager, log):
    manager._folders.rename(log, "-stray")


@pytest.mark.spec("LOG-11", "LOG-24", "TOP-24")
@pytest.mark.parametrize("event", [retain_less, delete, delete_and_remove, rename_folder])
def test_a_flush_survives_that_its_files_go_or_get_other_names(world, event):
    """Flushes run in threads. Whatever the loop does to the log meanwhile, the disk is not to blame."""
    world.disk = RacingDisk()

    async def story(moment):
        manager = world.manager()
        await manager.start()
        log = create(manager, moment)
        for _ in range(3):
            write(log, 2)
            log.roll()
        world.disk.left = moment
        world.disk.event = lambda: event(manager, log)
        log.flush(6)
        world.disk.left = 0
        assert log.directory.online, log.directory.error
        if event is not delete_and_remove:
            assert log.recovery_point == 6
        world.kill(manager)
        shutil.rmtree(world.paths[0].rsplit("/", 1)[0])

    for moment in range(1, 12):
        run(story(moment))


def cut_back(log):
    log.truncate_to(2)


def begin_before(log):
    log.truncate_fully_and_start_at(1)


def begin_after(log):
    log.truncate_fully_and_start_at(100)


@pytest.mark.spec("LOG-40")
@pytest.mark.parametrize("cut", [cut_back, begin_before, begin_after])
def test_a_flush_in_the_middle_of_a_cut_vouches_for_nothing_behind_it(world, cut):
    """What is written there later would count as flushed: it would not be synced, nor scanned after a crash."""
    world.disk = RacingDisk()

    async def story(moment):
        manager = world.manager()
        await manager.start()
        log = create(manager, moment)
        for _ in range(3):
            write(log, 2)
            log.roll()
        write(log, 2)
        flushed = []

        def flush():
            if not log.flush_lock.locked():  # else the thread would wait until it is free
                flushed.append(log.flush())

        world.disk.left, world.disk.event = moment, flush
        cut(log)
        world.disk.left = 0
        end = log.log_end_offset
        write(log)
        assert log.recovery_point <= end
        log.flush()
        assert log.recovery_point == end + 1
        world.kill(manager)
        shutil.rmtree(world.paths[0].rsplit("/", 1)[0])
        return bool(flushed)

    assert any([run(story(moment)) for moment in range(1, 12)])  # noqa: C419 - all of them


@pytest.mark.spec("DIR-29", "LOG-40")
def test_what_is_flushed_after_a_swap_is_found_after_a_loss_of_power(world, monkeypatch):
    """Even if that comes before the thread that makes the swap's own renames durable."""

    async def story():
        manager = world.manager()
        await manager.start()
        write(create(manager), 2)
        future = manager.create_future(partition(), manager.directories[1])
        write(future, 2)
        future.flush()
        manager.swap_future(partition())
        write(future)
        synced = []
        sync = world.disk.sync_directory
        monkeypatch.setattr(world.disk, "sync_directory", lambda path: (synced.append(path), sync(path)))
        future.flush()
        assert future.directory.path in synced

    run(story())


@pytest.mark.spec("LOG-40")
def test_a_start_after_a_crash_scans_only_what_the_one_before_did_not(world, monkeypatch):
    """However soon crashes follow each other: not everything since the last checkpoint of each minute."""
    scanned = []

    def scan(segment, *arguments, **keywords):
        scanned.append(segment.base_offset)
        return scan_segment(segment, *arguments, **keywords)

    monkeypatch.setattr(loading, "scan_segment", scan)

    def points(manager):
        path = f"{manager.logs[partition()].directory.path}/{checkpoint.RECOVERY_POINTS}"
        return checkpoint.read_offsets(world.disk, path).get(partition(), 0) if os.path.exists(path) else 0

    async def maintained(manager, point):
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

    async def story():
        manager = world.manager()
        await manager.start()
        log = create(manager)
        for _ in range(3):
            write(log, 2)
            log.roll()
        world.kill(manager)
        manager = world.manager()
        await manager.start()
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
def test_flushing_by_the_clock_every_zero_milliseconds_leaves_the_loop_to_others(world, interval_ms, monkeypatch):
    """Apache Kafka does it once then."""

    async def story():
        manager = world.manager(log_flush_scheduler_interval_ms=interval_ms)
        await manager.start()
        times = iter(range(2))

        async def flush_old():
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
def test_flush_ms_is_time_that_passes_whatever_the_clock_is_set_to(world, monkeypatch):
    """One that is set back an hour must not leave an hour's records in memory alone."""

    async def story():
        manager = world.manager()
        await manager.start()
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


@pytest.mark.spec("REP-15")
def test_maintenance_runs_by_the_clock(world, bench):
    async def story():
        manager = world.manager(
            log_retention_check_interval_ms=5, replica_high_watermark_checkpoint_interval_ms=5,
            log_flush_offset_checkpoint_interval_ms=5, log_flush_start_offset_checkpoint_interval_ms=5,
        )  # fmt: skip
        await manager.start()
        log = create(manager)
        write(log, 3)
        log.roll()
        task = asyncio.create_task(manager.run_maintenance())
        bench.clock.now_ms += 8 * 86_400_000
        path = f"{log.directory.path}/{checkpoint.HIGH_WATERMARKS}"
        async with asyncio.timeout(10):
            while log.recovery_point < 3 or log.log_start_offset < 3 or not os.path.exists(path):
                await asyncio.sleep(0.005)
            bench.clock.now_ms += 60_000
            manager.maintenance.remove_later([], 0)
            log.roll()
            manager.maintenance._removal_added.set()
            while manager.maintenance.removals_waiting:
                await asyncio.sleep(0.005)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_failure_met_by_a_thread_is_told_on_the_loop(world):
    import threading

    async def story():
        manager = world.manager()
        told = []
        manager.on_directory_failure.append(lambda directory: told.append((directory.path, threading.get_ident())))
        await manager.start()
        log = create(manager)
        write(log)
        world.disk.bad = (log.folder.path,)
        with pytest.raises(LogDirectoryFailure):
            await world.threads.run(log.flush)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert told == [(log.directory.path, threading.get_ident())]
        assert not log.directory.online

    run(story())


def test_a_log_that_is_there_is_never_created_over(world):
    async def story():
        manager = world.manager(log_dirs=(world.paths[0],))
        await manager.start()
        os.makedirs(f"{world.paths[0]}/t-0")
        Path(world.paths[0], "t-0", "00000000000000000000.log").write_bytes(b"records")
        with pytest.raises(ApiError):
            create(manager)
        assert Path(world.paths[0], "t-0", "00000000000000000000.log").read_bytes() == b"records"

    run(story())


LEFT_BY_A_KILL = {
    "nothing in it": {},
    "an empty id": {"partition.metadata": 0},
    "half of the id": {"partition.metadata": 30},
    "the id": {"partition.metadata": 43},
    "no index": {"partition.metadata": 43, f"{0:020d}.log": 0},
    "one index": {"partition.metadata": 43, f"{0:020d}.log": 0, f"{0:020d}.index": 0},
}


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("left", LEFT_BY_A_KILL.values(), ids=LEFT_BY_A_KILL.keys())
def test_killed_while_a_new_log_is_made(world, left):
    """After each step of its making; the next start goes on where the folder is."""

    async def story():
        manager = world.manager()
        await manager.start()
        folder = Path(create(manager).folder.path)
        world.kill(manager)
        for file in folder.iterdir():
            if file.name in left:
                os.truncate(file, left[file.name])
            else:
                file.unlink()
        again = world.manager()
        await again.start()
        log = again.get_or_create(partition(), TOPIC_ID, LogConfig())
        assert (log.folder.path, log.topic_id, log.log_end_offset) == (str(folder), TOPIC_ID, 0)
        write(log, 3)
        world.kill(again)
        last = world.manager()
        await last.start()
        assert (last.logs[partition()].topic_id, last.logs[partition()].log_end_offset) == (TOPIC_ID, 3)

    run(story())


@pytest.mark.spec("LOG-04")
def test_a_new_logs_indexes_have_files_from_its_first_append_or_its_clean_stop_on(world):
    async def story():
        manager = world.manager()
        await manager.start()
        written, idle = create(manager, 0), create(manager, 1)
        kinds = [".index", ".timeindex"]
        assert not any(os.path.exists(log.active.path(kind)) for log in (written, idle) for kind in kinds)
        write(written)
        offsets, times = written.active.offset_index, written.active.time_index
        lengths = [os.path.getsize(written.active.path(kind)) for kind in kinds]
        assert lengths == [offsets.capacity * OFFSET_ENTRY.size, times.capacity * TIME_ENTRY.size]
        await manager.shutdown(broker_epoch=1)
        assert [os.path.getsize(idle.active.path(kind)) for kind in kinds] == [0, 0]

    run(story())


def test_a_new_log_holds_no_file_open_before_it_is_written_to(world):
    async def story():
        manager = world.manager()
        await manager.start()
        log = create(manager)
        assert not len(manager.context.open_files)
        write(log)
        assert len(manager.context.open_files) == 1

    run(story())


def open_under(path):
    """What this process has open there."""
    fds = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(fd) for fd in fds if os.path.lexists(fd)]
    return sorted(os.path.basename(target) for target in targets if target.startswith(path + "/"))


@pytest.mark.spec("DIR-41")
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what a process has open")
def test_a_directory_that_failed_is_let_go_of(world):
    """Else its disk could not be unmounted before the broker ends. What is being sent is let go of when it is sent."""

    async def story():
        manager = world.manager()
        await manager.start()
        logs = [create(manager, number, assigned_directory=manager.directories[0].id) for number in range(3)]
        other = create(manager, 3, assigned_directory=manager.directories[1].id)
        for log in (*logs, other):
            write(log)
        for log in logs[1:]:
            log.roll()
            write(log)
        sent = logs[0].read(0, 1000, upper_offset=1)
        assert len(open_under(world.paths[0])) == 6
        manager.directories[0].fail(OSError("gone"))
        assert open_under(world.paths[0]) == ["00000000000000000000.log"]
        assert sent.read()
        sent.release()
        assert open_under(world.paths[0]) == []
        assert len(open_under(world.paths[1])) == 2
        write(other)

    asyncio.run(story())


@pytest.mark.spec("DIR-41")
def test_a_disk_that_fails_in_the_middle_of_a_cut_leaves_maintenance_to_the_other_disks(world):
    """Nothing is left of the log then, not even a segment."""

    async def story():
        manager = world.manager()
        await manager.start()
        cut, other = create(manager, 0), create(manager, 1)
        write(cut)
        cut.flush()
        maintenance = asyncio.create_task(manager.maintenance.run())
        await asyncio.sleep(0)
        world.disk.bad = (cut.folder.path,)
        with pytest.raises(LogDirectoryFailure):
            cut.truncate_fully_and_start_at(0)
        write(other)
        other.roll()
        async with asyncio.timeout(10):
            while other.recovery_point < other.end_offset and not maintenance.done():
                await asyncio.sleep(0.01)
        assert not maintenance.done()
        maintenance.cancel()
        await asyncio.gather(maintenance, return_exceptions=True)

    run(story())


@pytest.mark.spec("LOG-24", "DIR-29")
def test_what_a_copy_was_cut_of_is_removed_also_when_the_copy_is_the_log_meanwhile(world):
    async def story():
        manager = world.manager()
        await manager.start()
        current = create(manager)
        write(current)
        future = manager.create_future(partition(), next(d for d in manager.directories if d is not current.directory))
        future.append_as_follower(memoryview(current.read(0, 1 << 20, upper_offset=1).read()))
        future.truncate_fully_and_start_at(0)
        manager.swap_future(partition())()
        assert [name for name in os.listdir(future.folder.path) if name.endswith(".deleted")]
        await manager.maintenance.remove_everything_waiting()
        assert not [name for name in os.listdir(future.folder.path) if name.endswith(".deleted")]

    run(story())
