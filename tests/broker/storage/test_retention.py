"""Deleting what is old, too much, or before the log start offset (LOG-20 … 24)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.storage.conftest import NOW_MS, Bench, ReadAll

from ballast_broker.seams import Disk
from ballast_broker.storage import flushing
from ballast_broker.storage.compaction import measure
from ballast_broker.storage.log import Log
from ballast_wire.errors import ApiError, ErrorCode

DAY_MS = 86_400_000

Make = Callable[..., Log]


@pytest.fixture
def make(bench: Bench) -> Make:
    def build(count: int = 40, **config: Any) -> Log:
        log = bench.create(segment_bytes=1000, **config)
        for number in range(count):
            bench.append(log, timestamp=bench.clock.now_ms + number * 1000)
        return log

    return build


@pytest.mark.spec("LOG-20")
def test_by_time(bench: Bench, make: Make) -> None:
    log = make(retention_ms=DAY_MS)
    bases = list(log.bases)
    assert log.delete_old_segments(bench.clock.now_ms + DAY_MS) == 0
    newest_of_first = bases[1] - 1
    due = bench.clock.now_ms + newest_of_first * 1000 + DAY_MS
    assert log.delete_old_segments(due) == 0
    assert log.delete_old_segments(due + 1) == 1
    assert log.log_start_offset == bases[1] == log.bases[0]


@pytest.mark.spec("LOG-20")
def test_by_time_without_timestamps_goes_by_the_file(bench: Bench) -> None:
    log = bench.create(retention_ms=1000, segment_bytes=1000)
    for _ in range(20):
        bench.append(log, timestamp=-1)
    first = log.segments[0].path()
    os.utime(first, ns=(0, (bench.clock.now_ms - 1001) * 1_000_000))
    for segment in log.segments[1:]:
        os.utime(segment.path(), ns=(0, bench.clock.now_ms * 1_000_000))
    assert log.delete_old_segments(bench.clock.now_ms) == 1


@pytest.mark.spec("LOG-20", "LOG-41")
def test_nothing_is_deleted_for_a_time_index_that_the_disk_has_spoilt(bench: Bench, make: Make) -> None:
    log = make(retention_ms=DAY_MS)
    bases = list(log.bases)
    log.close()
    index = log.segments[0].path(".timeindex")
    with open(index, "r+b") as file:
        file.write(bytes(os.path.getsize(index)))
    log = bench.load(clean=True, segment_bytes=1000, retention_ms=DAY_MS)
    log.update_high_watermark(log.end_offset)
    assert log.delete_old_segments(bench.clock.now_ms + DAY_MS) == 0
    assert log.bases == bases
    assert log.delete_old_segments(bench.clock.now_ms + (bases[1] - 1) * 1000 + DAY_MS + 1) == 1


@pytest.mark.spec("LOG-21")
def test_by_size_leaves_at_least_that_much(bench: Bench, make: Make) -> None:
    log = make(retention_bytes=1500, retention_ms=-1)
    total, first = log.size_bytes, log.segments[0].size
    assert total - first > 1500
    log.delete_old_segments(bench.clock.now_ms)
    assert 1500 <= log.size_bytes < 1500 + first
    assert log.delete_old_segments(bench.clock.now_ms) == 0


@pytest.mark.spec("LOG-21")
@pytest.mark.parametrize(("more", "gone"), [(0, 1), (1, 0)])
def test_by_size_leaves_just_that_much_where_segments_allow_it(bench: Bench, make: Make, more: int, gone: int) -> None:
    log = make(retention_ms=-1)
    without_first = log.size_bytes - log.segments[0].size
    log.update_config(replace(log.config, retention_bytes=without_first + more))
    assert log.delete_old_segments(bench.clock.now_ms) == gone


@pytest.mark.spec("LOG-22")
def test_by_log_start_offset_whatever_the_policy(bench: Bench, make: Make, read_all: ReadAll) -> None:
    log = make(cleanup_policy=frozenset({"compact"}))
    target = log.bases[2] + 1
    log.advance_log_start_offset(target)
    assert [record.offset for record in read_all(log)] == list(range(target, 40))
    assert log.delete_old_segments(bench.clock.now_ms) == 2
    assert log.log_start_offset == target
    assert log.bases[0] < target
    with pytest.raises(ApiError) as refused:
        log.read(target - 1, 1, upper_offset=40)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(ApiError):
        log.advance_log_start_offset(41)


@pytest.mark.spec("LOG-23")
def test_the_active_segment_is_rolled_first_and_nothing_above_the_high_watermark_goes(bench: Bench, make: Make) -> None:
    log = make(retention_ms=DAY_MS)
    log._high_watermark = log.bases[2]
    far = bench.clock.now_ms + 10 * DAY_MS
    assert log.delete_old_segments(far) == 2
    log.update_high_watermark(40)
    log.delete_old_segments(far)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (40, 40, 0)
    assert log.bases == [40]
    assert log.delete_old_segments(far) == 0
    bench.append(log)
    assert log.log_end_offset == 41


@pytest.mark.spec("LOG-24")
def test_deleted_files_are_renamed_at_once_and_a_reader_finishes(bench: Bench, make: Make) -> None:
    log = make(retention_ms=DAY_MS)
    found = log.read(0, 300, upper_offset=40)
    log.delete_old_segments(bench.clock.now_ms + 10 * DAY_MS)
    names = os.listdir(bench.folder)
    assert "00000000000000000000.log.deleted" in names
    assert "00000000000000000000.log" not in names
    for path in bench.removed:
        os.unlink(path)
    assert len(found.read()) == found.size
    found.release()
    assert not [name for name in os.listdir(bench.folder) if name.endswith(".deleted")]


@pytest.mark.spec("LOG-11")
def test_rolling_takes_a_snapshot_and_asks_for_a_flush(bench: Bench, make: Make) -> None:
    log = make()
    assert set(log.bases[1:]) <= set(log.snapshots.offsets)
    assert bench.flushes
    for segment in log.segments[:-1]:
        assert os.path.getsize(segment.path(".index")) % 8 == 0
        assert os.path.getsize(segment.path(".index")) < 1000


@pytest.mark.spec("LOG-30")
def test_flush_moves_the_recovery_point_and_so_does_a_count_of_messages(bench: Bench, make: Make) -> None:
    log = make(flush_messages=7)
    assert log.recovery_point == 35
    log.flush()
    assert log.recovery_point == 40
    log.flush(up_to=3)
    assert log.recovery_point == 40
    log.truncate_to(10)
    assert log.recovery_point == 10


@pytest.mark.spec("LOG-33")
def test_files_not_used_lately_are_closed(bench: Bench, make: Make, read_all: ReadAll) -> None:
    bench.context.open_files.limit = 3
    log = make()
    for _ in range(3):
        assert len(read_all(log, max_bytes=100)) == 40
    assert len(bench.context.open_files) <= 3
    assert len([segment for segment in log.segments if segment._file is not None]) <= 3
    held = log.read(0, 100, upper_offset=40)
    assert len(read_all(log)) == 40
    assert len(held.read()) == held.size
    held.release()


def test_a_flush_syncs_what_has_changed_and_no_more(bench: Bench, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync, sync_directory = flushing._sync, bench.disk.sync_directory

    def noted(disk: Disk, path: str) -> None:
        synced.append(path[-10:])
        sync(disk, path)

    def names_noted(path: str) -> None:
        synced.append("names")
        sync_directory(path)

    monkeypatch.setattr(flushing, "_sync", noted)
    monkeypatch.setattr(bench.disk, "sync_directory", names_noted)

    def flushed(epoch: int) -> list[str]:
        synced.clear()
        bench.append(log, epoch=epoch)
        log.flush()
        return list(synced)

    log = make(count=0)
    assert flushed(0) == ["checkpoint", "000000.log", "n.metadata", "names", "names"]  # of the folder, and in it
    assert flushed(0) == ["000000.log"]
    assert flushed(1) == ["checkpoint", "000000.log", "names"]
    assert flushed(1) == ["000000.log"]
    log.roll()
    assert "names" in flushed(1)
    assert flushed(1) == ["000004.log"]
    log.truncate_to(1)
    assert "names" in flushed(2)


def test_a_flush_that_failed_is_made_whole_by_the_next(
    bench: Bench, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(count=0)
    bench.append(log)
    sync = flushing._sync
    failing = iter([OSError(5, "EIO")])

    def fails_once(disk: Disk, path: str) -> None:
        for error in failing:
            raise error
        synced.append(path[-10:])
        sync(disk, path)

    synced: list[str] = []
    monkeypatch.setattr(flushing, "_sync", fails_once)
    with pytest.raises(OSError, match="EIO"):
        flushing.flush(log)
    assert log.recovery_point == 0
    flushing.flush(log)
    assert synced == ["checkpoint", "000000.log", "n.metadata"]
    assert log.recovery_point == 1


@pytest.mark.spec("LOG-41", "LOG-20")
@pytest.mark.parametrize("damage", ["odd", "gone"])
def test_an_index_that_lies_is_built_again_by_what_looks_at_ages(bench: Bench, damage: str) -> None:
    """Retention and the cleaner go through the logs of all partitions: one bad file must not stop them for all."""
    log = bench.create(segment_bytes=600, retention_ms=1000, min_compaction_lag_ms=1000)
    for _ in range(20):
        bench.append(log)
    log.close()
    again = bench.load(clean=True, segment_bytes=600, retention_ms=1000, min_compaction_lag_ms=1000)
    again.update_high_watermark(again.log_end_offset)
    for segment in again.segments[:3]:
        if damage == "odd":
            with open(segment.path(".timeindex"), "ab") as file:
                file.write(b"x")
        else:
            os.unlink(segment.path(".timeindex"))
    assert measure(again, 0, NOW_MS + 500).dirty_bytes == 0
    assert again.delete_old_segments(NOW_MS + 500) == 0
    assert again.delete_old_segments(NOW_MS + 2000) > 3
