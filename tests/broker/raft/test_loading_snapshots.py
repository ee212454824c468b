"""A follower that loads the leader's snapshot while leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker.raft.memory import LocalNetwork, LoopClock, MemoryDisk, MemoryLog
from tests.broker.seams import SeededRandom

from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.records import record
from ballast_broker.raft import wire
from ballast_broker.raft.control_records import HEADER_RECORDS, snapshot_footer_batch, snapshot_header_batch
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.messages import BeginEpoch, FetchReply, SnapshotId
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.voters import Endpoint
from ballast_wire.errors import ErrorCode
from ballast_wire.records import iterate_batches

SNAPSHOT = SnapshotId(6, 5)


class SlowReader:
    """Loads a snapshot until the test lets it finish."""

    def __init__(self) -> None:
        self.loading, self.go_on = asyncio.Event(), asyncio.Event()
        self.loads: list[str] = []

    def committed(self, batches: bytes) -> Iterator[None]:
        self.loads.append(f"applies {next(iterate_batches(memoryview(batches))).base_offset}")
        yield

    def leader_changed(self, leader: int, epoch: int) -> None:
        pass

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        self.loads.append(f"begins {snapshot.offset}")
        self.loading.set()
        await self.go_on.wait()
        self.loads.append(f"ends {snapshot.offset}")

    def failed(self, error: Exception) -> None:
        self.loads.append(f"fails: {error!r}")


class HeldThreads:
    """Runs work once the test lets it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def run(self, work: Callable[[], Any]) -> Any:
        await self.go_on.wait()
        return work()


def batch(count: int) -> bytearray:
    return data_batch([record("NoOpRecord") for _ in range(count)], 1)


def snapshot_of_nothing() -> bytes:
    header = snapshot_header_batch(1, 2, SNAPSHOT.epoch, None)
    return bytes(header + snapshot_footer_batch(2, HEADER_RECORDS, SNAPSHOT.epoch))


def follower(
    log: MemoryLog, network: LocalNetwork, threads: HeldThreads, reader: SlowReader, disk: MemoryDisk | None = None
) -> RaftDriver:
    """Node 1 of three, as a follower."""
    return RaftDriver(
        node_id=1,
        quorum=wire.Quorum("cluster", {each: Endpoint(f"n{each}", 9093) for each in (1, 2, 3)}),
        store=MetadataStore(disk or MemoryDisk(), "/meta", log),
        listener=reader,
        network=network,
        clock=LoopClock(),
        threads=threads,
        random=SeededRandom(),
    )


def leads(driver: RaftDriver, leader: int, epoch: int) -> None:
    driver.core.handle_begin_epoch(driver.now(), BeginEpoch(epoch, leader))
    driver.run()


def piece(request: Any, node: int, epoch: int, whole: bytes) -> Any:
    wanted = wire.only_partition(request).snapshot_id
    snapshot = SnapshotId(wanted.end_offset, wanted.epoch)
    return wire.snapshot_response(snapshot, node, epoch, ErrorCode.NONE, len(whole), 0, whole)


@pytest.mark.spec("CLU-02", "CLU-03")
async def test_what_follows_a_snapshot_is_asked_for_only_once_what_came_before_is_flushed() -> None:
    """The log was longer than the snapshot, and the leader changes while it is read: the leader takes everything before
    the fetch offset for flushed, but a power loss could undo it."""
    log, network, threads, reader = MemoryLog(), LocalNetwork(), HeldThreads(), SlowReader()
    log.append_as_leader(batch(10), 3, now_ms=1, origin="raft")
    whole = snapshot_of_nothing()
    following = MemoryLog()
    following.truncate_fully_and_start_at(SNAPSHOT.offset)
    following.append_as_leader(batch(3), 6, now_ms=1, origin="raft")
    asked: list[tuple[str, int, int]] = []

    def listen(node: int, answer: Callable[[int], FetchReply | None]) -> None:
        async def handle(api_key: int, version: int, request: Any, origin: Any) -> Any:
            if api_key == wire.FETCH_SNAPSHOT:
                return piece(request, node, 5, whole)
            fetch = wire.decode_fetch(request)
            asked.append((f"n{node}", fetch.epoch, fetch.offset))
            assert fetch.offset <= log.flushed, "that is not on stable storage"
            reply = answer(fetch.offset)
            if reply is None:
                await asyncio.Event().wait()
            assert reply is not None
            return wire.encode_fetch_reply(reply, 0)

        network.listen(f"n{node}", 9093, handle)

    listen(2, lambda offset: FetchReply(5, 2, snapshot=SNAPSHOT) if offset == 10 else None)
    listen(3, lambda offset: FetchReply(6, 3, records=following.read(6, 1 << 20, upper_offset=9).read()))
    driver = follower(log, network, threads, reader)
    await driver.start()
    async with asyncio.timeout(10):
        leads(driver, 2, 5)
        await reader.loading.wait()
        threads.go_on.clear()
        leads(driver, 3, 6)
        while log.log_end_offset < 9:  # noqa: ASYNC110
            await asyncio.sleep(0)
        leads(driver, 2, 7)
        for _ in range(20):
            await asyncio.sleep(0)
        assert asked[-1] == ("n3", 6, 6)
        threads.go_on.set()
        while asked[-1] != ("n2", 7, 9):  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader.go_on.set()
        await driver.stop()


@pytest.mark.spec("CLU-02", "CLU-03")
async def test_one_snapshot_is_read_after_the_other() -> None:
    """The next leader has a later snapshot while the first, whose file is gone by then, is still read: that could crash
    the node, or finish last and undo the later one."""
    log, network, reader = MemoryLog(), LocalNetwork(), SlowReader()
    whole = snapshot_of_nothing()
    log.append_as_leader(batch(1), 3, now_ms=1, origin="raft")
    epochs = {2: 5, 3: 6}
    later = {2: SNAPSHOT, 3: SnapshotId(20, 6)}

    def listen(node: int) -> None:
        async def handle(api_key: int, version: int, request: Any, origin: Any) -> Any:
            if api_key == wire.FETCH_SNAPSHOT:
                return piece(request, node, epochs[node], whole)
            if wire.decode_fetch(request).offset >= later[node].offset:
                await asyncio.Event().wait()
            return wire.encode_fetch_reply(FetchReply(epochs[node], node, snapshot=later[node]), 0)

        network.listen(f"n{node}", 9093, handle)

    listen(2)
    listen(3)
    driver = follower(log, network, HeldThreads(), reader)
    await driver.start()
    async with asyncio.timeout(10):
        leads(driver, 2, 5)
        await reader.loading.wait()
        leads(driver, 3, 6)
        for _ in range(100):
            await asyncio.sleep(0)
        assert reader.loads == ["begins 6"]
        reader.go_on.set()
        while "ends 20" not in reader.loads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert reader.loads == ["begins 6", "ends 6", "begins 20", "ends 20"]
        assert (log.log_start_offset, driver.applied_offset) == (20, 20)
        await driver.stop()


@pytest.mark.spec("CLU-02", "CLU-03")
async def test_nothing_is_applied_before_the_snapshot_of_the_start_is_read() -> None:
    """A leader that finds the node listening already tells it about itself and the high watermark."""
    log, network, reader, disk = MemoryLog(), LocalNetwork(), SlowReader(), MemoryDisk()
    log.truncate_fully_and_start_at(SNAPSHOT.offset)
    log.append_as_leader(batch(3), 5, now_ms=1, origin="raft")
    whole = snapshot_of_nothing()
    disk.write_atomically(f"/meta/{SNAPSHOT.offset:020d}-{SNAPSHOT.epoch:010d}.checkpoint", whole)
    asked: list[int] = []

    async def handle(api_key: int, version: int, request: Any, origin: Any) -> Any:
        fetch = wire.decode_fetch(request)
        if asked:
            await asyncio.Event().wait()
        asked.append(fetch.offset)
        return wire.encode_fetch_reply(FetchReply(6, 2, high_watermark=9), 0)

    network.listen("n2", 9093, handle)
    driver = follower(log, network, HeldThreads(), reader, disk)
    async with asyncio.timeout(10):
        starting = asyncio.ensure_future(driver.start())
        await reader.loading.wait()
        leads(driver, 2, 6)
        while driver.high_watermark < 9:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert reader.loads == ["begins 6"]
        reader.go_on.set()
        await starting
        while driver.applied_offset < 9:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert reader.loads == ["begins 6", "ends 6", "applies 6"]
        await driver.stop()


@pytest.mark.spec("CLU-03")
@pytest.mark.parametrize("spoilt", [b"", snapshot_of_nothing()[:-1], snapshot_of_nothing()[:-1] + b"\x77"])
async def test_a_log_is_not_given_up_for_a_snapshot_that_is_spoilt(
    spoilt: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's disk may be corrupt: ask again and keep the own log meanwhile. It is logged once."""
    log, network, threads, reader = MemoryLog(), LocalNetwork(), HeldThreads(), SlowReader()
    log.append_as_leader(batch(4), 3, now_ms=1, origin="raft")
    answers: list[int] = []

    async def handle(api_key: int, version: int, request: Any, origin: Any) -> Any:
        if api_key == wire.FETCH_SNAPSHOT:
            answers.append(log.log_end_offset)
            return piece(request, 2, 5, spoilt if len(answers) < 4 else snapshot_of_nothing())
        if wire.decode_fetch(request).offset == SNAPSHOT.offset:
            await asyncio.Event().wait()
        return wire.encode_fetch_reply(FetchReply(5, 2, snapshot=SNAPSHOT), 0)

    network.listen("n2", 9093, handle)
    driver = follower(log, network, threads, reader)
    await driver.start()
    async with asyncio.timeout(10):
        leads(driver, 2, 5)
        await reader.loading.wait()
        reader.go_on.set()
        while log.log_start_offset < SNAPSHOT.offset or driver.core.loading is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await driver.stop()
    assert answers == [4, 4, 4, 4]
    assert reader.loads == [f"begins {SNAPSHOT.offset}", f"ends {SNAPSHOT.offset}"]
    [told] = [each.getMessage() for each in caplog.records if "spoilt" in each.getMessage()]
    assert told.startswith(f"snapshot {SNAPSHOT} came spoilt from node 2")
