"""Index lookups on a slow disk do not block the event loop (LOG-32)."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, RealClock

from ballast_broker.coordinator.store import CoordinatorStore
from ballast_broker.replication.offsets import LATEST, MAX_TIMESTAMP
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult
from ballast_broker.seams import NotInMemory
from ballast_broker.storage.disk import RealDisk, RealFile
from ballast_broker.storage.segment import UNKNOWN
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, encode_batch, iterate_batches

COLD, WELL = TopicPartition("cold", 0), TopicPartition("well", 0)
WAITS_MS = 20_000


class ColdDisk(RealDisk):
    """Files under `cold` are in memory once a thread has read them, which waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = "//"
        self.let_go = threading.Event()
        self.keeps_nothing = False
        self.in_memory: set[tuple[str, int, int]] = set()
        self.read_by_threads = 0
        self.waited_on_loop = 0
        self.loop_thread = threading.get_ident()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        real = super().open(path, create=create, writable=writable)
        if writable or not path.startswith(self.cold):
            return real
        descriptor, real._descriptor = real.descriptor(), -1  # the descriptor has one owner
        return ColdFile(descriptor or 0, path, self)


class ColdFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, descriptor: int, path: str, disk: ColdDisk) -> None:
        super().__init__(descriptor, path)
        self._disk = disk

    def _pread_now(self, size: int, position: int) -> bytes:
        if (self._path, position, size) not in self._disk.in_memory:
            raise NotInMemory(self._path, position, size)
        return os.pread(self._descriptor, size, position)

    def pread(self, size: int, position: int) -> bytes:
        disk = self._disk
        if threading.get_ident() != disk.loop_thread:
            assert disk.let_go.wait(30)
            disk.read_by_threads += 1
            if not disk.keeps_nothing:
                disk.in_memory.add((self._path, position, size))
            return os.pread(self._descriptor, size, position)
        found = super().pread(size, position)
        disk.waited_on_loop += (self._path, position, size) not in disk.in_memory
        return found


async def two_partitions(cluster: Cluster) -> tuple[Node, ColdDisk]:
    """In a directory each; of the one on the disk that is cold from now on nothing is remembered."""
    cluster.disk = disk = ColdDisk()
    (node,) = await cluster.add(1, directories=2)
    for topic in ("cold", "well"):
        cluster.controller.create_topic(topic, [[1]])
        for number in range(100):
            node.produce(TopicPartition(topic, 0), str(number))
    log = node.logs.logs[COLD]
    assert log.directory is not node.logs.logs[WELL].directory
    log.roll()
    node.produce(COLD, "the last")
    log.known_positions.clear()
    for segment in log.segments:
        segment.close()
    disk.cold = log.directory.path
    return node, disk


def entry(cluster: Cluster, partition: TopicPartition, offset: int) -> FetchEntry:
    return FetchEntry(partition, cluster.topic_id(partition.topic), offset, max_bytes=1000)


def records_in(node: Node, partition: TopicPartition) -> list[Record]:
    log = node.log(partition)
    records: list[Record] = []
    while len(records) < log.log_end_offset:
        found = log.read(len(records), 1_000_000, upper_offset=log.log_end_offset)
        records += [record for batch in iterate_batches(memoryview(found.read())) for record in decode_records(batch)]
        found.release()
    return records


def first_of(result: FetchResult) -> str:
    assert result.slice is not None
    (batch, *_) = iterate_batches(memoryview(result.slice.read()))
    result.release()
    return next(bytes(record.value or b"").decode() for record in decode_records(batch))


@pytest.mark.spec("LOG-32")
async def test_a_disk_that_does_not_answer_holds_up_who_reads_there_and_nobody_else(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        entries = [entry(cluster, COLD, 50), entry(cluster, WELL, 50)]
        both = node.replicas.fetch(FetchParams(max_wait_ms=WAITS_MS), entries)
        assert isinstance(both, list)
        assert (both[0].slice, both[0].cold, first_of(both[1])) == (None, True, "50")
        alone = node.replicas.fetch(FetchParams(max_wait_ms=WAITS_MS), entries[:1])
        assert isinstance(alone, asyncio.Future), "not again and again"
        node.produce(WELL, "meanwhile")
        assert disk.waited_on_loop == 0
        disk.let_go.set()
        results = await alone
        assert disk.waited_on_loop == 0
        assert first_of(results[0]) == "50"
        assert disk.read_by_threads > 0


@pytest.mark.spec("LOG-32", "CLI-04")
async def test_a_coordinator_reads_its_log_likewise(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        node.replicas.append(COLD, None, encode_batch([Record(key=b"key", value=b"value", timestamp=1)]), 1)
        store = CoordinatorStore("cold", node.replicas, RealClock(), timeout_ms=WAITS_MS, load_bytes=1000)
        disk.let_go.set()
        assert [found async for found in store.read_all(0)] == [(b"key", b"value")]
        assert disk.waited_on_loop == 0
        assert disk.read_by_threads > 0


@pytest.mark.spec("LOG-32")
async def test_an_offset_is_looked_up_by_its_time_likewise(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        timestamps = [record.timestamp for record in records_in(node, COLD)]
        node.log(COLD).segments[0].max_timestamp = UNKNOWN
        node.log(COLD).known_positions.clear()
        disk.in_memory.clear()
        disk.waited_on_loop = 0
        asked = [timestamps[50], MAX_TIMESTAMP, timestamps[-1] + 1]
        cold = [node.replicas.list_offset(COLD, each) for each in asked]
        assert all(isinstance(each, asyncio.Task) for each in cold)
        well = node.replicas.list_offset(WELL, 0)
        assert not isinstance(well, asyncio.Task)
        assert not isinstance(node.replicas.list_offset(COLD, LATEST), asyncio.Task), "nothing is to be read for that"
        assert well.offset == 0
        disk.let_go.set()
        found = [await each for each in cold if isinstance(each, asyncio.Task)]
        assert disk.waited_on_loop == 0
        assert [each.timestamp for each in found] == [timestamps[50], max(timestamps), -1]
        assert found[0].offset == timestamps.index(timestamps[50])
        assert disk.read_by_threads > 0


@pytest.mark.spec("LOG-32")
async def test_who_asks_for_a_time_is_told_of_what_became_of_the_partition_meanwhile(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        found = node.replicas.list_offset(COLD, 0)
        assert isinstance(found, asyncio.Task)
        node.logs.logs[COLD].directory.fail(OSError(errno.EIO, "EIO"))
        disk.let_go.set()
        with pytest.raises(ApiError) as refused:
            await found
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.spec("LOG-32", "DIR-41")
async def test_a_topic_deleted_while_an_offset_is_looked_up_costs_nobody_the_disk(tmp_path: Path) -> None:
    """Its files may be gone by then, which must not count as a failure of their directory."""
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        found = node.replicas.list_offset(COLD, 0)
        assert isinstance(found, asyncio.Task)
        log = node.log(COLD)
        cluster.controller.delete_topic("cold")
        disk.remove_tree(log.folder.path)
        disk.let_go.set()
        with pytest.raises(ApiError) as refused:
            await found
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert log.directory.online


@pytest.mark.spec("LOG-32")
async def test_what_no_memory_keeps_is_waited_for(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        disk.keeps_nothing = True
        disk.let_go.set()
        results = await asyncio.wait_for(
            _as_future(node.replicas.fetch(FetchParams(max_wait_ms=WAITS_MS), [entry(cluster, COLD, 50)])), 10
        )
        assert first_of(results[0]) == "50"
        assert disk.waited_on_loop > 0


@pytest.mark.spec("LOG-32")
async def test_who_does_not_wait_is_told_of_nothing_and_asks_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, disk = await two_partitions(cluster)
        disk.let_go.set()

        def ask() -> FetchResult:
            results = node.replicas.fetch(FetchParams(), [entry(cluster, COLD, 50)])
            assert isinstance(results, list)
            return results[0]

        answer = ask()
        while answer.cold:
            await asyncio.sleep(0)
            answer = ask()
        assert disk.waited_on_loop == 0
        assert first_of(answer) == "50"


@pytest.mark.spec("LOG-32")
@pytest.mark.parametrize("answer", [BlockingIOError(errno.EAGAIN, "EAGAIN"), 3, 0])
def test_what_the_kernel_does_not_have_all_of_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: OSError | int
) -> None:
    disk, path = a_file_of(tmp_path, answer, monkeypatch)
    file = disk.open(path, writable=False)
    with disk.not_waiting():
        with pytest.raises(NotInMemory) as lacking:
            file.pread(4, 2)
        assert (lacking.value.path, lacking.value.position, lacking.value.size) == (path, 2, 4)
        with pytest.raises(NotInMemory):
            disk.read_bytes(path)
    assert file.pread(4, 2) == b"cdef"
    assert disk.read_bytes(path) == b"abcdefgh"
    file.close()


@pytest.mark.spec("LOG-32")
def test_a_file_system_that_cannot_say_what_it_has_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = a_file_of(tmp_path, OSError(errno.EOPNOTSUPP, "EOPNOTSUPP"), monkeypatch)
    with disk.not_waiting():
        assert disk.read_bytes(path) == b"abcdefgh"


def a_file_of(tmp_path: Path, answer: OSError | int, monkeypatch: pytest.MonkeyPatch) -> tuple[RealDisk, str]:
    """A file for which the kernel gives this answer to non-blocking reads."""

    def preadv(_: int, __: object, ___: int, flags: int = 0) -> int:
        assert flags == os.RWF_NOWAIT
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "preadv", preadv)
    path = tmp_path / "file"
    path.write_bytes(b"abcdefgh")
    return RealDisk(), str(path)


async def _as_future(found: list[FetchResult] | asyncio.Future[list[FetchResult]]) -> list[FetchResult]:
    return found if isinstance(found, list) else await found
