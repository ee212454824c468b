"""Future logs in another directory: how they are compared with the current log, and how they replace it."""

# ruff: noqa: ASYNC240 - a test looks at real files and polls for them
from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from tests.broker.storage.managing import World, create, partition, run, write

from ballast_broker.storage import adoption
from ballast_broker.storage.common_end import CommonEnd
from ballast_wire.errors import ApiError
from ballast_wire.records import Record, encode_batch


@pytest.mark.spec("DIR-29")
@pytest.mark.spec("DIR-30")
def test_swapping_in_a_future_log(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
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
def test_the_loop_reads_nothing_of_a_segment_that_was_copied(world: World, gap: bool) -> None:
    """A thread finds out whether it reaches the next segment, and so whether that one is marked."""

    async def story() -> None:
        manager = await world.started()
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
def test_up_to_where_a_copy_is_right_is_looked_up_beside_the_loop(world: World, same: bool, index: str) -> None:
    """Up to `same` both have the same; only the copy has segments that begin at 3 and at 9."""

    async def story() -> None:
        manager = await world.started()
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
async def test_files_that_go_while_a_copy_is_compared_are_looked_for_again(world: World) -> None:
    manager = await world.started()
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
def test_killed_in_the_middle_of_a_move(world: World, when: str) -> None:
    async def story() -> None:
        manager = await world.started()
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
        again = await world.started()
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
def test_a_disk_that_fails_as_an_interrupted_swap_is_finished_ends_no_start(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
        current = create(manager)
        target = next(d for d in manager.directories if d is not current.directory)
        future = manager.create_future(partition(), target)
        world.kill(manager)
        os.rename(current.folder.path, f"{current.folder.path}.{'0' * 32}-delete")
        world.bad_disk.bad_renames = (future.folder.path,)
        again = await world.started()
        assert [d.path for d in again.directories if not d.online] == [target.path]
        assert again.get(partition()) is None
        world.kill(again)
        world.bad_disk.bad_renames = ()
        again = await world.started()
        assert again.logs[partition()].directory.path == target.path
        await again.shutdown()

    run(story())


@pytest.mark.spec("DIR-31", "DIR-41")
def test_a_copy_does_not_take_the_place_of_a_log_whose_directory_is_away(world: World) -> None:
    """One move has just ended, another begins, the broker is killed, and the disk with the current log fails."""

    async def story() -> None:
        manager = await world.started()
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
        world.bad_disk.bad = (second.path,)
        again = await world.started()
        assert partition() not in again.logs
        world.kill(again)
        world.bad_disk.bad = ()
        healed = await world.started()
        assert healed.logs[partition()].log_end_offset == 5
        assert healed.future_logs[partition()].log_end_offset == 3

    run(story())


@pytest.mark.spec("LOG-24", "DIR-29")
def test_what_a_copy_was_cut_of_is_removed_also_when_the_copy_is_the_log_meanwhile(world: World) -> None:
    async def story() -> None:
        manager = await world.started()
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


@pytest.mark.spec("DIR-04", "LOG-34")
@pytest.mark.parametrize("written", [True, False])
def test_what_a_directory_that_was_taken_out_for_a_while_has_alone_is_not_removed(
    world: World, written: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its replica was re-created elsewhere meanwhile, and may have been written to: then the two logs differ."""

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        write(log, 3)
        folder, taken_out = Path(log.folder.path), log.directory.path
        await manager.shutdown()
        others = await world.started(log_dirs=tuple(path for path in world.paths if path != taken_out))
        anew = create(others, assigned_directory=log.directory.id)
        assert "t-0 begins empty" in caplog.text
        anew.assign_epoch(1, 0)
        if written:
            batch = encode_batch([Record(b"k", b"after", 1_750_000_000_000)])
            anew.append_as_leader(batch, 1, now_ms=1_750_000_000_000)
        new_folder = Path(anew.folder.path)
        await others.shutdown()
        again = await world.started()
        await again.maintenance.remove_everything_waiting()
        current = again.logs[partition()]
        if written:
            assert (current.folder.path, current.end_offset) == (str(new_folder), 1)
            (aside,) = again.strays
            assert Path(aside).parent == folder.parent
            assert sum(path.stat().st_size for path in Path(aside).glob("*.log")) == log.size_bytes
        else:
            assert (current.folder.path, current.end_offset) == (str(folder), 3)
            assert not again.strays
            assert not list(new_folder.parent.glob("t-0*"))

    run(story())


@pytest.mark.spec("DIR-31")
def test_of_two_logs_with_the_same_records_one_goes(world: World) -> None:
    """A power loss in the middle of a swap leaves them; then more is written to the one that was swapped in."""

    async def story() -> None:
        manager = await world.started()
        log = create(manager)
        write(log, 3)
        folder = Path(log.folder.path)
        other = next(directory.path for directory in manager.directories if directory is not log.directory)
        await manager.shutdown()
        shutil.copytree(folder, f"{other}/t-0")
        written = await world.started(log_dirs=tuple(path for path in world.paths if path != str(folder.parent)))
        write(written.logs[partition()], 2)
        await written.shutdown()
        again = await world.started()
        await again.maintenance.remove_everything_waiting()
        assert again.logs[partition()].folder.path == f"{other}/t-0"
        assert again.logs[partition()].end_offset == 5
        assert not again.strays
        assert not list(folder.parent.glob("t-0*"))

    run(story())
