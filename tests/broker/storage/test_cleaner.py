"""Compaction: what is kept, at which offsets, and that no crash during it loses anything (LOG-25, LOG-26)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.storage.conftest import Bench, ReadAll, position_of, state_of
from tests.waiting import eventually

from ballast_broker.config.logs import LONG_MAX
from ballast_broker.storage.cleaner import CleanJob, CleanResult, clean, group_segments
from ballast_broker.storage.cleaner_process import CleanerFailed, CleanerProcess, _Pace
from ballast_broker.storage.compaction import make_job, measure, swap_in
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.leftovers import resolve_leftovers
from ballast_broker.storage.log import Log
from ballast_wire.records import HEADER_BYTES, Record, encode_batch, iterate_batches

COMPACT = frozenset({"compact"})


def put(bench: Bench, log: Log, *pairs: tuple[int, bytes | None], codec: int = 0, **batch: Any) -> None:
    """One batch of (key, value) pairs; an int key becomes bytes."""
    records = [Record(b"k%d" % key, value, bench.clock.now_ms) for key, value in pairs]
    log.append_as_leader(encode_batch(records, codec=codec, **batch), 0, now_ms=bench.clock.now_ms)
    log.update_high_watermark(log.log_end_offset)


def compact(
    bench: Bench, log: Log, *, now_ms: int | None = None, cleaned_to: int = 0, entries: int = 10_000
) -> CleanResult:
    now_ms = bench.clock.now_ms if now_ms is None else now_ms
    dirt = measure(log, cleaned_to, now_ms)
    job = make_job(log, dirt, now_ms, entries)
    result = clean(bench.disk, job)
    segments = {segment.base_offset: segment for segment in log.segments}
    for group in result.groups:
        swap_in(log, [segments[base] for base in group.replaced], group)
    return result


def contents(read_all: ReadAll, log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_all(log)]


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("sent", [{}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}])
def test_a_time_of_appending_is_that_of_a_record_that_stays(bench: Bench, codec: int, sent: dict[str, int]) -> None:
    """Not of a removed one, nor of an empty batch that is kept for its producer's sequence number."""
    log = bench.create(cleanup_policy=COMPACT, message_timestamp_type="LogAppendTime")
    put(bench, log, (1, b"went"), codec=codec, **sent)
    put(bench, log, (1, b"went"), (2, b"stays"), codec=codec)
    put(bench, log, (1, b"stays"), codec=codec)
    log.roll()
    compact(bench, log)
    assert log.offset_for_timestamp(bench.clock.now_ms) == (bench.clock.now_ms, 2, 0)


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_newest_of_each_key_stays_at_its_offset(bench: Bench, read_all: ReadAll, codec: int) -> None:
    log = bench.create(cleanup_policy=COMPACT, segment_bytes=2000)
    for number in range(60):
        put(bench, log, (number % 7, b"v%d" % number), (number % 3, b"w%d" % number), codec=codec)
    log.roll()
    before = contents(read_all, log)
    newest = {key: (offset, key, value) for offset, key, value in before}
    result = compact(bench, log)
    assert result.end_offset == 120
    assert contents(read_all, log) == sorted(newest.values())
    assert log.log_end_offset == 120
    assert log.log_start_offset == 0
    assert log.size_bytes == sum(segment.size for segment in log.segments)
    for offset in range(120):  # a removed offset leads to the next one present
        log.known_positions.clear()
        found = log.read(offset, 1, upper_offset=120)
        kept = [record for record in newest.values() if record[0] >= offset]
        assert (found.size > 0) == bool(kept)
        found.release()
    log.close()
    bench.release()
    assert contents(read_all, bench.load(clean=True)) == sorted(newest.values())


@pytest.mark.spec("LOG-25")
def test_a_segment_that_cannot_be_read_to_its_end_is_left_alone(bench: Bench, read_all: ReadAll) -> None:
    """Records after a corrupt batch header must not be lost with the segment."""
    log = bench.create(cleanup_policy=COMPACT)
    for number in range(4):
        put(bench, log, (number, b"v"))
    log.roll()
    with open(log.segments[0].path(), "r+b") as file:
        file.seek(position_of(log, 2) + 16)  # its magic
        file.write(b"\x07")
    with pytest.raises(CorruptFile):
        compact(bench, log)


@pytest.mark.spec("LOG-25")
def test_a_batch_that_the_disk_has_spoilt_stays_as_it_is(bench: Bench) -> None:
    """Readers notice the corruption by its checksum: the cleaner must not compute a new one."""
    log = bench.create(cleanup_policy=COMPACT)
    put(bench, log, (1, b"older"), (2, b"right"))
    put(bench, log, (1, b"newer"))
    log.roll()
    path = log.segments[0].path()
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(data.index(b"right"))
        file.write(b"wrong")
    compact(bench, log)
    with open(path, "rb") as file:
        batches = list(iterate_batches(memoryview(file.read())))
    assert b"wrong" in bytes(batches[0].bytes_view)
    assert [batch.crc_is_right() for batch in batches] == [False, True]


@pytest.mark.spec("LOG-25")
def test_the_active_segment_is_never_touched(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT)
    for _ in range(5):
        put(bench, log, (1, b"x"))
    before = contents(read_all, log)
    assert measure(log, 0, bench.clock.now_ms).dirty_bytes == 0
    compact(bench, log)
    assert contents(read_all, log) == before


@pytest.mark.spec("LOG-25")
def test_tombstones_stay_for_their_time_and_then_go(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=1000)
    put(bench, log, (1, b"x"), (2, b"y"))
    put(bench, log, (1, None))
    put(bench, log, (3, b"end"))
    log.roll()
    start = bench.clock.now_ms
    compact(bench, log, now_ms=start)
    assert contents(read_all, log) == [(1, b"k2", b"y"), (2, b"k1", None), (3, b"k3", b"end")]
    assert {record.timestamp for record in read_all(log)} == {start}
    compact(bench, log, now_ms=start + 999)
    assert len(contents(read_all, log)) == 3
    compact(bench, log, now_ms=start + 1000)
    assert contents(read_all, log) == [(1, b"k2", b"y"), (3, b"k3", b"end")]


@pytest.mark.spec("LOG-25")
def test_tombstones_may_be_kept_for_ever(bench: Bench, read_all: ReadAll) -> None:
    """With the longest `delete.retention.ms`, the time at which they would be removed does not fit into its field."""
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=LONG_MAX)
    put(bench, log, (1, b"old"), (2, b"stays"))
    put(bench, log, (1, None))
    log.roll()
    for _ in range(2):
        compact(bench, log)
        assert [(key, value) for _, key, value in contents(read_all, log)] == [(b"k2", b"stays"), (b"k1", None)]


@pytest.mark.spec("LOG-25")
def test_lags_and_ratio_decide_what_is_cleaned(bench: Bench) -> None:
    log = bench.create(
        cleanup_policy=COMPACT, min_compaction_lag_ms=1000, max_compaction_lag_ms=5000, segment_bytes=300,
        segment_ms=10**12,
    )  # fmt: skip
    start = bench.clock.now_ms
    for number in range(10):
        bench.clock.now_ms = start + number * 100
        put(bench, log, (1, b"x" * 50))
    bases = log.bases
    assert measure(log, 0, start + 900).dirty_bytes == 0
    young = measure(log, 0, start + 1250)
    assert 0 < young.end_offset < bases[-1]
    assert not young.overdue
    old = measure(log, young.end_offset, start + 5500)
    assert old.end_offset == bases[-1]
    assert old.overdue
    assert old.clean_bytes > 0
    log._high_watermark = 3
    assert measure(log, 0, start + 9999).end_offset <= 3


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("timestamp", [-1, 0])
def test_what_has_no_timestamps_is_not_overdue(bench: Bench, timestamp: int) -> None:
    """As in Apache Kafka; otherwise it would be cleaned again at each check, whatever the dirty ratio."""
    log = bench.create(cleanup_policy=COMPACT, max_compaction_lag_ms=5000)
    bench.append(log, timestamp=timestamp)
    log.roll()
    bench.append(log)
    log.roll()
    assert not measure(log, 0, bench.clock.now_ms).overdue
    assert measure(log, 0, bench.clock.now_ms + 5001).overdue


@pytest.mark.spec("LOG-25")
def test_what_comes_after_a_cut_is_not_taken_for_cleaned(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT)
    for number in range(4):
        put(bench, log, (number, b"a"))
    log.roll()
    log.cleaned_to = 4
    log.truncate_to(2)
    for value in (b"b", b"c"):
        put(bench, log, (1, value))
    log.roll()
    compact(bench, log, cleaned_to=log.cleaned_to)
    assert contents(read_all, log) == [(0, b"k0", b"a"), (3, b"k1", b"c")]


@pytest.mark.spec("LOG-25")
def test_a_producers_last_sequence_survives_as_an_empty_batch(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT)
    put(bench, log, (1, b"a"), producer_id=5, producer_epoch=0, base_sequence=0)
    put(bench, log, (1, b"b"), producer_id=5, producer_epoch=0, base_sequence=1)
    put(bench, log, (1, b"c"))
    log.roll()
    written_ms = state_of(log, 5).last_timestamp
    assert written_ms > 0
    compact(bench, log)
    assert contents(read_all, log) == [(2, b"k1", b"c")]
    bench.release()
    shutil.copytree(bench.folder, str(bench.folder) + "-copy")
    for name in os.listdir(bench.folder):
        if name.endswith(".snapshot"):
            os.unlink(bench.folder / name)
    again = bench.load(clean=False, cleanup_policy=COMPACT)
    assert state_of(again, 5).last_sequence == 1
    assert state_of(again, 5).last_timestamp == written_ms, "it is remembered as long as before"


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("codec", range(5))
def test_an_empty_batch_is_its_header_alone(bench: Bench, codec: int) -> None:
    """librdkafka fails on empty data compressed by Snappy, and crashes on that of the other codecs."""
    log = bench.create(cleanup_policy=COMPACT)
    put(bench, log, (1, None), (2, b"a"), codec=codec, producer_id=5, producer_epoch=0, base_sequence=0)
    log.roll()
    compact(bench, log)
    put(bench, log, (1, b"b"), (2, b"b"))
    log.roll()
    compact(bench, log)
    data = log.read(0, 1 << 20, upper_offset=2).read()
    (empty,) = iterate_batches(memoryview(data))
    assert (empty.header.record_count, empty.last_offset, empty.header.attributes) == (0, 1, 0)
    assert empty.size_bytes == HEADER_BYTES


@pytest.mark.spec("LOG-25")
def test_a_compressed_body_that_lies_is_kept_and_harms_nobody(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create()
    lie = encode_batch([Record(b"k", b"v" * 100, 5)] * 3, codec=4)
    lie[70:] = os.urandom(len(lie) - 70)
    from crc32c import crc32c

    lie[17:21] = crc32c(memoryview(lie)[21:]).to_bytes(4, "big")
    log.append_as_leader(lie, 0, now_ms=5)
    for number in range(5):
        put(bench, log, (1, b"%d" % number))
    log.roll()
    compact(bench, log)
    assert log.offset_for_timestamp(1) == (5, 0, 0)
    found = log.read(3, 1 << 20, upper_offset=8)
    assert found.read().count(b"k1") == 1
    found.release()


@pytest.mark.spec("LOG-26")
def test_the_map_is_bounded_and_the_next_pass_goes_on(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT, segment_bytes=500)
    for number in range(60):
        put(bench, log, (number % 20, b"%d" % number))
    log.roll()
    newest = {key: (offset, key, value) for offset, key, value in contents(read_all, log)}
    cleaned_to, passes = 0, 0
    while cleaned_to < 60:
        result = compact(bench, log, cleaned_to=cleaned_to, entries=8)
        assert result.keys <= 8
        assert result.end_offset > cleaned_to
        cleaned_to = result.end_offset
        passes += 1
    assert passes > 5
    assert contents(read_all, log) == sorted(newest.values())


@pytest.mark.spec("LOG-25")
def test_small_segments_are_joined_within_the_limits(bench: Bench) -> None:
    log = bench.create(cleanup_policy=COMPACT, segment_bytes=400)
    for number in range(30):
        put(bench, log, (number, b"x" * 40))
    log.roll()
    many = len(log.segments)
    log.update_config(log.config.__class__(cleanup_policy=COMPACT, segment_bytes=2000))
    job = make_job(log, measure(log, 0, bench.clock.now_ms), bench.clock.now_ms, 100)
    assert all(sum(size for _, size in group) <= 2000 for group in group_segments(job, 30))
    compact(bench, log)
    assert len(log.segments) < many / 2


class DyingDisk(RealDisk):
    """A disk that dies at its n-th rename."""

    left = 10**9

    def rename(self, old: str, new: str) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        super().rename(old, new)


@pytest.mark.spec("LOG-02")
@pytest.mark.spec("LOG-25")
def test_a_crash_at_any_step_of_the_swap(bench: Bench, read_all: ReadAll) -> None:
    """The disk dies at its n-th rename, for every n; then the folder is loaded as after a crash."""

    bench.disk = bench.context.disk = disk = DyingDisk()
    steps, died = 0, True
    while died:
        shutil.rmtree(bench.folder, ignore_errors=True)
        disk.left = 10**9
        log = bench.create(cleanup_policy=COMPACT, segment_bytes=300)
        for number in range(30):
            put(bench, log, (number % 4, b"%d" % number))
        log.roll()
        log.flush()
        log.update_config(log.config.__class__(cleanup_policy=COMPACT, segment_bytes=10_000))
        newest = {key: (offset, key, value) for offset, key, value in contents(read_all, log)}
        disk.left = steps
        try:
            compact(bench, log)
            died = False
        except KeyboardInterrupt:
            pass
        bench.release()
        disk.left = 10**9
        again = bench.load(clean=False, recovery_point=30, cleanup_policy=COMPACT)
        found = contents(read_all, again)
        assert again.log_end_offset == 30
        assert {key: (offset, key, value) for offset, key, value in found} == newest
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        names = os.listdir(bench.folder)
        assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
        bench.release()
        steps += 1
    assert steps > 20


def test_resolving_leftovers_twice_changes_nothing(bench: Bench) -> None:
    bench.folder.mkdir()
    (bench.folder / "00000000000000000000.log.swap").write_bytes(bytes(encode_batch([Record(b"k", b"v", 1)])))
    names = resolve_leftovers(bench.disk, str(bench.folder), os.listdir(bench.folder))
    assert names == ["00000000000000000000.log"]
    assert resolve_leftovers(bench.disk, str(bench.folder), names) == names


@pytest.mark.spec("LOG-25")
def test_a_tombstone_beyond_the_map_stays_while_what_it_deletes_does(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=1000)
    for number in range(3):
        put(bench, log, (number + 5, b"x"))
    put(bench, log, (1, b"value"), (2, b"x"), (1, None))
    log.roll()
    now = bench.clock.now_ms
    for _ in range(3):
        now += 2000
        assert compact(bench, log, now_ms=now, entries=3).end_offset == 3
        assert (5, b"k1", None) in contents(read_all, log)


@pytest.mark.spec("LOG-25")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    batches=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 5), st.one_of(st.none(), st.binary(max_size=20))), min_size=1, max_size=4
            ),
            st.sampled_from([0, 4]),
        ),
        max_size=25,
    ),
    rolls=st.sets(st.integers(0, 25)),
    passes=st.lists(st.integers(0, 3000), min_size=1, max_size=3),
)
def test_any_log_any_passes_equal_the_model(
    new_bench: Callable[[], Bench],
    read_all: ReadAll,
    batches: list[tuple[list[tuple[int, bytes | None]], int]],
    rolls: set[int],
    passes: list[int],
) -> None:
    """Reading the whole log gives the same final value of each key before and after, in ascending offsets."""
    bench = new_bench()
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=1000)
    state: dict[bytes, bytes | None] = {}
    for number, (pairs, codec) in enumerate(batches):
        put(bench, log, *pairs, codec=codec)
        state.update({b"k%d" % key: value for key, value in pairs})
        if number in rolls:
            log.roll()
    end, now = log.log_end_offset, bench.clock.now_ms
    cleaned_to = 0
    for later in passes:
        now += later
        cleaned_to = compact(bench, log, now_ms=now, cleaned_to=cleaned_to, entries=3).end_offset
    found = contents(read_all, log)
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert log.log_end_offset == end
    after = {key: value for _, key, value in found}
    live = {key: value for key, value in state.items() if value is not None}
    assert {key: value for key, value in after.items() if value is not None} == live
    bench.release()
    assert contents(read_all, bench.load(clean=False, cleanup_policy=COMPACT)) == found
    bench.release()


def dirty(bench: Bench) -> tuple[Log, CleanJob]:
    """Five keys in many segments, each key twelve times."""
    log = bench.create(cleanup_policy=COMPACT, segment_bytes=1000)
    for number in range(60):
        put(bench, log, (number % 5, b"%d" % number))
    log.roll()
    job = make_job(log, measure(log, 0, bench.clock.now_ms), bench.clock.now_ms, 1000)
    return log, job


@pytest.mark.spec("LOG-32")
def test_the_cleaner_is_a_process_that_survives_its_own_death(bench: Bench, read_all: ReadAll) -> None:
    log, job = dirty(bench)

    async def story() -> CleanResult:
        process = CleanerProcess()
        process.change_rate(1e9)
        try:
            first = await process.run(job)
            assert process.pid != os.getpid()
            assert process.pid is not None
            os.kill(process.pid, 9)
            with pytest.raises(CleanerFailed):
                await process.run(job)
            assert await process.run(job) == first
            missing = make_job(log, measure(log, 0, bench.clock.now_ms), bench.clock.now_ms, 1000)
            missing.folder += "-gone"
            with pytest.raises(CleanerFailed) as failure:
                await process.run(missing)
            assert failure.value.os_error == 2
            assert await process.run(job) == first
        finally:
            await process.close()
        return first

    result = asyncio.run(story())
    segments = {segment.base_offset: segment for segment in log.segments}
    for group in result.groups:
        swap_in(log, [segments[base] for base in group.replaced], group)
    assert [offset for offset, _, _ in contents(read_all, log)] == [55, 56, 57, 58, 59]


KILLED_BROKER = """
import asyncio, json, sys
from pathlib import Path
from ballast_broker.storage.cleaner import CleanJob
from ballast_broker.storage.cleaner_process import CleanerProcess

async def story():
    job = CleanJob(**json.loads(sys.argv[1]))
    process = CleanerProcess()
    process.change_rate(float(sys.argv[2]))
    cleaning = asyncio.create_task(process.run(job))
    while not list(Path(job.folder).glob("*.cleaned")):
        await asyncio.sleep(0.01)
    process.change_rate(0.001)
    print("cleaning", flush=True)
    await cleaning

asyncio.run(story())
"""


@pytest.mark.spec("LOG-26")
def test_who_waits_by_a_former_rate_waits_no_more() -> None:
    pace = _Pace()
    pace.change(1e-6)
    cleaning = threading.Thread(target=pace, args=(1000,))  # it would take some centuries
    cleaning.start()
    eventually(lambda: pace._ahead_bytes > 0, "it is far ahead")
    pace.change(0.0)
    cleaning.join(45)
    assert not cleaning.is_alive()


@pytest.mark.spec("LOG-26")
def test_a_rate_that_changes_counts_for_what_is_being_cleaned(bench: Bench) -> None:
    _, job = dirty(bench)

    async def story() -> None:
        process = CleanerProcess()
        process.change_rate(1e-6)
        try:
            cleaning = asyncio.create_task(process.run(job))
            done, _ = await asyncio.wait([cleaning], timeout=0.5)
            assert not done
            process.change_rate(0.0)
            await asyncio.wait_for(cleaning, 45)
            assert await process.run(job) == cleaning.result(), "and of what comes next"
        finally:
            await process.close()

    asyncio.run(story())


@pytest.mark.spec("LOG-25")
def test_the_cleaner_does_not_outlive_a_broker_that_is_killed(bench: Bench) -> None:
    """It would go on writing where the next broker's cleaner writes."""
    _, job = dirty(bench)
    rate = sum(size for _, size in job.segments)  # a second to read it; what is left when it cleans would take hours
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_BROKER, json.dumps(dataclasses.asdict(job)), str(rate)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as broker:  # fmt: skip
        assert broker.stdout is not None
        assert broker.stdout.readline() == "cleaning\n"
        broker.kill()
        # The cleaner holds the other end of this pipe.
        assert broker.communicate(timeout=45) == ("", "")
    cleaned = [file.name for file in Path(job.folder).glob("*.log.cleaned")]
    assert len(cleaned) < len(group_segments(job, job.dirty_end_offset))


@pytest.mark.spec("LOG-20", "LOG-25")
def test_what_cleaning_has_emptied_is_as_old_as_what_it_was(bench: Bench) -> None:
    """By its new file's age, retention would keep it, and all segments after it, for as long again."""
    log = bench.create(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000, segment_bytes=2000)
    for number in range(4):
        put(bench, log, (1, b"v%d" % number * 700))
        log.roll()
    for segment in log.segments:
        os.utime(segment.path(), ns=(0, bench.clock.now_ms * 1_000_000))
    compact(bench, log)
    assert [segment.size > 0 for segment in log.segments] == [False, False, False, True, False]
    assert log.delete_old_segments(bench.clock.now_ms + 1000) == 0
    assert log.delete_old_segments(bench.clock.now_ms + 1001) == 4
