"""While a disk stalls, appends run in a thread and keep their order (LOG-32)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.broker.storage.conftest import Bench, Inline, ReadAll

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import File
from ballast_broker.storage import slow_append
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.disk import RealDisk, RealThreads
from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_broker.storage.log import Log
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import Record, encode_batch

T = TypeVar("T")


def batch(number: int, **keywords: Any) -> bytearray:
    return encode_batch([Record(b"k", b"%d" % number, 1_750_000_000_000)], **keywords)


@pytest.mark.spec("LOG-32")
def test_a_directory_is_slow_when_one_write_in_a_hundred_is(tmp_path: Path) -> None:
    directory = LogDirectory(str(tmp_path), RealDisk(), Inline())
    directory.writes = 1000
    directory.note_slow_write(10.0)
    assert directory.slow_until == 0
    directory.writes = 1500
    directory.note_slow_write(10.5)
    assert directory.slow_until == 0
    directory.writes = 1510
    for _ in range(4):
        directory.note_slow_write(10.6)
    assert directory.slow_until == 15.6
    directory.note_slow_write(15.0)
    assert directory.slow_until == 20.0
    directory.note_slow_write(30.0)
    assert directory.slow_until == 20.0


@pytest.mark.spec("LOG-32")
def test_slow_writes_are_noticed_by_appends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.create()
    times = iter(range(1000))
    monkeypatch.setattr(bench.clock, "monotonic", lambda: next(times))
    for _ in range(3):
        bench.append(log)
    assert bench.directory.slow_writes == 3
    monkeypatch.setattr(bench.clock, "monotonic", lambda: 2.0)
    bench.directory.slow_until = 2.5
    assert log.append_is_slow()


@pytest.mark.spec("LOG-32")
@pytest.mark.parametrize(("waits", "slow"), [(0, 1), (1, 3)])
def test_a_write_that_only_lacked_a_processor_is_not_the_disks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, waits: int, slow: int
) -> None:
    log = bench.create()
    times, waited = iter(n * 0.01 for n in range(1000)), iter(range(0, 1000 * waits + 1, waits) if waits else [7] * 9)
    monkeypatch.setattr(bench.clock, "monotonic", lambda: next(times))
    monkeypatch.setattr(bench.directory, "waits", lambda: next(waited))
    for _ in range(3):
        bench.append(log)
    assert bench.directory.slow_writes == slow  # the first is suspected, the others are looked at
    assert (bench.directory.slow_until > 0) is bool(waits)


@pytest.mark.spec("LOG-32")
def test_a_thread_that_sleeps_waits() -> None:
    disk = RealDisk()
    before = disk.waits()
    threading.Event().wait(0.001)
    assert disk.waits() > before


@pytest.mark.spec("LOG-32")
def test_appends_by_thread_keep_their_order_and_become_visible_when_written(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(segment_bytes=2000)
    threads = RealThreads(4)
    sizes = []

    class Watching:
        async def run(self, work: Callable[[], T]) -> T:
            before = log.log_end_offset
            assert log.append_is_slow()
            assert log.write_in_progress
            with pytest.raises(RuntimeError):
                log.append_as_leader(batch(0), 0, now_ms=bench.clock.now_ms)
            result = await threads.run(work)
            assert log.log_end_offset == before
            sizes.append(before)
            return result

    async def story() -> None:
        bench.threads = Watching()
        await asyncio.gather(
            *(slow_append.append_as_leader(log, batch(n), 1, now_ms=bench.clock.now_ms) for n in range(60))
        )
        follower = batch(60, base_offset=60, leader_epoch=2)
        info = await slow_append.append_as_follower(log, memoryview(follower))
        assert (info.first_offset, info.last_offset, log.latest_epoch) == (60, 60, 2)

    asyncio.run(story())
    threads.close()
    assert sizes == list(range(61))
    assert [int(record.value or b"") for record in read_all(log)] == list(range(61))
    assert len(log.segments) > 1
    assert not log.append_is_slow()
    log.append_as_leader(batch(61), 2, now_ms=bench.clock.now_ms)
    log.close()
    assert bench.load(clean=True).log_end_offset == 62


@pytest.mark.spec("LOG-32")
def test_a_repetition_is_recognised_by_thread_too_and_a_failure_takes_the_directory(bench: Bench) -> None:
    log = bench.create()

    class Broken:
        async def run(self, work: Callable[[], T]) -> T:
            raise OSError(5, "Input/output error")

    async def story() -> None:
        sent = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
        now_ms = bench.clock.now_ms
        await slow_append.append_as_leader(log, batch(0, **sent), 0, now_ms=now_ms)
        again = await slow_append.append_as_leader(log, batch(0, **sent), 0, now_ms=now_ms)
        assert again.duplicate
        bench.threads = Broken()
        with pytest.raises(LogDirectoryFailure):
            await slow_append.append_as_leader(log, batch(1), 0, now_ms=now_ms)
        assert not bench.directory.online
        assert log.log_end_offset == 1

    asyncio.run(story())


@pytest.mark.spec("LOG-32", "DIR-42")
@pytest.mark.parametrize("append", ["leader", "follower"])
def test_a_disk_with_no_room_for_the_index_takes_the_directory_by_thread_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, append: str
) -> None:
    """The batch itself may still fit into the last block of its file."""
    log = bench.create(index_interval_bytes=0)
    real_open = bench.disk.open

    def full(path: str, *, create: bool = False, writable: bool = True) -> File:
        if create and path.endswith("index"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real_open(path, create=create, writable=writable)

    async def one(n: int) -> object:
        if append == "leader":
            return await slow_append.append_as_leader(log, batch(n), 0, now_ms=bench.clock.now_ms)
        sent = memoryview(batch(n, base_offset=n, leader_epoch=0))
        return await slow_append.append_as_follower(log, sent)

    async def many(numbers: Iterable[int]) -> None:
        for n in numbers:
            await one(n)

    async def story() -> None:
        await one(0)
        monkeypatch.setattr(bench.disk, "open", full)
        with pytest.raises(LogDirectoryFailure):
            await many(range(1, 200))
        assert not bench.directory.online

    log.active.writable_file()
    asyncio.run(story())
    written = log.log_end_offset
    monkeypatch.undo()
    bench.directory.online = True
    assert bench.load(clean=False).log_end_offset >= written > 100


@pytest.mark.spec("LOG-32", "DIR-41")
def test_what_a_thread_has_written_to_a_directory_that_failed_meanwhile_is_refused(bench: Bench) -> None:
    """Nobody can read it there, and the producer would wait for the whole request timeout."""
    log = bench.create()

    class Failing:
        async def run(self, work: Callable[[], T]) -> T:
            result = work()
            bench.directory.fail(OSError(errno.EIO, "Input/output error"))
            return result

    async def story() -> None:
        bench.threads = Failing()
        with pytest.raises(LogDirectoryFailure):
            await slow_append.append_as_leader(log, batch(0), 0, now_ms=bench.clock.now_ms)
        assert log.log_end_offset == 0

    asyncio.run(story())


@pytest.mark.spec("LOG-20", "LOG-21", "LOG-32")
@pytest.mark.parametrize("limit", [{"retention_bytes": 0}, {"retention_ms": 0}])
def test_retention_goes_on_while_a_thread_writes(bench: Bench, read_all: ReadAll, limit: dict[str, Any]) -> None:
    """A busy log on a stalling disk is nearly always being written to, and its old segments would never be deleted."""
    log = bench.create(segment_bytes=1000, retention_bytes=-1)
    while len(log.segments) < 5:
        bench.append(log, timestamp=bench.clock.now_ms)
    log.update_config(LogConfig(segment_bytes=1000, **limit))
    active, end = log.active, log.log_end_offset

    class Meanwhile:
        async def run(self, work: Callable[[], T]) -> T:
            assert log.write_in_progress
            assert log.delete_old_segments(bench.clock.now_ms + 1) == 4
            return work()

    async def story() -> None:
        bench.threads = Meanwhile()
        await slow_append.append_as_leader(log, batch(end), 0, now_ms=bench.clock.now_ms)

    asyncio.run(story())
    assert log.segments == [active]
    assert log.log_start_offset == active.base_offset
    assert [record.offset for record in read_all(log)] == list(range(active.base_offset, end + 1))
    log.close()
    again = bench.load(clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (active.base_offset, end + 1)


def cut_to_one(log: Log) -> None:
    log.truncate_to(1)


def begin_an_epoch(log: Log) -> None:
    log.interrupt_appends()
    log.assign_epoch(7, log.end_offset)


def end(log: Log) -> None:
    log.close()


@pytest.mark.spec("LOG-32", "LOG-41")
@pytest.mark.parametrize("event", [cut_to_one, begin_an_epoch, end])
def test_what_happens_meanwhile_interrupts_appends_and_nothing_of_them_is_left(
    bench: Bench, read_all: ReadAll, event: Callable[[Log], object]
) -> None:
    """One write is in its thread and one waits when it happens: both are refused, and the next append succeeds."""
    log = bench.create()
    bench.append(log)
    bench.append(log)

    class Interrupting:
        async def run(self, work: Callable[[], T]) -> T:
            result = work()
            if not events:
                events.append(event(log))
            return result

    async def story() -> None:
        now_ms = bench.clock.now_ms
        bench.threads = Interrupting()
        appends = [slow_append.append_as_leader(log, batch(n), 0, now_ms=now_ms) for n in range(2)]
        assert log.append_is_slow()
        for refused in await asyncio.gather(*appends, return_exceptions=True):
            assert isinstance(refused, ApiError)
            assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    events: list[object] = []
    asyncio.run(story())
    kept = 1 if event is cut_to_one else 2
    assert not log.append_is_slow()
    assert log.log_end_offset == kept == len(read_all(log))
    assert log.active.size == bench.disk.size(log.active.path())
    if event is not end:
        log.append_as_leader(batch(9), 7, now_ms=bench.clock.now_ms)
        log.close()
    again = bench.load(clean=False)
    assert again.log_end_offset == kept + (event is not end)
    assert again.latest_epoch == (0 if event is end else 7)


@pytest.mark.spec("LOG-32")
def test_who_is_cancelled_lets_the_next_write_only_when_the_thread_is_done(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create()
    threads = RealThreads(2)
    began, go_on = threading.Event(), threading.Event()

    class Slow:
        async def run(self, work: Callable[[], T]) -> T:
            def wait() -> T:
                began.set()
                assert go_on.wait(45)
                return work()

            return await threads.run(wait)

    async def story() -> None:
        now_ms = bench.clock.now_ms
        bench.threads = Slow()
        first = asyncio.ensure_future(slow_append.append_as_leader(log, batch(0), 0, now_ms=now_ms))
        await asyncio.to_thread(began.wait, 30)
        first.cancel()
        bench.threads = threads
        second = asyncio.ensure_future(slow_append.append_as_leader(log, batch(1), 0, now_ms=now_ms))
        await asyncio.sleep(0)
        assert log.write_in_progress
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).first_offset == 0

    asyncio.run(story())
    threads.close()
    assert [record.value for record in read_all(log)] == [b"1"]


@pytest.mark.spec("LOG-32")
@pytest.mark.parametrize(("took_s", "stays"), [(0.015, False), (0.03, True)])
async def test_a_thread_that_waited_for_the_loop_is_not_the_disks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, took_s: float, stays: bool
) -> None:
    log = bench.create()
    times, waited = (n * took_s for n in range(1000)), iter(range(1000))
    monkeypatch.setattr(bench.clock, "monotonic", lambda: next(times))
    monkeypatch.setattr(bench.directory, "waits", lambda: next(waited))
    bench.directory.slow_until = 1.0
    await slow_append.append_as_leader(log, batch(0), 0, now_ms=bench.clock.now_ms)
    assert (bench.directory.slow_until > 1.0) is stays
