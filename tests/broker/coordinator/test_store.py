"""Loading the offsets topic while its log moves, with real logs on real files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.broker.api.test_produce_by_thread import Gate
from tests.broker.replication.cluster import Cluster, RealClock, eventually

from ballast_broker.coordinator.store import OFFSETS_TOPIC, OUTSIDE, CoordinatorStore
from ballast_broker.storage.disk import RealFile, RealThreads
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)


def spoil(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.spec("DIR-29", "CLI-04")
async def test_a_log_that_moves_while_it_is_loaded_is_read_on_where_it_is_now(tmp_path: Path) -> None:
    """The files of a long log are gone from the old place before it is loaded, which looked like a disk failure."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]], {"segment.bytes": "1000"})
        keys = [b"%d" % number for number in range(100)]
        for key in keys:
            node.replicas.append(OFFSETS, None, encode_batch([Record(key, b"v" * 100, 1)]), -1)
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        records = store.read_all(0)
        read = [(await anext(records))[0]]
        assert node.replication.directories.alter({OFFSETS: str(node.directories[1])})[OFFSETS] is ErrorCode.NONE
        await eventually(lambda: not node.replication.movers.moves)
        assert node.log(OFFSETS).directory.path == str(node.directories[1])
        await node.logs.maintenance.remove_everything_waiting()
        read += [key async for key, *_ in records]
        assert read == keys
        assert all(directory.online for directory in node.logs.directories)


@pytest.mark.spec("CLI-04", "LOG-32")
async def test_many_logs_that_cannot_be_read_leave_threads_to_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may lead fifty partitions on a disk that hangs."""
    answers, loop_thread, pread = threading.Event(), threading.get_ident(), RealFile.pread

    def wait_and_pread(file: RealFile, size: int, position: int) -> bytes:
        assert threading.get_ident() == loop_thread or answers.wait(30)
        return pread(file, size, position)

    async with Cluster(tmp_path) as cluster:
        cluster.threads.close()
        cluster.threads = RealThreads(8)
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]] * 40)
        hung, well = node.logs.directories
        led = [n for n in range(40) if node.log(TopicPartition(OFFSETS_TOPIC, n)).directory is hung]
        assert len(led) == 20
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        for number in led:
            assert await store.append(number, [(b"key", b"value")], lambda committed: None) is ErrorCode.NONE
        monkeypatch.setattr(RealFile, "pread", wait_and_pread)
        reads = [asyncio.ensure_future(anext(store.read_all(number))) for number in led]
        try:
            async with asyncio.timeout(5):
                assert await well.threads.run(lambda: "well") == "well"
        finally:
            answers.set()
            assert await asyncio.gather(*reads) == [(b"key", b"value")] * 20


@pytest.mark.spec("CLI-05")
async def test_what_is_written_in_a_transaction_is_not_stable_before_its_end(tmp_path: Path) -> None:
    """Otherwise the cleaner would keep an offset that is aborted later in place of the valid one."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]])
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        for producer in (OUTSIDE, (7, 0), (7, 0)):
            batch = store.batch_of([(b"key", b"value")], producer)
            assert await store.append_batch(0, batch, lambda committed: None) is ErrorCode.NONE
        log = node.log(OFFSETS)
        assert (log.high_watermark, log.last_stable_offset) == (3, 1)
        marker = render_marker(7, 0, 0, committed=False, now_ms=1)
        await node.replicas.append_own(OFFSETS, marker, -1)
        assert log.last_stable_offset == 4
        assert [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, 4)] == [(1, 3)]


@pytest.mark.spec("CLI-04", "CLI-05")
async def test_what_is_committed_at_once_is_not_told_before_what_waited_for_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        node, other = await cluster.add(1, 2)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1, 2]])
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        told: list[tuple[str, bool]] = []
        await other.crash(noticed=False)
        first = asyncio.ensure_future(
            store.append(0, [(b"key", b"first")], lambda committed: told.append(("first", committed)))
        )
        await asyncio.sleep(0.05)
        assert told == []
        cluster.controller.lose(2)  # the waiting task has been woken, but has not run yet
        appending = store.append(0, [(b"key", b"second")], lambda committed: told.append(("second", committed)))
        assert await appending is ErrorCode.NONE
        assert await first is ErrorCode.NONE
        assert told == [("first", True), ("second", True)]
        third = store.append(0, [(b"key", b"third")], lambda committed: told.append(("third", committed)))
        with pytest.raises(StopIteration) as at_once:
            next(third.__await__())
        assert at_once.value.value is ErrorCode.NONE
        assert told[2:] == [("third", True)]


@pytest.mark.spec("CLI-04", "CLI-05")
async def test_what_is_written_in_pieces_is_told_before_what_lies_behind_it(tmp_path: Path) -> None:
    """Otherwise a tombstone in it would also remove what has been written since."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]], {"max.message.bytes": "1000"})
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        told: list[str] = []
        ends = [(b"%d" % number, None) for number in range(60)]
        forgetting = store.append_pieces(0, ends, lambda some, _: told.append(f"{some.start} on"))
        pieces = [f"{some.start} on" for some in store.pieces(0, ends)]
        assert len(pieces) > 1
        first = asyncio.ensure_future(forgetting)
        assert await store.append(0, [(b"0", b"value")], lambda _: told.append("behind")) is ErrorCode.NONE
        assert await first is ErrorCode.NONE
        assert told == [*pieces, "behind"]


@pytest.mark.spec("CLI-04", "LOG-32")
async def test_what_a_disk_takes_too_long_to_write_is_answered_in_time_and_counts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]])
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=50, load_bytes=1)
        node.log(OFFSETS).directory.slow_until = asyncio.get_running_loop().time() + 3600
        gate, told = Gate(monkeypatch), list[bool]()
        try:
            async with asyncio.timeout(10):
                error = await store.append(0, [(b"key", b"value")], told.append)
            assert (error, told) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
        finally:
            gate.open.set()
        await eventually(lambda: told == [True])


@pytest.mark.spec("LOG-41", "CLI-04")
@pytest.mark.parametrize("position", [-2, -9], ids=["a value", "a length"])
async def test_what_a_disk_has_spoilt_since_is_neither_believed_nor_passed_over(tmp_path: Path, position: int) -> None:
    """Otherwise a group would get an offset that it never committed, or an older one."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1]])
        for value in (b"first", b"later"):
            node.replicas.append(OFFSETS, None, encode_batch([Record(b"key", value, 1)]), -1)
        store = CoordinatorStore(OFFSETS_TOPIC, node.replicas, RealClock(), timeout_ms=5000, load_bytes=1)
        spoil(Path(node.log(OFFSETS).active.path()), position)
        with pytest.raises(ApiError) as told:
            [found async for found in store.read_all(0)]
        assert told.value.code is ErrorCode.CORRUPT_MESSAGE
