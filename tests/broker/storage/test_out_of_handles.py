"""A lack of file descriptors is not a disk failure: what cannot be opened is refused, or done later."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from tests.broker.storage.conftest import NOW_MS, Bench, ReadAll
from tests.broker.storage.managing import World, create, partition, run, write

from ballast_broker.storage import checkpoint
from ballast_broker.storage.directories import CLEAN_SHUTDOWN
from ballast_broker.storage.disk import RealDisk, RealFile, RealThreads
from ballast_broker.storage.errors import DirectoryRefused, LogDirectoryFailure, OutOfHandles
from ballast_broker.storage.log import Log
from ballast_broker.storage.outdated_checkpoints import CHECKPOINTS
from ballast_broker.storage.producers import NOT_ASKED
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ErrorCode
from ballast_wire.records import Record, encode_batch

T = TypeVar("T")
MARKER = b"a marker"
CONFIG: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 0, "segment_index_bytes": 8 * 400}


class OutOfHandlesDisk(RealDisk):
    """A disk that refuses a number of openings from its `first` one on."""

    def __init__(self, code: int = errno.EMFILE) -> None:
        self.code = code
        self.openings = 0
        self.first = -1
        self.many = 0

    def _opens(self, path: str) -> None:
        self.openings += 1
        if self.first < self.openings <= self.first + self.many:
            raise OSError(self.code, os.strerror(self.code), path)

    def open(self, path: str, **keywords: Any) -> RealFile:
        self._opens(path)
        return super().open(path, **keywords)

    def empty_file(self, path: str) -> RealFile:
        self._opens(path)
        return super().empty_file(path)

    def read_bytes(self, path: str) -> bytes:
        self._opens(path)
        return super().read_bytes(path)

    def sync_directory(self, path: str) -> None:
        self._opens(path)
        super().sync_directory(path)


class Story:
    """Appends of all kinds, each retried as long as it is refused, and what must be in the log afterwards."""

    def __init__(self, bench: Bench, disk: OutOfHandlesDisk, *, other_first: bool) -> None:
        self.bench = bench
        bench.disk = bench.context.disk = bench.directory._disk = disk
        self.log = bench.create(**CONFIG)
        self.values: list[bytes] = []
        self.aborted: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, int]] = []
        self.refusals = 0
        self.codes: set[ErrorCode] = set()
        self.other_first = other_first  # a refused append is retried after another append

    def insist(self, append: Callable[[], T]) -> T:
        while True:
            end = self.log.log_end_offset
            try:
                return append()
            except OutOfHandles as error:
                self.codes.add(error.code)
                assert self.log.log_end_offset == end, "refused, and yet done"
                self.refusals += 1
            if self.other_first:
                self.other_first = False
                self.plain(1)
                self.other_first = True

    def append(self, batch: bytearray, values: list[bytes], **keywords: Any) -> None:
        epoch = len(self.epochs) - 1
        info = self.insist(lambda: self.log.append_as_leader(bytearray(batch), epoch, now_ms=NOW_MS, **keywords))
        assert not info.duplicate
        assert info.first_offset == len(self.values)
        self.values += values
        self.log.update_high_watermark(self.log.log_end_offset)
        if keywords or not values:
            return
        again = self.log.append_as_leader(bytearray(batch), epoch, now_ms=NOW_MS)
        assert again.duplicate
        assert again.first_offset == info.first_offset

    def plain(self, size: int) -> None:
        value = b"p%d" % len(self.values) * size
        batch = encode_batch([Record(b"k", value, NOW_MS + len(self.values))])
        epoch = len(self.epochs) - 1
        info = self.insist(lambda: self.log.append_as_leader(bytearray(batch), epoch, now_ms=NOW_MS))
        assert info.first_offset == len(self.values)
        self.values.append(value)
        self.log.update_high_watermark(self.log.log_end_offset)

    def numbered(self, sequence: int) -> None:
        records = [Record(b"k", b"n%d" % (sequence + n), NOW_MS + len(self.values)) for n in range(2)]
        batch = encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence)
        self.append(batch, [record.value or b"" for record in records])

    def transaction(self, number: int, *, committed: bool) -> None:
        producer, first = 100 + number, len(self.values)
        batch = encode_batch(
            [Record(b"k", b"t", NOW_MS)], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        self.append(batch, [b"t"], origin="transaction", verified=NOT_ASKED)
        marker = render_marker(producer, 0, 0, committed=committed, now_ms=NOW_MS)
        self.append(marker, [MARKER], origin="coordinator")
        if not committed:
            self.aborted.append((producer, first))

    def tell(self) -> Story:
        for number in range(16):
            if number % 5 == 0:
                self.epochs.append((len(self.epochs), len(self.values)))
            self.numbered(2 * number)
            self.transaction(number, committed=number % 3 == 0)
            for _ in range(number % 4):
                self.plain(40)
            if number % 6 == 5:
                self.insist(self.log.flush)
        return self

    def check(self, log: Log, read_all: ReadAll) -> None:
        assert self.bench.directory.online
        found = {record.offset: record.value for record in read_all(log)}
        data = {offset: value for offset, value in enumerate(self.values) if value is not MARKER}
        assert {offset: found[offset] for offset in data} == data
        assert log.log_end_offset == len(self.values)
        log.update_high_watermark(log.log_end_offset)
        aborted = log.aborted_transactions(0, log.log_end_offset)
        assert [(each.producer_id, each.first_offset) for each in aborted] == self.aborted
        assert [epoch for epoch, _ in log.epochs.entries] == [epoch for epoch, _ in self.epochs]
        for offset in range(log.log_end_offset):  # by index
            log.known_positions.clear()
            piece = log.read(offset, 1, upper_offset=log.log_end_offset)
            assert piece.next_offset > offset
            piece.release()


def openings(bench: Bench) -> int:
    disk = OutOfHandlesDisk()
    Story(bench, disk, other_first=False).tell()
    return disk.openings


@pytest.mark.spec("LOG-35")
@pytest.mark.parametrize(("code", "many"), [(errno.EMFILE, 1), (errno.ENFILE, 4), (errno.EMFILE, 40)])
@pytest.mark.parametrize("other_first", [False, True])
def test_whatever_cannot_be_opened_is_refused_or_done_later(
    new_bench: Callable[[], Bench], read_all: ReadAll, code: int, many: int, other_first: bool
) -> None:
    """For each opening in a story; checked by reading then, after a kill and after a clean shutdown."""
    refusals = 0
    created = 2
    for first in range(created, openings(new_bench()), 1 if (many, other_first) == (1, False) else 5):
        bench, disk = new_bench(), OutOfHandlesDisk(code)
        disk.first, disk.many = first, many
        story = Story(bench, disk, other_first=other_first).tell()
        disk.many = 0
        refusals += story.refusals
        assert story.codes <= {ErrorCode.KAFKA_STORAGE_ERROR}
        story.check(story.log, read_all)
        assert not any(segment.aborted.late for segment in story.log.segments[:-1])
        point = story.log.recovery_point
        copied = bench.root / "killed"
        shutil.copytree(bench.folder, copied)
        story.log.close()
        story.log.flush()
        assert story.log.recovery_point == story.log.log_end_offset
        story.check(bench.load(clean=True, recovery_point=story.log.recovery_point, **CONFIG), read_all)
        bench.folder = copied
        story.check(bench.load(clean=False, recovery_point=point, **CONFIG), read_all)
        bench.release()
    assert refusals


def test_index_entries_wait_until_their_file_can_be_opened(bench: Bench, read_all: ReadAll) -> None:
    disk = OutOfHandlesDisk()
    bench.disk = bench.context.disk = disk
    log = bench.create(index_interval_bytes=0)
    bench.append(log)
    disk.first, disk.many = disk.openings, 10**6
    for _ in range(300):
        bench.append(log)
    assert disk.openings > disk.first
    disk.many = 0
    bench.append(log)
    assert log.active.offset_index.count == 301
    assert disk.size(log.active.path(".index")) == log.config.segment_index_bytes
    log.close()
    assert disk.size(log.active.path(".index")) == 301 * 8
    assert len(read_all(bench.load(clean=True, recovery_point=302))) == 302


def test_a_log_is_cut_only_where_it_can_be_done_to_the_end(bench: Bench, read_all: ReadAll) -> None:
    disk = OutOfHandlesDisk()
    bench.disk = bench.context.disk = disk
    log = bench.create(segment_bytes=500)
    for _ in range(20):
        bench.append(log)
    for many in (1, 2):
        disk.first, disk.many = disk.openings + 2 - many, 1
        with pytest.raises(OutOfHandles):
            log.truncate_to(3)
        assert bench.directory.online
        assert len(read_all(log)) == log.log_end_offset == 20
    disk.first, disk.many = disk.openings + 2, 1
    with pytest.raises(LogDirectoryFailure) as error:
        log.truncate_to(3)
    assert not isinstance(error.value, OutOfHandles)
    assert not bench.directory.online


def test_a_stop_without_handles_is_no_clean_one(world: World) -> None:
    disk = OutOfHandlesDisk()
    world.disk = disk
    manager = world.manager()

    async def live() -> None:
        await manager.start()
        write(create(manager, 0))
        write(create(manager, 1))
        disk.first, disk.many = disk.openings, 1
        await manager.shutdown()

    run(live())
    disk.many = 0
    again = world.manager()
    run(again.start())
    assert sorted(directory.was_clean for directory in again.directories) == [False, True, True]
    assert [again.logs[partition(number)].log_end_offset for number in (0, 1)] == [1, 1]


@pytest.mark.spec("LOG-40", "LOG-41")
def test_a_stop_is_clean_only_if_the_checkpoints_are_written(world: World) -> None:
    """Whichever file cannot be opened: a clean start believes them."""
    disk = world.disk = OutOfHandlesDisk()

    async def stopped(without: int) -> bool:
        manager = await world.started(log_dirs=(world.paths[0],))
        log = manager.get(partition()) or create(manager)
        write(log)
        log.advance_log_start_offset(log.log_end_offset)
        disk.first, disk.many = disk.openings + without, 1
        await manager.shutdown()
        disk.many = 0
        said = checkpoint.read_offsets(disk, f"{world.paths[0]}/{checkpoint.LOG_START_OFFSETS}")
        assert said == {partition(): log.start_offset} or not disk.exists(f"{world.paths[0]}/{CLEAN_SHUTDOWN}")
        return disk.openings > disk.first

    refused = 0
    while run(stopped(without=refused)):
        refused += 1
    assert refused > len(CHECKPOINTS)


def test_a_start_without_handles_is_refused_and_says_what_to_raise(world: World) -> None:
    disk = OutOfHandlesDisk()
    world.disk = disk
    manager = world.manager()
    run(manager.start())
    create(manager)
    run(manager.shutdown())
    disk.first, disk.many = disk.openings, 10**6
    with pytest.raises(DirectoryRefused, match="ulimit -n"):
        run(world.manager().start())
    world.threads.close()  # another directory may just be locked: such a start waits for nothing
    world.threads = RealThreads(2)
    world.kill(world.managers[-1])
    disk.code = errno.ENFILE
    with pytest.raises(DirectoryRefused, match=r"fs\.file-max"):
        run(world.manager().start())


def test_who_is_refused_a_file_makes_room_and_the_operator_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    disk = OutOfHandlesDisk()
    world.disk = disk
    manager = world.manager()
    run(manager.start())
    logs = [create(manager, number) for number in range(100)]
    for log in logs:
        write(log)
    assert len(manager.context.open_files) == 100
    disk.first, disk.many = disk.openings, 2
    for _ in range(2):
        with pytest.raises(OutOfHandles):
            logs[0].roll()
    assert len(manager.context.open_files) < 75
    assert manager.context.open_files.limit == 75
    told = [record.message for record in caplog.records if "raise its limit" in record.message]
    assert len(told) == 1
    for log in logs:
        log.roll()
        write(log)
    assert manager.online_directories() == manager.directories
