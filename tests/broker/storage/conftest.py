"""Provides logs on real files, with a clock that the test sets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from tests.broker.seams import SeededRandom
from tests.broker.storage.managing import World
from tests.sim.disk import SimDisk, Store

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import Disk, Threads
from ballast_broker.storage.context import LogContext
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.loading import create_log, load_log
from ballast_broker.storage.log import Log
from ballast_broker.storage.producers import ProducerState
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, encode_batch, iterate_batches

T = TypeVar("T")
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")
PARTITION = TopicPartition("topic", 0)
NOW_MS = 1_750_000_000_000
ReadAll = Callable[..., list[Record]]


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class Inline:
    """`Threads` that runs work in place."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class Bench:
    """One partition folder that is opened again and again. Its directory's blocking work runs in `threads`."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.disk: Disk = RealDisk()
        self.root = path
        self.folder = path / str(PARTITION)
        self.removed: list[str] = []
        self.flushes: list[Log] = []
        self.context = LogContext(
            self.disk,
            self.clock,
            remove_later=lambda paths, _: self.removed.extend(paths),
            flush_later=self.flushes.append,
        )
        self.threads: Threads = Inline()
        self.directory = LogDirectory(str(path), self.disk, self)
        self.opened: list[Log] = []

    async def run(self, work: Callable[[], T]) -> T:
        return await self.threads.run(work)

    def on_a_disk_that_forgets(self, seed: int) -> Store:
        self.store = Store(random.Random(seed), self.clock.wall_ms)
        self.restart()
        self.disk.make_directory(self.directory.path)
        for parent in Path(self.directory.path).parents:
            self.disk.sync_directory(str(parent))
        return self.store

    def restart(self, crash_at: int | None = None) -> None:
        """Give the disk to a new process, which dies at its `crash_at`-th operation."""
        disk = SimDisk(self.store)
        disk.crash_at = crash_at
        self.opened.clear()
        self.disk = disk
        self.context = LogContext(disk, self.clock, remove_later=lambda *_: None, flush_later=lambda _: None)

    def create(self, **config: Any) -> Log:
        log = create_log(self.context, self.directory, str(self.folder), PARTITION, TOPIC_ID, LogConfig(**config))
        self.opened.append(log)
        return log

    def load(
        self,
        *,
        clean: bool,
        recovery_point: int = 0,
        start_offset: int = 0,
        cleaned_to: int = 0,
        no_copy_below: int = 0,
        **config: Any,
    ) -> Log:
        log = load_log(
            self.context,
            self.directory,
            str(self.folder),
            PARTITION,
            LogConfig(**config),
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            cleaned_to=cleaned_to,
            no_copy_below=no_copy_below,
        )
        self.opened.append(log)
        return log

    def release(self) -> None:
        for log in self.opened:
            for segment in log.segments:
                segment.close()

    def append(
        self, log: Log, count: int = 1, *, size: int = 20, timestamp: int = NOW_MS, epoch: int = 0, **batch: Any
    ) -> int:
        """Append one batch of `count` records whose values contain their offsets; return its first offset."""
        first = log.log_end_offset
        records = [
            Record(b"k%d" % (first + n), (b"v%d" % (first + n)).ljust(size, b"."), timestamp) for n in range(count)
        ]
        info = log.append_as_leader(encode_batch(records, **batch), epoch, now_ms=self.clock.now_ms)
        assert info.first_offset == first
        log.update_high_watermark(log.log_end_offset)
        return first


def records_of(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Everything from `offset` on, read slice by slice."""
    offset = log.log_start_offset if offset is None else offset
    result = []
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes, upper_offset=log.log_end_offset)
        data = memoryview(found.read())
        found.release()
        if not data:
            break
        for batch in iterate_batches(data):
            result += [record for record in decode_records(batch) if record.offset >= offset]
        assert found.next_offset > offset
        offset = found.next_offset
    return result


def position_of(log: Log, offset: int) -> int:
    """The position of the batch with this offset in the first segment's file."""
    found = log.segments[0].find(offset)
    assert found is not None
    return found[0]


def state_of(log: Log, producer: int) -> ProducerState:
    """The state of a producer that the log must know."""
    state = log.producers.get(producer)
    assert state is not None, f"producer {producer} is unknown"
    return state


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.release()


@pytest.fixture
def new_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Bench]]:
    """Makes one bench for each example of a property test."""
    made: list[Bench] = []

    def make() -> Bench:
        made.append(Bench(tmp_path_factory.mktemp("bench")))
        return made[-1]

    yield make
    for each in made:
        each.release()


@pytest.fixture
def read_all() -> Callable[..., list[Record]]:
    return records_of


@pytest.fixture
def world(tmp_path: Path, bench: Bench) -> Iterator[World]:
    made = World(tmp_path / "broker", bench.clock, SeededRandom(5))
    yield made
    for manager in made.managers:
        made.kill(manager)
    made.threads.close()
