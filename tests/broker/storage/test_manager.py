"""All logs of a broker: start, choice of directories, failures, shutdown."""

# ruff: noqa: ASYNC110, ASYNC240 - a test looks at real files and polls for them
from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from e2e import disks
from tests.broker.storage.conftest import Bench
from tests.broker.storage.managing import TOPIC_ID, BadDisk, SideBySide, World, create, partition, run, write
from tests.sim.disk import SimDisk, Store

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import checkpoint, placement, starting
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.directory_threads import SILENT_AFTER_S
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.errors import DirectoryRefused, LogDirectoryFailure
from ballast_broker.storage.index import OFFSET_ENTRY, TIME_ENTRY
from ballast_broker.storage.log import Log
from ballast_broker.storage.maintenance import PROBE_S, SEGMENTS_AT_ONCE
from ballast_wire.errors import ApiError, ErrorCode

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@pytest.mark.spec("CLU-03")
@pytest.mark.parametrize("clean", [True, False])
def test_the_metadata_log_may_have_a_directory_of_its_own_which_takes_no_replicas(
    world: World, tmp_path: Path, clean: bool
) -> None:
    async def story() -> None:
        apart = str(tmp_path / "metadata")
        manager = await world.started(metadata_log_dir=apart)
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
        again = await world.started(metadata_log_dir=apart)
        assert (await again.open_raft_log(LogConfig())).log_end_offset == 3
        assert len(again.logs) == 9

    run(story())


@pytest.mark.spec("DIR-05")
@pytest.mark.parametrize("apart", [True, False])
def test_no_metadata_log_is_begun_where_another_directory_has_one(world: World, tmp_path: Path, apart: bool) -> None:
    """As when `log.dirs` is reordered, or a new disk is put first."""

    async def story() -> None:
        manager = await world.started()
        write(await manager.open_raft_log(LogConfig()), 3)
        await manager.shutdown()
        before = world.paths[0]
        world.paths.reverse()
        elsewhere = {"metadata_log_dir": str(tmp_path / "new")} if apart else {}
        with pytest.raises(DirectoryRefused, match=f"the metadata log is in {before}: set metadata.log.dir"):
            await world.manager(**elsewhere).start()
        world.kill(world.managers[-1])
        again = await world.started(metadata_log_dir=before)
        assert (await again.open_raft_log(LogConfig())).log_end_offset == 3

    run(story())


@pytest.mark.spec("DIR-05")
def test_the_only_voter_begins_no_metadata_log_on_a_disk_that_is_not_mounted(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "metadata"
        manager = await world.started(metadata_log_dir=str(home), alone_has_metadata=True)
        await manager.open_raft_log(LogConfig())
        await manager.shutdown()
        home.rename(tmp_path / "mounted-elsewhere")
        with pytest.raises(DirectoryRefused, match=f"never been used, but {world.paths[0]} has"):
            await world.manager(metadata_log_dir=str(home), alone_has_metadata=True).start()
        world.kill(world.managers[-1])
        voter = world.manager(metadata_log_dir=str(home))
        await voter.start()  # the others tell it

    run(story())


@pytest.mark.spec("DIR-05")
def test_a_first_start_that_died_halfway_is_followed_by_another(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had written by then must not look as if a metadata log were missing."""
    calls = iter([True])
    write_atomically = world.disk.write_atomically

    def dies_after_one(path: str, data: bytes) -> None:
        assert next(calls, False), "the process dies"
        write_atomically(path, data)

    async def story() -> None:
        home = str(tmp_path / "metadata")
        with monkeypatch.context() as patched:
            patched.setattr(world.disk, "write_atomically", dies_after_one)
            with pytest.raises(AssertionError, match="dies"):
                await world.manager(metadata_log_dir=home, alone_has_metadata=True).start()
        world.kill(world.managers[-1])
        await world.manager(metadata_log_dir=home, alone_has_metadata=True).start()

    run(story())


@pytest.mark.spec("LOG-40")
@pytest.mark.parametrize("clean", [True, False])
def test_stop_and_start(world: World, clean: bool) -> None:
    async def story() -> None:
        manager = await world.started()
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
        again = await world.started()
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
def test_a_directory_that_another_process_has_is_refused(world: World) -> None:
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
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryRefused, match="another process"):
            run(world.manager(log_dirs=(world.paths[0],)).start())
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()
    run(world.manager(log_dirs=(world.paths[0],)).start())


@pytest.mark.spec("LOG-42")
def test_a_directory_that_cannot_be_locked_is_offline_and_nobody_elses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network volume may have no locks, or fail: that is the directory's trouble, and no other process has it."""
    lockf, locked = fcntl.lockf, list[Any]()

    def first_fails(file: Any, command: int, length: int = 0, start: int = 0, whence: int = 0) -> Any:
        locked.append(file)
        if len(locked) == 1:
            raise OSError(errno.ENOLCK, "No locks available")
        return lockf(file, command, length, start, whence)

    monkeypatch.setattr(fcntl, "lockf", first_fails)
    manager = run(world.started())
    assert sorted(d.online for d in manager.directories) == [False, True, True]


@pytest.mark.spec("LOG-42", "DIR-01")
def test_a_directory_that_is_named_twice_is_refused(world: World) -> None:
    os.makedirs(world.paths[0])
    os.symlink(world.paths[0], world.paths[1])
    with pytest.raises(DirectoryRefused, match="the same directory has another name"):
        run(world.manager().start())
    assert not os.path.exists(f"{world.paths[0]}/meta.properties")


@pytest.mark.spec("DIR-05")
def test_a_copy_of_a_directory_is_refused_by_both_names(world: World) -> None:
    first = world.manager(log_dirs=(world.paths[0],))
    run(first.start())
    world.kill(first)
    shutil.copytree(world.paths[0], world.paths[1])
    with pytest.raises(DirectoryRefused, match=f"one of {world.paths[0]} and {world.paths[1]} is a copy of the other"):
        run(world.manager().start())


@pytest.mark.spec("DIR-05")
def test_identity_survives_and_strangers_are_refused(world: World) -> None:
    async def start(**config: Any) -> tuple[list[UUID], Log | None]:
        manager = world.manager(**config)
        try:
            await manager.start()
            return [directory.id for directory in manager.directories], manager.get(partition())
        finally:
            world.kill(manager)

    async def story() -> None:
        manager = await world.started()
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
        assert log is not None
        assert log.log_end_offset == 3
        assert log.directory.path == moved

    run(story())


@pytest.mark.spec("DIR-05", "LOG-40")
@pytest.mark.parametrize("seed", range(10))
def test_directories_that_were_made_survive_a_loss_of_power(world: World, seed: int) -> None:
    """A voter that loses its metadata log forgets its votes and what it has acknowledged."""

    async def story() -> None:
        store = Store(random.Random(seed), world.clock.wall_ms)
        world.disk = SimDisk(store)
        world.disk.make_directory(world.paths[0])  # by a process that died then
        world.disk = SimDisk(store)
        manager = await world.started()
        await manager.shutdown()
        store.lose_power()
        for directory in manager.directories:
            assert world.disk.exists(f"{directory.path}/meta.properties")

    run(story())


def test_a_cluster_id_is_generated_only_when_asked_for(world: World) -> None:
    async def story() -> None:
        with pytest.raises(DirectoryRefused, match=r"cluster\.id"):
            await world.manager(cluster_id=None).start()
        world.kill(world.managers[-1])
        manager = await world.started(cluster_id=None, generate_cluster_id=True)
        assert len(manager.cluster_id or "") == 22
        world.kill(manager)
        again = await world.started(cluster_id=None, generate_cluster_id=True)
        assert again.cluster_id == manager.cluster_id

    run(story())


@pytest.mark.spec("DIR-02")
def test_preferred_before_assigned_before_fewest(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        first, second, third = manager.directories
        assert create(manager, 0, assigned_directory=third.id).directory is third
        assert create(manager, 1, assigned_directory=third.id).directory is third
        manager.set_preferred_directory(partition(2), second.path)
        assert create(manager, 2, assigned_directory=third.id).directory is second
        assert manager.placement.preferred(partition(2)) is None
        manager.set_preferred_directory(partition(2), second.path)
        assert manager.placement.preferred(partition(2)) is None
        assert create(manager, 3).directory is first
        manager.create_future(partition(0), first)
        assert create(manager, 4).directory is second  # first: one and a future one
        assert create(manager, 4) is manager.get(partition(4))

    run(story())


def test_preferences_for_replicas_that_never_come_do_not_add_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MOST_PREFERRED", 3)
    manager = world.manager()
    path = manager.directories[0].path
    for number in (0, 1, 2, 0, 3, 4):
        manager.set_preferred_directory(partition(number), path)
    assert [manager.placement.preferred(partition(n)) is not None for n in range(5)] == [True, False, False, True, True]


@pytest.mark.spec("DIR-44")
def test_a_cordoned_directory_takes_nothing_new(world: World) -> None:
    async def story() -> None:
        manager = await world.started(cordoned_log_dirs=frozenset({world.paths[0]}))
        assert {create(manager, n).directory.path for n in range(6)} == set(world.paths[1:])

    run(story())


@pytest.mark.spec("DIR-03")
@pytest.mark.spec("DIR-04")
def test_a_failing_disk_is_passed_over_and_nothing_old_is_created_again(world: World) -> None:
    async def story() -> None:
        manager = world.manager()
        failures: list[LogDirectory] = []
        manager.on_directory_failure.append(failures.append)
        await manager.start()
        world.bad_disk.bad = (world.paths[0] + "/t-",)
        assert create(manager, 0).directory.path == world.paths[1]
        assert [directory.path for directory in failures] == [world.paths[0]]
        with pytest.raises(ApiError) as refused:
            manager.get_or_create(partition(1), TOPIC_ID, LogConfig(), is_new=False)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        world.bad_disk.bad = tuple(path + "/t-" for path in world.paths)
        with pytest.raises(ApiError) as none_left:
            create(manager, 2)
        assert all(path in (none_left.value.message or "") for path in world.paths[1:])

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_failed_write_takes_one_directory_offline(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        logs = [create(manager, number) for number in range(3)]
        for log in logs:
            write(log, 2)
        bad = logs[0].directory
        logs[0].active.close()
        world.bad_disk.bad = (bad.path,)
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
        world.bad_disk.bad = ()
        again = await world.started()
        assert [again.logs[partition(n)].log_end_offset for n in range(3)] == [2, 3, 2]

    run(story())


@pytest.mark.spec("LOG-34")
def test_strays_are_set_aside_and_kept(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        write(create(manager), 2)
        manager.rename_stray(partition())
        (path,) = manager.strays
        assert path.endswith("-stray")
        assert manager.get(partition()) is None
        await manager.shutdown()
        again = await world.started()
        assert dict(again.strays) == {path: partition()}
        assert os.path.exists(path)

    run(story())


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_named_like_a_partition_is_passed_over(world: World, clean: bool) -> None:
    async def story() -> None:
        manager = await world.started()
        write(create(manager), 2)
        if clean:
            await manager.shutdown()
        world.kill(manager)
        for path in world.paths:
            Path(path, "core-1234").write_bytes(b"not a log")
        again = await world.started()
        assert len(again.online_directories()) == len(world.paths)
        assert list(again.logs) == [partition()]
        assert again.logs[partition()].log_end_offset == 2

    run(story())


Names = list[str]  # within a disk, `list` is a method


class CountingDisk(BadDisk):
    """A disk that counts in how many directories logs are being read at once."""

    def __init__(self, waits_for_each_log: int) -> None:
        super().__init__()
        self.waits_for_each_log = waits_for_each_log
        self.waited = 0
        self.looking = SideBySide()

    def waits(self) -> int:
        return self.waited

    def list(self, path: str) -> Names:
        if path.endswith("-0"):
            with self.looking:
                self.waited += self.waits_for_each_log
        return super().list(path)


@pytest.mark.spec("LOG-33")
@pytest.mark.parametrize("slow", [False, True])
def test_after_a_clean_stop_directories_are_loaded_side_by_side_only_where_the_disk_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(starting, "SLICE", 1)

    async def story() -> None:
        manager = await world.started()
        for number, topic in enumerate("abcdefghi"):
            manager.get_or_create(
                partition(topic=topic), UUID(int=number + 1), LogConfig(), is_new=True,
                assigned_directory=manager.directories[number % 3].id,
            )  # fmt: skip
        await manager.shutdown()
        world.disk = CountingDisk(starting.WAITS_OF_SLOW_DISK if slow else 0)
        manager = await world.started()
        assert len(manager.logs) == 9
        assert (world.disk.looking.most > 1) == slow

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_directory_that_nobody_writes_to_is_found_out_when_it_fails(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        await manager.maintenance.checkpoint_high_watermarks()
        world.bad_disk.bad = (world.paths[1],)
        await manager.maintenance.checkpoint_high_watermarks()
        assert manager.directories[1].online, "there was nothing to write"
        world.clock.now_ms += int(PROBE_S * 1000)
        await manager.maintenance.checkpoint_high_watermarks()
        assert [directory.online for directory in manager.directories] == [True, False, True]

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_volume_that_is_emptied_is_found_out_though_its_mount_point_can_be_written_to(world: World) -> None:
    """So is one that was unmounted."""

    async def story() -> None:
        manager = await world.started()
        await manager.maintenance.checkpoint_high_watermarks()
        os.remove(f"{world.paths[0]}/meta.properties")
        shutil.rmtree(world.paths[1])
        os.mkdir(world.paths[1])
        world.clock.now_ms += int(PROBE_S * 1000)
        await manager.maintenance.checkpoint_high_watermarks()
        assert [directory.online for directory in manager.directories] == [True, False, True]
        assert os.listdir(world.paths[1]) == []

    run(story())


@pytest.mark.spec("TOP-24")
def test_what_a_start_finds_deleted_goes_after_the_delay_that_is_configured(world: World, bench: Bench) -> None:
    async def story() -> None:
        world.defaults = LogConfig(file_delete_delay_ms=2_000)
        manager = await world.started()
        create(manager)
        manager.delete(partition())
        world.kill(manager)
        manager = await world.started()
        manager.set_aside_the_unclaimed(lambda topic_partition, topic_id: False)  # there is no replica
        assert manager.maintenance.removals_waiting == 1
        bench.clock.now_ms += 2_001
        task = asyncio.create_task(manager.run_maintenance())
        async with asyncio.timeout(45):
            while manager.maintenance.removals_waiting:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(story())


class NobodyElses(list[str]):
    """A list of paths that nobody reads."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("thousands of logs go at once: each would look at what waits of all others")


@pytest.mark.spec("LOG-24")
def test_what_waits_in_a_folder_goes_with_it_and_nobody_looks_at_the_others(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        log, (first, second) = create(manager), world.paths[:2]
        assert log.folder.path == f"{first}/t-0"
        manager.maintenance.remove_later(NobodyElses([f"{first}/t-1/0.log.deleted"]), 60_000)
        manager.maintenance.remove_later(NobodyElses([f"{second}/t-0/0.log.deleted"]), 60_000)
        for number in range(2):
            manager.maintenance.remove_later([f"{log.folder.path}/{number}.log.deleted"], 60_000)
        assert manager.maintenance.removals_waiting == 4
        manager.delete(partition())
        assert manager.maintenance.removals_waiting == 3

    run(story())


@pytest.mark.spec("DIR-30", "DIR-41")
@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.EBUSY, errno.EIO])
def test_what_cannot_be_removed_for_something_in_its_way_is_no_fault_of_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async def story() -> None:
        def in_the_way(path: str) -> None:
            raise OSError(code, os.strerror(code), path)

        manager = await world.started()
        log = create(manager)
        manager.delete(partition())
        with monkeypatch.context() as patched:
            patched.setattr(world.bad_disk, "remove_tree", in_the_way)
            await manager.maintenance.remove_everything_waiting()
        assert log.directory.online is (code != errno.EIO)
        assert os.path.exists(log.folder.path)
        await manager.maintenance.remove_everything_waiting()
        assert os.path.exists(log.folder.path) is (code == errno.EIO)

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_large_log_is_removed_bit_by_bit(world: World, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing it in one go would look like a hung disk, and appends would wait."""
    longest_s = 0.0
    remove, run_in_thread = world.disk.remove, world.threads.run

    def slow(path: str) -> None:
        remove(path)
        bench.clock.now_ms += 300

    async def watched(work: Callable[[], Any]) -> Any:
        def timed() -> Any:
            nonlocal longest_s
            began_s = bench.clock.monotonic()
            try:
                return work()
            finally:
                longest_s = max(longest_s, bench.clock.monotonic() - began_s)

        return await run_in_thread(timed)

    async def story() -> None:
        manager = await world.started()
        log, other = create(manager), create(manager, 1)
        for each in (log, other):
            for _ in range(20):
                write(each)
                each.roll()
        manager.delete(partition())
        manager.maintenance.remove_later([segment.path() for segment in other.segments[:-1]], 0)
        with monkeypatch.context() as patched:
            patched.setattr(world.disk, "remove", slow)
            patched.setattr(world.threads, "run", watched)
            await manager.maintenance.remove_everything_waiting()
        assert 1 <= longest_s < SILENT_AFTER_S / 2
        assert not os.path.exists(log.folder.path)
        assert not any(os.path.exists(segment.path()) for segment in other.segments[:-1])
        assert manager.maintenance.removals_waiting == 0

    run(story())


@pytest.mark.spec("REP-15")
def test_maintenance_runs_by_the_clock(world: World, bench: Bench) -> None:
    async def story() -> None:
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
        async with asyncio.timeout(45):
            while log.recovery_point < 3 or log.log_start_offset < 3 or not os.path.exists(path):
                await asyncio.sleep(0.005)
            bench.clock.now_ms += 60_000
            log.roll()
            manager.maintenance.remove_later([f"{log.directory.path}/nothing"], 0)  # looks at the clock again
            while manager.maintenance.removals_waiting:
                await asyncio.sleep(0.005)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story())


@pytest.mark.spec("DIR-41")
def test_a_failure_met_by_a_thread_is_told_on_the_loop(world: World) -> None:

    async def story() -> None:
        manager = world.manager()
        told = []
        manager.on_directory_failure.append(lambda directory: told.append((directory.path, threading.get_ident())))
        await manager.start()
        log = create(manager)
        write(log)
        world.bad_disk.bad = (log.folder.path,)
        with pytest.raises(LogDirectoryFailure):
            await world.threads.run(log.flush)
        async with asyncio.timeout(45):
            while not told:
                await asyncio.sleep(0)
        assert told == [(log.directory.path, threading.get_ident())]
        assert not log.directory.online

    run(story())


def test_a_log_that_is_there_is_never_created_over(world: World) -> None:
    async def story() -> None:
        manager = await world.started(log_dirs=(world.paths[0],))
        os.makedirs(f"{world.paths[0]}/t-0")
        Path(world.paths[0], "t-0", "00000000000000000000.log").write_bytes(b"records")
        with pytest.raises(ApiError):
            create(manager)
        assert Path(world.paths[0], "t-0", "00000000000000000000.log").read_bytes() == b"records"

    run(story())


LEFT_BY_A_KILL: dict[str, dict[str, int]] = {
    "nothing in it": {},
    "an empty id": {"partition.metadata": 0},
    "half of the id": {"partition.metadata": 30},
    "the id": {"partition.metadata": 43},
    "no index": {"partition.metadata": 43, f"{0:020d}.log": 0},
    "one index": {"partition.metadata": 43, f"{0:020d}.log": 0, f"{0:020d}.index": 0},
}


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("left", LEFT_BY_A_KILL.values(), ids=LEFT_BY_A_KILL.keys())
def test_killed_while_a_new_log_is_made(world: World, left: dict[str, int]) -> None:
    """After each step of its creation; the next start continues where the folder is."""

    async def story() -> None:
        manager = await world.started()
        folder = Path(create(manager).folder.path)
        world.kill(manager)
        for file in folder.iterdir():
            if file.name in left:
                os.truncate(file, left[file.name])
            else:
                file.unlink()
        again = await world.started()
        log = again.get_or_create(partition(), TOPIC_ID, LogConfig())
        assert (log.folder.path, log.topic_id, log.log_end_offset) == (str(folder), TOPIC_ID, 0)
        write(log, 3)
        world.kill(again)
        last = await world.started()
        assert (last.logs[partition()].topic_id, last.logs[partition()].log_end_offset) == (TOPIC_ID, 3)

    run(story())


@pytest.mark.spec("LOG-04")
def test_a_new_logs_indexes_have_files_from_its_first_append_or_its_clean_stop_on(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
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


def test_a_new_log_holds_no_file_open_before_it_is_written_to(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        assert not len(manager.context.open_files)
        write(log)
        assert len(manager.context.open_files) == 1

    run(story())


def open_under(path: str) -> list[str]:
    """The files under `path` that this process has open."""
    fds = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(fd) for fd in fds if os.path.lexists(fd)]
    return sorted(os.path.basename(target) for target in targets if target.startswith(path + "/"))


@pytest.mark.spec("DIR-41")
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what a process has open")
def test_a_directory_that_failed_is_let_go_of(world: World) -> None:
    """Otherwise its disk could not be unmounted while the broker runs. Files being sent are released afterwards."""

    async def story() -> None:
        manager = await world.started()
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
@pytest.mark.skipif(disks.why_not() is not None, reason=f"{disks.why_not()}")
def test_a_disk_that_refuses_even_to_close_files_is_let_go_of(world: World) -> None:
    async def story(disk: disks.FaultyMount) -> None:
        manager = await world.started()
        bad = manager.directories[0]
        gone = create(manager, 0, assigned_directory=bad.id)
        other = create(manager, 1, assigned_directory=manager.directories[1].id)
        for log in (gone, other):
            write(log)
        sent = gone.read(0, 1000, upper_offset=1)
        gone.roll()
        write(gone)
        disk.vanish()
        with pytest.raises(OSError, match="not connected"):
            world.disk.usage(bad.path)
        bad.fail(OSError("gone"))
        sent.release()
        assert open_under(bad.path) == []
        write(other)

    with disks.FaultyMount(Path(world.paths[0]), Path(world.paths[0]).parent / "behind") as disk:
        asyncio.run(story(disk))


@pytest.mark.spec("DIR-41")
@pytest.mark.skipif(disks.why_not() is not None, reason=f"{disks.why_not()}")
def test_a_file_that_cannot_be_closed_for_want_of_room_is_not_held_against_another_disk(world: World) -> None:
    """A log of the other disk needs a file, and took that disk offline with it."""

    async def story(disk: disks.FaultyMount) -> None:
        manager = await world.started()
        gone, other = (
            create(manager, number, assigned_directory=directory.id)
            for number, directory in enumerate(manager.directories[:2])
        )
        manager.context.open_files.limit = 1
        write(gone)
        disk.vanish()
        write(other)
        assert other.log_end_offset == 1
        await asyncio.sleep(0)
        assert [directory.online for directory in manager.directories[:2]] == [False, True]
        write(other)

    with disks.FaultyMount(Path(world.paths[0]), Path(world.paths[0]).parent / "behind") as disk:
        asyncio.run(story(disk))


@pytest.mark.spec("DIR-41")
def test_a_disk_that_fails_in_the_middle_of_a_cut_leaves_maintenance_to_the_other_disks(world: World) -> None:
    """Nothing is left of the log then, not even a segment."""

    async def story() -> None:
        manager = await world.started()
        cut, other = create(manager, 0), create(manager, 1)
        write(cut)
        cut.flush()
        maintenance = asyncio.create_task(manager.maintenance.run())
        await asyncio.sleep(0)
        world.bad_disk.bad = (cut.folder.path,)
        with pytest.raises(LogDirectoryFailure):
            cut.truncate_fully_and_start_at(0)
        write(other)
        other.roll()
        async with asyncio.timeout(45):
            while other.recovery_point < other.end_offset and not maintenance.done():
                await asyncio.sleep(0.01)
        assert not maintenance.done()
        maintenance.cancel()
        await asyncio.gather(maintenance, return_exceptions=True)

    run(story())


async def one_inside_of_the_other(world: World) -> tuple[Log, Log]:
    """A log in a directory, and one in a directory below that, perhaps another disk's mount point."""
    manager = await world.started(log_dirs=(world.paths[0], f"{world.paths[0]}/more"))
    outer, inner = (
        create(manager, number, assigned_directory=directory.id) for number, directory in enumerate(manager.directories)
    )
    for log in (outer, inner):
        write(log)
    return outer, inner


@pytest.mark.spec("DIR-01", "DIR-41")
def test_a_directory_that_failed_leaves_one_inside_of_it_alone(world: World) -> None:
    """Its segments counted as deleted, so that the cleaner put nothing in place and took them for clean."""

    async def story() -> None:
        outer, inner = await one_inside_of_the_other(world)
        outer.directory.fail(OSError("gone"))
        assert outer.active.deleted
        assert inner.directory.online
        assert not inner.active.deleted

    run(story())


@pytest.mark.spec("DIR-01", "DIR-41")
def test_what_cannot_be_removed_is_held_against_the_inner_of_two_directories(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: RealDisk, path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    async def story() -> None:
        outer, inner = await one_inside_of_the_other(world)
        manager = world.managers[-1]
        monkeypatch.setattr(RealDisk, "remove_tree", refuse)
        manager.delete(inner.topic_partition)
        await manager.maintenance.remove_everything_waiting()
        assert (outer.directory.online, inner.directory.online) == (True, False)

    run(story())


@pytest.mark.spec("DIR-01")
@pytest.mark.parametrize("inside", ["orders-1", "orders-1/deep/down", f"orders-1.{'0' * 32}-stray"])
def test_a_directory_inside_of_a_partitions_folder_is_refused(world: World, inside: str) -> None:
    """It would be deleted with that partition. It may be anywhere else below another log directory."""
    world.paths.append(f"{world.paths[0]}/more/orders-1")
    manager = world.manager()
    run(manager.start())
    assert manager.online_directories() == manager.directories
    run(manager.shutdown())
    world.paths.append(f"{world.paths[0]}/{inside}")
    with pytest.raises(DirectoryRefused, match="takes for the folder of a partition"):
        run(world.manager().start())


@pytest.mark.spec("DIR-41")
def test_a_directory_that_cannot_be_read_says_which_partition_it_was(world: World) -> None:
    manager = world.manager()
    run(manager.start())
    log = create(manager)
    write(log)
    run(manager.shutdown())
    os.mkdir(f"{log.folder.path}/00000000000000000100.log")
    manager = world.manager()
    run(manager.start())
    (failed,) = [directory for directory in manager.directories if not directory.online]
    assert log.folder.path in str(failed.error)


@pytest.mark.spec("LOG-20", "LOG-32")
def test_of_a_log_with_many_old_segments_a_few_go_at_a_time(world: World) -> None:
    """Each is checked and renamed on the event loop, for which others wait."""
    manager = world.manager()

    async def live() -> list[int]:
        await manager.start()
        log = create(manager)
        for _ in range(60):
            write(log)
            log.roll()
        log.update_config(LogConfig(retention_ms=1000))
        world.clock.now_ms += 10_000_000
        seen = [len(log.segments)]
        going = asyncio.create_task(manager.maintenance.delete_old_segments())
        while not going.done():
            await asyncio.sleep(0)
            seen.append(len(log.segments))
        assert await going == 60
        return seen

    seen = run(live())
    assert seen[-1] == 1
    assert max(before - after for before, after in itertools.pairwise(seen)) == SEGMENTS_AT_ONCE


def test_a_directory_is_made_though_one_inside_of_it_is_made_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.mkdir

    def mkdir(path: AnyPath, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        monkeypatch.setattr(os, "mkdir", made)
        os.makedirs(f"{tmp_path}/above/outer/inner")
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert RealDisk().make_directory(f"{tmp_path}/above/outer")
