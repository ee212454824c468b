"""A node without file descriptors neither exits nor gives wrong answers: it does its work later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.raft.memory import LocalNetwork, LoopClock, MemoryLog
from tests.broker.raft.test_loading_snapshots import SNAPSHOT, piece, snapshot_of_nothing
from tests.broker.raft.test_spoilt_records import Applied, records_of_the_leader
from tests.broker.raft.test_store import Threads, batch, open_store
from tests.broker.seams import SeededRandom
from tests.broker.storage.test_out_of_handles import OutOfHandlesDisk

from ballast_broker.raft import wire
from ballast_broker.raft.control_records import voters_batch
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.messages import BeginEpoch, FetchReply, SnapshotId
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.terms import DEFAULT_TIMEOUTS, Persisted, Timeouts
from ballast_broker.raft.voters import DYNAMIC, Endpoint, Voter, voter_set
from ballast_broker.storage.disk import RealFile
from ballast_wire.errors import ApiError, ErrorCode


class CountedFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: CountingDisk, file: RealFile, path: str) -> None:
        super().__init__(os.dup(file._descriptor), path)
        file.close()
        self._disk = disk
        disk.open_files += 1

    def close(self) -> None:
        if self._descriptor >= 0:
            self._disk.open_files -= 1
        super().close()


class CountingDisk(OutOfHandlesDisk):
    """A disk with a limit of open files."""

    def __init__(self) -> None:
        super().__init__()
        self.open_files = 0
        self.limit = 1 << 30
        self.refusals = 0
        self.until_refusal = 0

    def _opens(self, path: str) -> None:
        self.until_refusal -= 1
        if self.open_files >= self.limit or self.until_refusal == 0:
            self.refusals += 1
            raise OSError(self.code, os.strerror(self.code), path)

    def open(self, path: str, **keywords: Any) -> RealFile:
        return CountedFile(self, super().open(path, **keywords), path)

    def empty_file(self, path: str) -> RealFile:
        return CountedFile(self, super().empty_file(path), path)

    def let_nothing_be_opened(self) -> None:
        self.limit, self.refusals = self.open_files, 0

    def let_all_be_opened(self) -> None:
        self.limit = 1 << 30


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - the condition is nobody's event
            await asyncio.sleep(0.005)


class Reader(Applied):
    store: MetadataStore
    loaded = 0

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        assert self.store.read_snapshot(snapshot, 0, 1000) is not None
        self.loaded += 1


class Node:
    """One of three voters, with the leader's replies to its fetches; or the only voter."""

    def __init__(self, disk: CountingDisk, driver: RaftDriver, applied: Reader) -> None:
        self.disk, self.driver, self.applied = disk, driver, applied
        self.replies: list[FetchReply] = []  # the second says where its log diverges
        self.asked: list[int] = []

    async def answer(self, api_key: int, version: int, request: Any, origin: Any) -> Any:
        if api_key == wire.FETCH_SNAPSHOT:
            return piece(request, 2, 5, snapshot_of_nothing())
        if api_key != wire.FETCH:
            raise ConnectionResetError
        fetch = wire.decode_fetch(request)
        self.asked.append(fetch.offset)
        diverges = fetch.last_epoch == 4 and len(self.replies) > 1
        if fetch.offset == 6:
            await asyncio.Event().wait()
        return wire.encode_fetch_reply(self.replies[diverges], 0)

    def follow(self) -> None:
        self.driver.core.handle_begin_epoch(self.driver.now(), BeginEpoch(5, 2))
        self.driver.run()


@asynccontextmanager
async def node(
    path: Path,
    voters: tuple[int, ...] = (1, 2, 3),
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    earlier: int = 0,
    **log_config: Any,
) -> AsyncIterator[Node]:
    """`earlier`: how many records of epoch 4 are in the log."""
    disk, network, applied = CountingDisk(), LocalNetwork(), Reader()
    manager, store = await open_store(path, disk, **log_config)
    applied.store = store
    if earlier:
        store.append(batch(earlier), 4, 1)
        store.persist(Persisted(4, -1, -1))
    driver = RaftDriver(
        node_id=1,
        quorum=wire.Quorum("cluster", {each: Endpoint(f"n{each}", 9093) for each in voters}),
        store=store,
        listener=applied,
        network=network,
        clock=LoopClock(),
        threads=Threads(),
        random=SeededRandom(),
        timeouts=timeouts,
    )
    made = Node(disk, driver, applied)
    network.listen("n2", 9093, made.answer)
    try:
        yield made
    finally:
        disk.let_all_be_opened()
        await driver.stop()
        await manager.shutdown()
    assert not applied.failures
    assert disk.open_files == 0


@pytest.mark.spec("LOG-35", "CLU-02")
async def test_a_vote_is_stored_with_the_descriptor_that_is_kept_for_it(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        store = found.driver.store
        store.persist(Persisted(3, 2, -1))
        found.disk.let_nothing_be_opened()
        for epoch in (4, 5):
            store.persist(Persisted(epoch, 3, -1))
        found.disk.let_all_be_opened()
        assert found.disk.refusals >= 2
        assert store.load_persisted() == Persisted(5, 3, -1)


@pytest.mark.spec("LOG-35", "CLU-02")
async def test_what_a_follower_cannot_store_is_asked_for_again(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        sound = records_of_the_leader()
        found.replies = [FetchReply(5, 2, high_watermark=6, records=sound)]
        await found.driver.start()
        found.follow()
        found.disk.let_nothing_be_opened()
        await until(lambda: len(found.asked) > 2 or found.applied.failures)
        assert not found.applied.failures
        assert found.asked == [0] * len(found.asked)
        found.disk.let_all_be_opened()
        await until(lambda: found.applied.batches == sound)


@pytest.mark.spec("LOG-35", "CLU-02")
async def test_a_follower_that_could_store_only_a_part_goes_on_after_that_part(tmp_path: Path) -> None:
    """The next batch needs a new segment. The voters are in the part that is stored."""
    voters = voter_set(DYNAMIC, [Voter(each, directory=UUID(int=each)) for each in (1, 2, 3)])
    named = voters_batch(voters, 1, with_version=True)
    log = MemoryLog()
    for epoch, each in [(4, batch(4)), (5, named), (5, batch(2))]:
        log.append_as_leader(bytearray(each), epoch, now_ms=1, origin="raft")
    async with node(tmp_path, earlier=4, segment_bytes=len(batch(4)) + len(named)) as found:
        records = log.read(4, 1 << 20, upper_offset=8).read()
        found.replies = [FetchReply(5, 2, high_watermark=8, records=records)]
        await found.driver.start()
        found.disk.let_nothing_be_opened()
        found.follow()
        await until(lambda: found.driver.end_offset == 6 or found.applied.failures)
        found.disk.let_all_be_opened()
        await until(lambda: found.asked[-1:] == [6] or found.applied.failures)
        assert found.disk.refusals
        assert found.driver.store.voters == voters
        assert found.driver.applied_offset == 6


@pytest.mark.spec("LOG-35", "CLU-02")
async def test_a_log_that_diverges_is_cut_once_something_can_be_opened(tmp_path: Path) -> None:
    async with node(tmp_path, earlier=2) as found:
        driver, sound = found.driver, records_of_the_leader()
        found.replies = [
            FetchReply(5, 2, high_watermark=6, records=sound),
            FetchReply(5, 2, high_watermark=6, diverging=(3, 0)),
        ]
        await driver.start()
        found.disk.let_nothing_be_opened()
        found.follow()
        await until(lambda: (found.asked and found.disk.refusals > 3) or found.applied.failures)
        assert not found.applied.failures
        assert driver.end_offset == 2, "nothing was cut by half"
        found.disk.let_all_be_opened()
        found.follow()
        await until(lambda: found.applied.batches == sound)


@pytest.mark.spec("LOG-35", "CLU-03")
@pytest.mark.parametrize("refused", [1, 2, 3, 4, 5, 8])
async def test_a_snapshot_is_taken_though_at_one_moment_nothing_can_be_opened(tmp_path: Path, refused: int) -> None:
    async with node(tmp_path, earlier=2) as found:
        found.replies = [FetchReply(5, 2, snapshot=SNAPSHOT)]
        await found.driver.start()
        found.follow()
        found.disk.until_refusal = refused
        await until(lambda: found.asked[-1:] == [SNAPSHOT.offset] or found.applied.failures)
        assert found.disk.refusals == 1
        assert found.applied.loaded == 1
        assert (found.driver.store.start_offset, found.driver.store.snapshots) == (SNAPSHOT.offset, [SNAPSHOT])


@pytest.mark.spec("LOG-35", "CLU-03")
@pytest.mark.parametrize("refused", [6, 7])
async def test_a_node_whose_log_was_cut_by_half_ends(tmp_path: Path, refused: int) -> None:
    async with node(tmp_path, earlier=2) as found:
        found.replies = [FetchReply(5, 2, snapshot=SNAPSHOT)]
        await found.driver.start()
        found.follow()
        found.disk.until_refusal = refused
        await until(lambda: found.applied.failures)
        assert found.applied.loaded == 0
        found.applied.failures.clear()


@pytest.mark.spec("LOG-35", "CLU-03")
async def test_a_leader_that_cannot_write_leads_no_more_until_it_can(tmp_path: Path) -> None:
    """Otherwise it would lead the quorum but refuse all changes, and there would be no active controller."""
    async with node(tmp_path, (1,), replace(DEFAULT_TIMEOUTS, fetch_s=0.2), segment_bytes=400) as found:
        driver = found.driver
        await driver.start()
        await until(lambda: driver.is_leader)
        epoch = driver.epoch
        found.disk.let_nothing_be_opened()
        begun, refused = [], None
        while refused is None:  # until a segment is full
            try:
                begun.append(driver.append(batch(3))[1])
            except ApiError as error:
                refused = error.code
        assert refused is ErrorCode.NOT_CONTROLLER
        assert not driver.is_leader
        assert [future.exception() is not None for future in begun] == [True] * len(begun)
        await until(lambda: driver.epoch > epoch + 1 or found.applied.failures)  # it has tried again, in vain
        found.disk.let_all_be_opened()
        await until(lambda: driver.is_leader or found.applied.failures)
        assert not found.applied.failures
        last = await driver.append(batch(3))[1]
        await until(lambda: driver.applied_offset == last + 1)
