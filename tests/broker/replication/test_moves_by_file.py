"""Moves that copy segments as files, including the active one, also when something happens meanwhile."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.broker.replication.cluster import Cluster, Node, batch_of, eventually, records_of

from ballast_broker import turns
from ballast_broker.replication import mover, movers, moves
from ballast_broker.replication.moves import Stage
from ballast_broker.seams import Bytes
from ballast_broker.storage import adoption
from ballast_broker.storage.disk import RealDisk, RealFile
from ballast_broker.storage.producers import WINDOW
from ballast_broker.storage.segment import CLEANED_SUFFIX
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

T = TypeVar("T")
ORDERS = TopicPartition("orders", 0)
LATER = TopicPartition("orders", 2)
PRODUCER = 77
SIZE = 3000
# At which step of the copying, of segments of which size, to how many records.
CUTS = [
    *((step, "1000000000", 10) for step in range(5)),
    *((step, "70000", left) for step in range(12) for left in (10, 30)),  # of the segment, or of the one copied ahead
]


class CountingDisk(RealDisk):
    def __init__(self) -> None:
        self.copied = 0

    def copy_range(self, *arguments: Any) -> int:
        size = super().copy_range(*arguments)
        self.copied += size
        return size


class SyncedFile(RealFile):
    __slots__ = ("_name", "_syncs")

    def __init__(self, descriptor: int, name: str, syncs: list[str]) -> None:
        super().__init__(descriptor)
        self._name, self._syncs = name, syncs

    def sync(self) -> None:
        super().sync()
        self._syncs.append(self._name)


class SyncingDisk(RealDisk):
    """A disk that notes which files were synced, in order."""

    def __init__(self) -> None:
        self.syncs: list[str] = []

    def open(self, path: str, **how: bool) -> RealFile:
        return self._noted(super().open(path, **how), path)

    def empty_file(self, path: str) -> RealFile:
        return self._noted(super().empty_file(path), path.removesuffix(CLEANED_SUFFIX))

    def _noted(self, file: RealFile, path: str) -> RealFile:
        return SyncedFile(file.descriptor() or 0, Path(path).name, self.syncs)


class Interrupted:
    """Threads that run work at once, and once something else before it."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None
        self.calls_left = 0

    def interrupt(self, calls_left: int, before: Callable[[], None]) -> None:
        self.calls_left, self.before = calls_left, before

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.calls_left -= 1
        if self.before is not None and self.calls_left < 0:
            before, self.before = self.before, None
            before()
        return work()

    def close(self) -> None:
        return


class Hurried:
    """Threads during whose work something is appended each time."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.runs = 0

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.runs += 1
        result = work()
        self.meanwhile()
        await asyncio.sleep(0)
        return result

    def close(self) -> None:
        return


class GatedDisk(RealDisk):
    """Copying waits in its thread while the gate is shut, and its result is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        self.ended: list[BaseException | None] = []

    def copy_range(self, *arguments: Any) -> int:
        self.waiting += 1
        self.gate.wait(30)
        try:
            size = super().copy_range(*arguments)
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)
        return size


async def holding(cluster: Cluster, records: int, **configs: str) -> Node:
    [node] = await cluster.add(1, directories=2)
    cluster.controller.create_topic("orders", [[1]], configs)
    for number in range(records):
        node.produce(ORDERS, value_of(number))
    return node


def value_of(number: int, what: str = "record") -> str:
    return f"{what} {number} ".ljust(SIZE, ".")


def numbered(number: int) -> bytearray:
    """The batch of an idempotent producer."""
    record = Record(None, value_of(number).encode(), 1_000_000 + number)
    return encode_batch([record], producer_id=PRODUCER, producer_epoch=0, base_sequence=number)


def ask(node: Node) -> Path:
    """Ask to move the replica to the directory in which it is not; return that."""
    here = node.log(ORDERS).directory.path
    target = next(path for path in node.directories if str(path) != here)
    assert node.replication.directories.alter({ORDERS: str(target)}) == {ORDERS: ErrorCode.NONE}
    return target


async def moved(node: Node, target: Path) -> None:
    await eventually(lambda: not node.replication.movers.moves)
    assert node.log(ORDERS).directory.path == str(target), node.replication.movers.ended


def entries(folder: str, kind: str) -> bytes:
    """The entries of all indexes, without the preallocated room of the last one."""
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted(Path(folder).glob(f"*.{kind}")))


@pytest.mark.spec("DIR-20", "DIR-28", "DIR-29")
@pytest.mark.parametrize("segment_bytes", ["1000000000", "100000"])
async def test_nearly_all_goes_as_bytes_and_arrives_as_it_was(tmp_path: Path, segment_bytes: str) -> None:
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = CountingDisk()
        node = await holding(cluster, 0, **{"segment.bytes": segment_bytes})
        for number in range(100):
            node.replicas.append(ORDERS, None, numbered(number), 1)
        source = node.log(ORDERS)
        source.active.trim_indexes()
        folder = source.folder.path
        before = {kind: entries(folder, kind) for kind in ("log", "index", "timeindex")}
        assert len(before["index"]) > 300
        expected = records_of(source)
        await moved(node, ask(node))
        log = node.log(ORDERS)
        log.active.trim_indexes()
        assert source.size_bytes - movers.SMALLEST_COPY_BYTES <= disk.copied <= source.size_bytes
        assert {kind: entries(log.folder.path, kind) for kind in before} == before
        assert records_of(log) == expected
        assert log.offset_for_timestamp(1_000_060) == (1_000_060, 60, 0)
        assert log.epochs.entries == source.epochs.entries
        for number in range(100 - WINDOW, 100):  # a producer may have this many in flight
            assert node.replicas.append(ORDERS, None, numbered(number), 1).duplicate, "the producer's state came along"
        node.produce(ORDERS, "afterwards")
        await node.stop()
        await node.start()
        assert records_of(node.log(ORDERS)) == [*expected, "afterwards"]


@pytest.mark.spec("DIR-20")
async def test_what_the_source_knows_of_producers_is_not_read_from_the_copy_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be done on the event loop, batch by batch, even if no producer is idempotent."""
    replayed: list[object] = []
    monkeypatch.setattr(adoption, "replay", lambda *arguments: replayed.append(arguments))
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 100)
        await moved(node, ask(node))
        assert replayed == []


@pytest.mark.spec("DIR-31", "DIR-28")
@pytest.mark.parametrize("segment_bytes", ["1000000000", "100000"])
async def test_it_goes_on_in_the_middle_of_a_segment(tmp_path: Path, segment_bytes: str) -> None:
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = CountingDisk()
        node = await holding(cluster, 50, **{"segment.bytes": segment_bytes})
        cluster.controller.away = True
        target = ask(node)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        first = disk.copied
        assert first >= 50 * SIZE - movers.SMALLEST_COPY_BYTES
        await node.crash()
        cluster.controller.away = False
        await node.start()
        cluster.controller.away = True
        for number in range(50, 110):
            node.produce(ORDERS, value_of(number))
        cluster.controller.away = False
        await moved(node, target)
        log = node.log(ORDERS)
        assert disk.copied - first >= 60 * SIZE - movers.SMALLEST_COPY_BYTES, "what came later went as bytes, too"
        assert disk.copied < log.size_bytes + SIZE, "and nothing twice"
        assert records_of(log) == [value_of(number) for number in range(110)]
        source = next(Path(path) for path in node.directories if path != target)
        [old] = source.glob("orders-0.*-delete")
        log.active.trim_indexes()
        for kind in ("log", "index", "timeindex"):
            assert entries(log.folder.path, kind).startswith(entries(str(old), kind)[:-12]), kind


@pytest.mark.spec("DIR-28")
@pytest.mark.parametrize("again", [0, 30])
@pytest.mark.parametrize(("step", "segment_bytes", "left"), CUTS)
async def test_the_source_is_cut_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, segment_bytes: str, left: int, again: int
) -> None:
    """Truncated far back and perhaps written to again, at each step of the copying: nothing truncated arrives."""
    monkeypatch.setattr(movers, "SEGMENT_PIECE_BYTES", 60_000)
    async with Cluster(tmp_path) as cluster:
        threads = cluster.threads = Interrupted()
        node = await holding(cluster, 50, **{"segment.bytes": segment_bytes})
        expected = [value_of(number) for number in range(left)]

        def cut() -> None:
            node.replicas._replicas[ORDERS].truncate_to(left)
            for number in range(again):
                expected.append(value_of(number, "another"))
                node.produce(ORDERS, expected[-1])

        threads.interrupt(step, cut)
        await moved(node, ask(node))
        assert threads.before is None
        assert records_of(node.log(ORDERS)) == expected
        await node.crash()
        await node.start()
        assert records_of(node.log(ORDERS)) == expected


@pytest.mark.spec("DIR-28")
async def test_the_source_is_cut_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated within the segment that is copied ahead, and written to again: nothing truncated arrives."""
    ends_if_long = turns.Turn.ends_if_long
    cuts: list[int] = []

    async def cut_and_end(turn: turns.Turn) -> bool:
        if not cuts and any(each._ahead is not None for each in node.replication.movers._movers.values()):
            cuts.append(30)
            node.replicas._replicas[ORDERS].truncate_to(30)
            for number in range(30):
                node.produce(ORDERS, value_of(number, "another"))
        return await ends_if_long(turn)

    monkeypatch.setattr(turns.Turn, "ends_if_long", cut_and_end)
    async with Cluster(tmp_path) as cluster:
        cluster.threads = Interrupted()
        node = await holding(cluster, 50, **{"segment.bytes": "70000"})
        await moved(node, ask(node))
        assert cuts
        another = [value_of(number, "another") for number in range(30)]
        assert records_of(node.log(ORDERS)) == [*map(value_of, range(30)), *another]


@pytest.mark.spec("DIR-28")
async def test_what_truncated_records_told_of_producers_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is cut while the producer snapshot at a segment's end is copied, and rolls there no more."""
    finish_files = adoption.SegmentCopy.finish_files
    bases: list[int] = []

    def finish_and_cut(copy: adoption.SegmentCopy) -> None:
        finish_files(copy)
        if not bases:
            bases.append(copy.end_offset)
            node.replicas._replicas[ORDERS].truncate_to(10)
            for number in range(40):
                node.produce(ORDERS, str(number))

    monkeypatch.setattr(adoption.SegmentCopy, "finish_files", finish_and_cut)
    async with Cluster(tmp_path) as cluster:
        cluster.threads = Interrupted()
        node = await holding(cluster, 0, **{"segment.bytes": "70000"})
        for number in range(30):
            node.replicas.append(ORDERS, None, numbered(number), 1)
        await moved(node, ask(node))
        log = node.log(ORDERS)
        [cut_base] = bases
        assert 10 < cut_base < 30
        assert cut_base not in log.bases
        log.flush()
        await node.logs.maintenance.checkpoint_recovery_points()
        await node.crash()
        await node.start()
        for number in range(10, 30):
            assert not node.replicas.append(ORDERS, None, numbered(number), 1).duplicate, "it is in the log no more"


@pytest.mark.spec("DIR-28")
@pytest.mark.parametrize("count", [5, 50])
async def test_a_log_that_was_cut_inside_of_its_last_batch_moves(tmp_path: Path, count: int) -> None:
    """All of that batch is gone, but the log ends where it was cut, as its leader does."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, count)
        node.produce(ORDERS, *map(value_of, range(5)))
        node.replicas._replicas[ORDERS].truncate_to(count + 3)
        await moved(node, ask(node))
        log = node.log(ORDERS)
        assert log.log_end_offset == count + 3
        log.roll()
        assert node.produce(ORDERS, "afterwards") == count + 3
        await node.crash()
        await node.start()
        assert records_of(node.log(ORDERS)) == [*map(value_of, range(count)), "afterwards"]


@pytest.mark.spec("LOG-32", "DIR-20")
@pytest.mark.parametrize("event", ["nothing", "cut", "cancelled"])
async def test_batches_for_a_disk_that_stalls_are_written_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """The mover's appends to its copy must not block the event loop, and with it all other disks."""
    monkeypatch.setattr(movers, "SMALLEST_COPY_BYTES", 1 << 20)  # so it is appended, whatever the simulation says
    threads_of_writes: list[int] = []
    pwrite = RealFile.pwrite

    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 10)
        here = node.log(ORDERS).directory.path

        async def happen() -> None:
            if event == "cut":
                node.replicas._replicas[ORDERS].truncate_to(5)
            elif event == "cancelled":
                assert node.replication.directories.alter({ORDERS: here}) == {ORDERS: ErrorCode.NONE}

        def noted(file: RealFile, data: Bytes, position: int) -> None:
            path = Path(f"/proc/self/fd/{file.descriptor()}").readlink()
            if path.parent.name.endswith("-future") and path.suffix == ".log":
                threads_of_writes.append(threading.get_ident())
                if len(threads_of_writes) == 1 and threads_of_writes != [loop_thread]:
                    asyncio.run_coroutine_threadsafe(happen(), loop).result(30)
            pwrite(file, data, position)

        loop_thread = threading.get_ident()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(RealFile, "pwrite", noted)
        node.logs.directories[1].slow_until = float("inf")
        target = ask(node)
        await eventually(lambda: not node.replication.movers.moves)
        assert threads_of_writes
        assert loop_thread not in threads_of_writes
        log = node.log(ORDERS)
        assert log.directory.path == (here if event == "cancelled" else str(target)), node.replication.movers.ended
        assert records_of(log) == [value_of(number) for number in range(5 if event == "cut" else 10)]


@pytest.mark.spec("DIR-43")
@pytest.mark.parametrize("failing", ["sync", "open"])
async def test_of_a_move_that_its_destination_ends_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Open files would prevent unmounting the disk."""
    broken: list[str] = []
    sync, open_ = RealFile.sync, RealDisk.open

    def break_down(path: str) -> None:
        if "-future" in path and path.endswith(".log"):
            broken.append(path)
            raise OSError(errno.EIO, "Input/output error", path)

    def synced(file: RealFile) -> None:
        break_down(os.readlink(f"/proc/self/fd/{file.descriptor()}"))
        sync(file)

    def opened(disk: RealDisk, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        if Path(path).exists() and any(move.copied_bytes for move in node.replication.movers.moves.values()):
            break_down(path)
        return open_(disk, path, create=create, writable=writable)

    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 200, **{"segment.bytes": "100000"})
        await asyncio.gather(*(asyncio.to_thread(log.flush) for log in node.logs.logs.values()))
        if failing == "sync":
            monkeypatch.setattr(RealFile, "sync", synced)
        else:
            monkeypatch.setattr(RealDisk, "open", opened)
        ask(node)
        await eventually(lambda: not node.replication.movers.moves)
        monkeypatch.undo()
        assert broken
        assert node.replication.movers.ended[-1].stage is Stage.FAILED
        await node.replication.movers.close()
        for segment in node.log(ORDERS).segments:
            segment.close()
        handles = [link_of(name) for name in os.listdir("/proc/self/fd")]
        assert [path for path in handles if f"{tmp_path}/" in path and "orders-0" in path] == []


def link_of(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:  # of the listing itself
        return ""


@pytest.mark.spec("DIR-43")
async def test_a_part_copied_ahead_that_cannot_be_closed_holds_up_no_other_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    close = RealFile.close

    def closed(file: RealFile) -> None:
        path = os.readlink(f"/proc/self/fd/{file.descriptor()}") if (file.descriptor() or -1) >= 0 else ""
        close(file)
        if path.endswith(CLEANED_SUFFIX):
            refused.append(path)
            raise OSError(errno.EIO, "Input/output error", path)

    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = GatedDisk()
        [node] = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]] * 3, {"segment.bytes": "100000"})
        of_same_mover = TopicPartition("orders", 2)
        assert node.log(of_same_mover).directory.path == node.log(ORDERS).directory.path
        for number in range(100):
            node.produce(ORDERS, value_of(number))
        here = node.log(ORDERS).directory.path
        monkeypatch.setattr(RealFile, "close", closed)
        disk.gate.clear()
        target = ask(node)
        assert node.replication.directories.alter({of_same_mover: str(target)}) == {of_same_mover: ErrorCode.NONE}
        await eventually(lambda: disk.waiting == 2, "two pieces are being copied")
        assert node.replication.directories.alter({ORDERS: here}) == {ORDERS: ErrorCode.NONE}
        disk.gate.set()
        await eventually(lambda: not node.replication.movers.moves)
        assert refused
        assert node.log(of_same_mover).directory.path == str(target)


@pytest.mark.spec("DIR-23")
@pytest.mark.parametrize(("threads", "limit"), [(1, None), (2, None), (2, "500000000")])
async def test_a_second_segment_is_copied_ahead_where_another_mover_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, limit: str | None
) -> None:
    monkeypatch.setattr(movers, "SMALLEST_COPY_BYTES", 65_536)  # whatever the simulation says
    ahead: list[int] = []
    begun = mover.Mover.begin_ahead

    def begin(self: mover.Mover, move: moves.Move, copy: adoption.CopyAhead) -> None:
        ahead.append(copy.segment.base_offset)
        begun(self, move, copy)

    monkeypatch.setattr(mover.Mover, "begin_ahead", begin)
    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=threads) as cluster:
        disk = cluster.disk = CountingDisk()
        node = await holding(cluster, 100, **{"segment.bytes": "100000"})
        if limit is not None:
            cluster.controller.configure(4, "1", {"replica.alter.log.dirs.io.max.bytes.per.second": limit})
        source = node.log(ORDERS)
        await moved(node, ask(node))
        # The last one is so small that it is appended.
        assert ahead == (source.bases[1:-1] if threads == 2 and limit is None else [])
        assert disk.copied <= source.size_bytes, "and nothing twice"
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]
        assert left_ahead(tmp_path) == []


async def agreed_while_another_is_copied(cluster: Cluster, disk: GatedDisk) -> Node:
    """Two moves of one mover: of `LATER`, from the third disk to the first, and of `ORDERS`, to the second."""
    cluster.disk = disk
    [node] = await cluster.add(1, directories=3, num_replica_alter_log_dirs_threads=2)
    cluster.controller.create_topic("orders", [[1]] * 3, {"segment.bytes": "100000"})
    for number in range(100):
        node.produce(ORDERS, value_of(number))
    node.produce(LATER, "record")
    first, second, third = node.directories
    assert [node.log(each).directory.path for each in (ORDERS, LATER)] == [str(first), str(third)]
    cluster.controller.away = True
    alter, moving = node.replication.directories.alter, node.replication.movers
    assert alter({LATER: str(first)}) == {LATER: ErrorCode.NONE}
    await eventually(lambda: moving.moves[LATER].stage is Stage.ASKING)
    disk.gate.clear()
    disk.waiting = 0
    assert alter({ORDERS: str(second)}) == {ORDERS: ErrorCode.NONE}
    await eventually(lambda: disk.waiting == 2, "two pieces are being copied")
    cluster.controller.away = False
    await eventually(lambda: moving.moves[LATER].stage is Stage.AGREED)
    return node


class GatedSync:
    """Syncing a file whose path contains this waits in its thread until the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
        self.gate = threading.Event()
        self.begun: list[str] = []
        sync = RealFile.sync

        def synced(file: RealFile) -> None:
            path = os.readlink(f"/proc/self/fd/{file.descriptor()}")
            if of in path:
                self.begun.append(path)
                self.gate.wait(30)
            sync(file)

        monkeypatch.setattr(RealFile, "sync", synced)


@pytest.mark.spec("DIR-23", "DIR-24")
async def test_what_was_copied_ahead_goes_with_its_move_to_another_mover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk falls silent under the move that the mover is just working on."""
    async with Cluster(tmp_path) as cluster:
        disk = GatedDisk()
        node = await agreed_while_another_is_copied(cluster, disk)
        moving = node.replication.movers
        syncing = GatedSync(monkeypatch, "/orders-2")
        disk.gate.set()
        await eventually(lambda: syncing.begun)
        assert len(left_ahead(tmp_path)) == 1
        disk.gate.clear()
        moving._hand_over(node.logs.directories[2])
        syncing.gate.set()
        await eventually(lambda: list(moving.moves) == [ORDERS])
        disk.gate.set()
        await eventually(lambda: not moving.moves)
        assert node.log(ORDERS).directory.path == str(node.directories[1])
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]
        assert left_ahead(tmp_path) == []


@pytest.mark.spec("DIR-28")
@pytest.mark.parametrize("ended", [False, True])
async def test_nothing_is_copied_ahead_of_a_segment_that_is_cut(tmp_path: Path, ended: bool) -> None:
    """Its copy can never be complete: a thread would ask for the rest again and again."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 10)
        log, destination = node.log(ORDERS), node.logs.directories[1]
        ahead = adoption.CopyAhead(log.active, node.logs.create_future(ORDERS, destination))
        move = moves.Move(ORDERS, log.topic_id, log.directory.path, destination.path)
        node.replicas._replicas[ORDERS].truncate_to(1)
        if ended:
            move.enter(moves.Stage.CANCELLED)
        else:
            move.note_truncation(1)
        async with asyncio.timeout(20):
            await node.replication.movers.copy_ahead(move, ahead)
        ahead.close()


@pytest.mark.spec("DIR-23", "DIR-28")
async def test_a_segment_that_was_cut_while_it_was_synced_does_not_count_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk falls silent under another move of the mover that has it synced, so that one does not wait for it."""
    async with Cluster(tmp_path) as cluster:
        disk = GatedDisk()
        node = await agreed_while_another_is_copied(cluster, disk)
        moving = node.replication.movers
        syncing = GatedSync(monkeypatch, f"{node.directories[1]}/orders-0")
        disk.gate.set()
        await eventually(lambda: syncing.begun)
        cluster.controller.away = True
        moving._hand_over(node.logs.directories[2])
        node.replicas._replicas[ORDERS].truncate_to(10)
        for number in range(50):
            node.produce(ORDERS, str(number))
        await eventually(lambda: moving.moves[ORDERS].stage is Stage.ASKING)
        syncing.gate.set()
        await eventually(lambda: list(moving.moves) == [ORDERS])
        cluster.controller.away = False
        await eventually(lambda: not moving.moves)
        assert node.stored(ORDERS) == [*map(value_of, range(10)), *map(str, range(50))]
        assert [Path(path).name for path in syncing.begun].count(f"{0:020d}.log") >= 2


@pytest.mark.spec("DIR-31")
@pytest.mark.parametrize("crash", [False, True])
async def test_what_was_copied_ahead_when_the_broker_stopped_goes_at_its_start(tmp_path: Path, crash: bool) -> None:
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = GatedDisk()
        node = await holding(cluster, 100, **{"segment.bytes": "100000"})
        await eventually(lambda: not len(node.replication.assignments))
        disk.gate.clear()
        disk.waiting = 0
        target = ask(node)
        await eventually(lambda: disk.waiting == 2, "two pieces are being copied")
        ending = asyncio.create_task(node.crash() if crash else node.stop())
        await asyncio.sleep(0)
        disk.gate.set()
        await ending
        assert len(left_ahead(tmp_path)) == 1
        await node.start()
        await moved(node, target)
        assert left_ahead(tmp_path) == []
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]


@pytest.mark.spec("DIR-45")
async def test_what_was_copied_ahead_gives_its_room_back_to_a_move_that_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the move would wait for room that its own file takes."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 100, **{"segment.bytes": "100000"})
        source = node.log(ORDERS)
        second = source.segments[1].size
        room = [True]

        def has_room(_: movers.Movers, move: moves.Move, size: int) -> bool:
            first_is_there = len(node.logs.future_logs[ORDERS].segments) > 1
            if first_is_there and size == second:  # it asks for the whole of the second
                room[0] = not left_ahead(tmp_path)
                return room[0]
            return True

        monkeypatch.setattr(movers.Movers, "has_room", has_room)
        await moved(node, ask(node))
        assert room == [True]
        assert "would have less than its reserve" not in str(node.replication.movers.ended[-1].paused)
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]


@pytest.mark.spec("DIR-45")
async def test_room_for_what_is_left_of_a_segment_is_room_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 100, **{"segment.bytes": "100000"})
        monkeypatch.setattr(movers.Movers, "has_room", lambda _, move, size: size <= movers.TAIL_READ_BYTES)
        await moved(node, ask(node))
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]


@pytest.mark.spec("DIR-45")
async def test_a_move_that_lacks_room_in_the_middle_of_a_segment_is_shown_as_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also reserves no room for later segments."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 100, **{"segment.bytes": "100000"})
        answers = itertools.chain([True, True], itertools.repeat(False))  # for the first segment, and one ahead
        with monkeypatch.context() as patched:
            patched.setattr(movers.Movers, "has_room", lambda *_: next(answers))
            target = ask(node)
            [move] = node.replication.movers.moves.values()
            await eventually(lambda: move.paused)
            assert "reserve" in (move.paused or "")
            await eventually(lambda: not left_ahead(tmp_path))
            assert node.logs.future_logs[ORDERS].log_end_offset == 0
        await moved(node, target)
        assert move.paused is None
        assert node.stored(ORDERS) == [value_of(number) for number in range(100)]


def left_ahead(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.cleaned") if not path.parent.name.endswith("-delete")]


@pytest.mark.spec("DIR-29")
@pytest.mark.parametrize("configs", [{}, {"flush.messages": "1"}, {"segment.bytes": "100000"}])
async def test_a_partition_that_is_written_to_without_a_break_moves(tmp_path: Path, configs: dict[str, str]) -> None:
    """The copy need not have caught up at any moment: with a log that is busy enough it never does."""
    async with Cluster(tmp_path) as cluster:
        threads = Hurried()
        cluster.threads = threads
        node = await holding(cluster, 60)
        cluster.controller.configure(2, ORDERS.topic, configs)
        numbers = itertools.count(60)

        def produce() -> None:  # at once, whatever else waits for its turn
            epoch = node.state(ORDERS).leader_epoch
            node.log(ORDERS).append_as_leader(batch_of(value_of(next(numbers))), epoch, now_ms=2**60)

        threads.meanwhile = produce
        threads.runs = 0
        target = ask(node)
        await eventually(lambda: not node.replication.movers.moves or threads.runs > 500)
        threads.meanwhile = lambda: None
        assert node.log(ORDERS).directory.path == str(target), threads.runs
        assert node.stored(ORDERS) == [value_of(number) for number in range(next(numbers))]


@pytest.mark.spec("DIR-29", "LOG-30")
async def test_a_swap_waits_for_who_is_syncing_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would make a producer send again what is in the log. Who comes later is held, and then served."""
    gate, sync = threading.Event(), RealFile.sync
    waiting: list[str] = []
    threads: list[int] = []

    def synced(file: RealFile) -> None:
        path = os.readlink(f"/proc/self/fd/{file.descriptor()}")
        threads.append(threading.get_ident())
        if path.startswith(f"{source.folder.path}/"):
            waiting.append(path)
            gate.wait(30)
        sync(file)

    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 0, **{"flush.messages": "1"})
        await node.replicas.append_own(ORDERS, batch_of("first"), 1)
        cluster.controller.away = True
        target = ask(node)
        move = node.replication.movers.moves[ORDERS]
        await eventually(lambda: move.stage is Stage.ASKING)
        source = node.log(ORDERS)
        monkeypatch.setattr(RealFile, "sync", synced)
        appends = [node.replicas.append_own(ORDERS, batch_of(value), 1) for value in ("syncing", "queued")]
        await eventually(lambda: waiting)
        cluster.controller.away = False
        await eventually(lambda: move.flushed)  # and waits
        appends += [node.replicas.append_own(ORDERS, batch_of(value), 1) for value in ("held", "last")]
        gate.set()
        await moved(node, target)
        assert [info.last_offset for info in await asyncio.gather(*appends)] == [1, 2, 3, 4]
        assert threading.get_ident() not in threads
        log = node.log(ORDERS)
        assert log.recovery_point == 5
        assert not log.slow_appends
        assert records_of(log) == ["first", "syncing", "queued", "held", "last"]


@pytest.mark.spec("DIR-29")
async def test_a_log_whose_segments_become_smaller_while_it_moves(tmp_path: Path) -> None:
    """The copy then has other segments than the log; how much is left is reported all the same."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 400)
        cluster.controller.away = True
        target = ask(node)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        cluster.controller.configure(2, "orders", {"segment.bytes": "1000000"})
        for number in range(400, 550):
            node.produce(ORDERS, value_of(number))
        source = node.log(ORDERS)
        assert source.bases == [0, 400], "it began a new one where the copy ended"
        assert source.active.size > moves.FINAL_PIECE_BYTES
        cluster.controller.away = False
        await moved(node, target)
        assert node.stored(ORDERS) == [value_of(number) for number in range(550)]


@pytest.mark.spec("DIR-31")
async def test_a_broker_that_stops_waits_for_the_piece_that_is_being_copied(tmp_path: Path) -> None:
    """A thread that went on with closed files would write to whatever is opened next."""
    async with Cluster(tmp_path) as cluster:
        disk = cluster.disk = GatedDisk()
        node = await holding(cluster, 60)
        disk.gate.clear()
        disk.waiting = 0
        ask(node)
        await eventually(lambda: disk.waiting == 1)
        stopping = asyncio.create_task(node.replication.movers.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not stopping.done()
        disk.ended.clear()
        disk.gate.set()
        await stopping
        assert disk.ended == [None]


@pytest.mark.spec("DIR-28", "DIR-31")
async def test_a_copy_that_knows_more_than_its_source_after_a_crash_is_cut(tmp_path: Path) -> None:
    """A loss of power takes the end of the current log, but not of the copy that was flushed already."""
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 60)
        cluster.controller.away = True
        target = ask(node)
        await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
        folder = Path(node.log(ORDERS).folder.path)
        await node.crash()
        lose_half(folder)
        cluster.controller.away = False
        await node.start()
        node.produce(ORDERS, "another history")
        await moved(node, target)
        assert node.stored(ORDERS) == [*map(value_of, range(30)), "another history"]


def lose_half(folder: Path) -> None:
    """Of 60 batches in one segment."""
    [file] = folder.glob("*.log")
    with file.open("r+b") as opened:
        opened.truncate(30 * (file.stat().st_size // 60) + 5)
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()


@pytest.mark.spec("DIR-29", "DIR-43")
async def test_a_copy_that_could_not_be_written_to_its_disk_ends_its_own_move_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk reports the error once: attributed to another move, this one's flush would succeed, and it be swapped."""
    first, second = TopicPartition("first", 0), TopicPartition("second", 0)
    sync, broken = RealFile.sync, asyncio.Event()
    loop = asyncio.get_running_loop()

    def synced(file: RealFile) -> None:
        path = os.readlink(f"/proc/self/fd/{file.descriptor()}")
        if "first-0" in path and "-future" in path and path.endswith(".log") and not broken.is_set():
            loop.call_soon_threadsafe(broken.set)
            raise OSError(errno.EIO, "Input/output error", path)
        sync(file)

    async with Cluster(tmp_path, num_replica_alter_log_dirs_threads=1) as cluster:
        [node] = await cluster.add(1, directories=3)
        source, *targets = [str(path) for path in node.directories]
        for partition in (first, second):
            node.logs.set_preferred_directory(partition, source)
            cluster.controller.create_topic(partition.topic, [[1]])
            for number in range(50):
                node.produce(partition, value_of(number))
        monkeypatch.setattr(RealFile, "sync", synced)
        cluster.controller.away = True
        assert set(node.replication.directories.alter({first: targets[0]}).values()) == {ErrorCode.NONE}
        await eventually(broken.is_set, "the copy of the first cannot be synced")
        assert set(node.replication.directories.alter({second: targets[1]}).values()) == {ErrorCode.NONE}
        cluster.controller.away = False
        await eventually(lambda: not node.replication.movers.moves, "both moves end")
        ended = {move.topic_partition: move.stage for move in node.replication.movers.ended}
        assert ended == {first: Stage.FAILED, second: Stage.DONE}
        assert [node.log(each).directory.path for each in (first, second)] == [source, targets[1]]
        assert len(records_of(node.log(first))) == 50


@pytest.mark.spec("DIR-29")
async def test_what_was_synced_while_it_was_copied_is_not_synced_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        cluster.disk = disk = SyncingDisk()
        node = await holding(cluster, 20, **{"segment.bytes": "20000"})
        sealed = [segment.base_offset for segment in node.log(ORDERS).segments[:-1]]
        assert len(sealed) >= 2
        disk.syncs.clear()
        await moved(node, ask(node))
        expected = {f"{base:020d}{kind}": 1 for base in sealed for kind in (".log", ".index", ".timeindex")}
        assert {name: disk.syncs.count(name) for name in expected} == expected
        log = node.log(ORDERS)
        assert log.recovery_point == log.end_offset == 20


@pytest.mark.spec("DIR-28", "DIR-29")
async def test_what_was_cut_since_it_was_synced_is_synced_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        cluster.disk = disk = SyncingDisk()
        node = await holding(cluster, 20, **{"segment.bytes": "20000"})
        await eventually(lambda: not len(node.replication.assignments))
        cluster.controller.away = True  # nothing is swapped before it answers
        target = ask(node)
        [move] = node.replication.movers.moves.values()
        await eventually(lambda: move.stage is Stage.ASKING)
        source = node.log(ORDERS)
        into = source.segments[1].base_offset + 1
        source.truncate_to(into)
        move.note_truncation(into)
        disk.syncs.clear()
        cluster.controller.away = False
        await moved(node, target)
        assert f"{source.segments[1].base_offset:020d}.log" in disk.syncs
        assert f"{source.segments[0].base_offset:020d}.log" in disk.syncs
        assert node.log(ORDERS).recovery_point == into
