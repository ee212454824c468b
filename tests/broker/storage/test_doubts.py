"""Which log a checkpointed start offset belongs to, after crashes at every disk operation and after other programs."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from tests.broker.storage.conftest import NOW_MS
from tests.broker.storage.managing import CLUSTER, TOPIC_ID, World, partition
from tests.contract.nodes import CLUSTER_ID, Kafka
from tests.sim.disk import Crashed, SimDisk, SimFile, Store

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import Clock, Random
from ballast_broker.storage import checkpoint
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.errors import DirectoryRefused
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_operator.kafka_client import Admin
from ballast_wire.errors import ApiError
from ballast_wire.records import Record, encode_batch, iterate_batches

T = TypeVar("T")
FOLDER = "/disk/d0"
STARTS = f"{FOLDER}/{checkpoint.LOG_START_OFFSETS}"
PARTITION = partition()
CONFIG = LogConfig(segment_bytes=250)


class Offline(Exception):
    """The only directory is offline."""


class AtOnce:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


class FullDisk(SimDisk):
    """A disk that, from one operation on, has no room for more bytes, or for more files."""

    def __init__(self, store: Store, lacks: str, full_from: int) -> None:
        super().__init__(store)
        self._lacks = lacks
        self._full_from = full_from

    def _full(self, path: str) -> None:
        if self.calls >= self._full_from:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def touch(self, path: str, growth: int = 0, *, reading: bool = False) -> None:
        super().touch(path, growth, reading=reading)
        if self._lacks == "bytes" and growth > 0:
            self._full(path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimFile:
        if self._lacks == "files" and create and self._store.find(path) is None:
            self._full(path)
        return super().open(path, create=create, writable=writable)

    def make_directory(self, path: str) -> bool:
        if self._lacks == "files" and self._store.find(path) is None:
            self._full(path)
        return super().make_directory(path)


class Story:
    """A topic that is deleted, re-created and truncated, and what it may look like at any moment."""

    def __init__(self, clock: Clock, random_: Random, seed: int) -> None:
        self.clock = clock
        self.store = Store(random.Random(seed), clock.wall_ms)
        self.disk = SimDisk(self.store)
        self.random = random_
        self.operations = 0
        self.ends = {0}
        self.starts = {0}
        self.gone = {True}

    def manager(self) -> LogManager:
        config = StorageConfig(node_id=1, log_dirs=(FOLDER,), cluster_id=CLUSTER)
        return LogManager(self.disk, self.clock, AtOnce(), config, self.random)

    async def tell(self) -> None:
        manager = self.manager()
        await manager.start()
        self.make(manager)
        self.write(manager, 9)
        await self.delete_records(manager, 7)
        manager.logs[PARTITION].flush()
        await manager.maintenance.checkpoint_progress()
        for cut in (False, True):
            self.delete(manager)
            self.make(manager)
            self.write(manager, 8)
            if cut:
                await self.delete_records(manager, 5)
                self.truncate(manager, 3)
                self.write(manager, 6)
                await self.delete_records(manager, 4)
            await self.delete_records(manager, 7)
        await manager.shutdown()
        self.goes_on(manager)

    @staticmethod
    def goes_on(manager: LogManager) -> None:
        if not manager.online_directories():
            raise Offline

    def make(self, manager: LogManager) -> None:
        self.gone, self.ends, self.starts = {True, False}, {0}, {0}
        manager.get_or_create(PARTITION, TOPIC_ID, CONFIG, is_new=True)
        self.goes_on(manager)
        self.gone = {False}

    def delete(self, manager: LogManager) -> None:
        self.gone = {True, False}
        manager.delete(PARTITION)
        self.goes_on(manager)
        self.gone = {True}

    def write(self, manager: LogManager, count: int) -> None:
        log = manager.logs[PARTITION]
        for _ in range(count):
            self.ends = {log.log_end_offset, log.log_end_offset + 1}
            batch = encode_batch([Record(b"k", b"v", NOW_MS)])
            log.append_as_leader(batch, 0, now_ms=NOW_MS)
            self.ends = {log.log_end_offset}
        log.update_high_watermark(log.log_end_offset)

    def truncate(self, manager: LogManager, offset: int) -> None:
        log = manager.logs[PARTITION]
        self.ends = set(range(offset, log.log_end_offset + 1))  # segment by segment
        self.starts = self.starts | {min(offset, log.log_start_offset)}
        start = min(offset, log.log_start_offset)
        log.truncate_to(offset)
        self.ends, self.starts = {offset}, {start}

    async def delete_records(self, manager: LogManager, offset: int) -> None:
        """Delete records; a crash may undo that until a checkpoint has the new start."""
        self.starts = self.starts | {offset}
        manager.logs[PARTITION].advance_log_start_offset(offset)
        await manager.maintenance.checkpoint_start_offsets()
        self.goes_on(manager)
        self.starts = {offset}

    async def full_from(self, operation: int, lacks: str) -> bool:
        """Play the story on a disk that fills at this operation; whether it filled before the end."""
        self.disk = FullDisk(self.store, lacks, operation)
        try:
            await self.tell()
            return False
        except (Offline, ApiError, DirectoryRefused):
            return True
        finally:
            self.operations = self.disk.calls
            self.disk.kill()
            self.disk = SimDisk(self.store)

    async def crash_at(self, operation: int) -> bool:
        """Crash at this operation; whether the story got that far."""
        self.disk.crash_at = operation
        try:
            await self.tell()
            return False
        except Crashed:
            return True
        finally:
            self.disk.kill()
            self.disk = SimDisk(self.store)

    def saw(self, log: Log | None) -> bool:
        if log is None:
            return True in self.gone
        ends = self.ends | ({0} if True in self.gone else set())
        return log.log_end_offset in ends and log.log_start_offset in self.starts | (
            {0} if self.gone != {False} else set()
        )


NewStory = Callable[..., Story]


@pytest.fixture
def story(world: World) -> NewStory:
    def make(seed: int = 1) -> Story:
        return Story(world.clock, world.random, seed)

    return make


def crashes(tell: Callable[[int], Awaitable[bool]]) -> int:
    """Run `tell(operation)` for each disk operation until there are no more; return how many there were."""

    async def all_of_them() -> int:
        operation = 1
        while await tell(operation):
            operation += 1
        return operation

    return asyncio.run(all_of_them())


@pytest.mark.spec("LOG-40", "LOG-41", "TOP-24")
def test_a_log_begins_where_it_did_whenever_the_broker_is_killed(story: NewStory) -> None:
    async def tell(operation: int) -> bool:
        told = story()
        crashed = await told.crash_at(operation)
        manager = told.manager()
        await manager.start()
        log = manager.logs.get(PARTITION)
        assert told.saw(log), (operation, log and (log.log_start_offset, log.log_end_offset), told.__dict__)
        return crashed

    assert crashes(tell) > 300


@pytest.mark.spec("DIR-42", "LOG-41")
@pytest.mark.parametrize("lacks", ["bytes", "files"])
def test_a_disk_that_is_full_harms_nothing_that_was_written_before(story: NewStory, lacks: str) -> None:
    async def tell(operation: int) -> bool:
        told = story()
        was_full = await told.full_from(operation, lacks)
        manager = told.manager()
        await manager.start()
        log = manager.logs.get(PARTITION)
        assert told.saw(log), (operation, log and (log.log_start_offset, log.log_end_offset), told.__dict__)
        if log is not None:
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                found = log.read(offset, 1, upper_offset=log.log_end_offset)
                assert found.next_offset == offset + 1
                offset = found.next_offset
                found.release()
            told.write(manager, 3)
        return was_full or operation < told.operations

    assert crashes(tell) > 300


@pytest.mark.spec("LOG-40", "LOG-41", "CLI-05")
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_what_another_program_says_in_between_is_believed(story: NewStory, end: str) -> None:
    """An older release, or Apache Kafka, writes the checkpoints, leaves our marks in place, and is killed."""

    async def tell(operation: int) -> bool:
        told = story()
        crashed = await told.crash_at(operation)
        before = checkpoint.read_offsets(told.disk, STARTS).get(PARTITION, 0)
        manager = told.manager()
        await manager.start()
        log = manager.logs.get(PARTITION)
        if log is None or not log.log_end_offset:
            return crashed
        base = log.bases[0]
        deleted = next(offset for offset in range(log.log_end_offset, base, -1) if offset != before)
        marks = [name for name in told.disk.list(log.folder.path) if name.endswith(".outdated")]
        told.disk.kill()
        told.disk = SimDisk(told.store)
        told.disk.write_atomically(STARTS, checkpoint.render_offsets({PARTITION: deleted}))
        if end == "stopped":
            told.disk.write_atomically(f"{FOLDER}/.kafka_cleanshutdown", b"{}")
        again = told.manager()
        await again.start()
        log = again.logs[PARTITION]
        assert log.log_start_offset == deleted, (operation, marks)
        assert not [name for name in told.disk.list(log.folder.path) if checkpoint.LOG_START_OFFSETS in name]
        return crashed

    assert crashes(tell) > 300


class Meanwhile(SimDisk):
    """Something happens as the checkpoint of log starts is written: before the file is replaced, or behind it."""

    happens: Callable[[], None] | None = None
    when = ""

    def write_atomically(self, path: str, data: bytes) -> None:
        happens, self.happens = (self.happens, None) if path == STARTS else (None, self.happens)
        if happens and self.when == "before":
            happens()
        super().write_atomically(path, data)
        if happens and self.when == "behind":
            happens()


@pytest.mark.spec("LOG-40", "LOG-41")
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("what", ["cut", "made again"])
def test_what_happens_while_a_checkpoint_is_written_is_not_lost(story: NewStory, what: str, when: str) -> None:
    async def tell() -> None:
        told = story()
        disk = told.disk = Meanwhile(told.store)
        disk.when = when
        manager = told.manager()
        await manager.start()
        told.make(manager)
        told.write(manager, 9)
        await told.delete_records(manager, 3)

        def happens() -> None:
            if what == "cut":
                told.truncate(manager, 5)
            else:
                told.delete(manager)
                told.make(manager)
            told.write(manager, 6)
            happened.append(what)

        happened: list[str] = []
        disk.happens = happens
        await told.delete_records(manager, 7)
        assert happened == [what]
        disk.kill()
        told.disk = SimDisk(told.store)
        again = told.manager()
        await again.start()
        log = again.logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == ((5, 11) if what == "cut" else (0, 6))

    asyncio.run(tell())


@pytest.mark.spec("LOG-22", "LOG-41")
@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_gives_back_nothing_that_was_deleted(story: NewStory, seed: int) -> None:
    """The checkpoint is on disk, but the removal of the segments is not yet."""

    async def tell() -> None:
        told = story(seed)
        manager = told.manager()
        await manager.start()
        told.make(manager)
        log = manager.logs[PARTITION]
        for _ in range(3):
            told.write(manager, 3)
            log.roll()
        log.flush()
        log.advance_log_start_offset(6)
        assert log.delete_old_segments(NOW_MS) == 2
        await manager.maintenance.checkpoint_everything()
        told.disk.kill()
        told.store.lose_power()
        told.disk = SimDisk(told.store)
        again = told.manager()
        await again.start()
        log = again.logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (6, 9)

    asyncio.run(tell())


@pytest.mark.java
@pytest.mark.timeout(180)
@pytest.mark.spec("LOG-40", "CLI-05")
def test_what_apache_kafka_deleted_in_between_stays_deleted(world: World, tmp_path: Path) -> None:
    """Ballast is killed before a checkpoint covers the new log; Kafka continues with it, and is killed as well."""
    more = {"log.flush.start.offset.checkpoint.interval.ms": "200", "controlled.shutdown.enable": "false"}
    node = Kafka(tmp_path / "node", more)
    bootstrap = f"localhost:{node.port}"
    directories = node.log_dirs
    topic_partition = KafkaTopicPartition("t", 0)

    def kafka() -> Any:
        node.await_ready()
        deadline = time.monotonic() + 60
        while True:
            try:
                return Admin(bootstrap_servers=bootstrap)
            except KafkaError:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def kill() -> None:
        node._process.kill()
        node._process.wait(10)

    async def another_log() -> str:
        """As a replica that comes back from another directory: it holds the same, and its name was here before."""
        config = StorageConfig(node_id=1, log_dirs=tuple(directories), cluster_id=CLUSTER_ID)
        manager = LogManager(RealDisk(), world.clock, AtOnce(), config, world.random)
        world.managers.append(manager)
        await manager.start()
        log = manager.logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (3, 9)
        topic_id, data = log.topic_id, log.read(3, 1 << 20, upper_offset=9).read()
        manager.delete(PARTITION)
        again = manager.get_or_create(PARTITION, topic_id, LogConfig(), is_new=True)
        for _ in range(3):
            again.append_as_leader(encode_batch([Record(b"k", b"new", NOW_MS)]), 0, now_ms=NOW_MS)
        for batch in iterate_batches(memoryview(data)):
            again.append_as_follower(batch.bytes_view)
        again.flush()
        world.kill(manager)
        return again.folder.path

    async def look() -> Log:
        config = StorageConfig(node_id=1, log_dirs=tuple(directories), cluster_id=CLUSTER_ID)
        manager = LogManager(RealDisk(), world.clock, AtOnce(), config, world.random)
        world.managers.append(manager)
        await manager.start()
        return manager.logs[PARTITION]

    def delete_records(admin: Any, offset: int) -> None:
        admin.delete_records({topic_partition: offset})
        wanted = f"\nt 0 {offset}\n"
        deadline = time.monotonic() + 30
        while not any(wanted in (Path(each) / checkpoint.LOG_START_OFFSETS).read_text() for each in directories):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    try:
        admin = kafka()
        admin.create_topics([NewTopic("t", 1, 1)])
        producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
        for _ in range(9):
            producer.send("t", b"value", partition=0).get(30)
        producer.close()
        delete_records(admin, 3)
        admin.close()
        kill()
        folder = asyncio.run(another_log())
        mark = Path(folder) / f"{checkpoint.LOG_START_OFFSETS}.3.0.outdated"
        assert mark.exists()
        node._process = node._serve()
        admin = kafka()
        delete_records(admin, 5)
        admin.close()
        kill()
    finally:
        node.stop()
    assert mark.exists(), "Apache Kafka passes it over"
    log = asyncio.run(look())
    assert (log.log_start_offset, log.log_end_offset) == (5, 9)
    assert not mark.exists()
