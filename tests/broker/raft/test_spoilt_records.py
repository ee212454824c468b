"""A follower of the quorum whose leader's disk or network corrupts what it sends, and what a node notes in case its own
disk does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.raft.memory import LocalNetwork, LoopClock, MemoryDisk, MemoryLog
from tests.broker.raft.test_store import Threads, batch, open_store
from tests.broker.seams import SeededRandom

from ballast_broker.raft import wire
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.flushed_end import FlushedEnd
from ballast_broker.raft.messages import BeginEpoch, FetchReply, SnapshotId
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.voters import Endpoint


class Applied:
    def __init__(self) -> None:
        self.batches = b""
        self.failures: list[Exception] = []

    def committed(self, batches: bytes) -> Iterator[None]:
        self.batches += batches
        yield

    def leader_changed(self, leader: int, epoch: int) -> None:
        pass

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        raise AssertionError

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


def records_of_the_leader() -> bytes:
    """Six records of epoch 5."""
    log = MemoryLog()
    for _ in range(2):
        log.append_as_leader(batch(3), 5, now_ms=1, origin="raft")
    return log.read(0, 1 << 20, upper_offset=6).read()


@pytest.mark.spec("CLU-02", "CLU-03")
@pytest.mark.parametrize("spoilt_at", [90, 8], ids=["a record", "a length"])
async def test_spoilt_records_are_asked_for_again(
    tmp_path: Path, spoilt_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise one corrupt disk would bring down every controller and broker, and again after each restart."""
    network, applied, sound = LocalNetwork(), Applied(), records_of_the_leader()
    spoilt = bytearray(sound)
    spoilt[len(sound) // 2 + spoilt_at] ^= 0x41
    asked: list[int] = []

    async def handle(api_key: int, version: int, request: Any, origin: Any) -> Any:
        offset = wire.decode_fetch(request).offset
        asked.append(offset)
        if offset == 6 and len(asked) > 4:
            await asyncio.Event().wait()
        records = b"" if offset == 6 else spoilt if len(asked) < 3 else sound
        return wire.encode_fetch_reply(FetchReply(5, 2, high_watermark=6, records=bytes(records)), 0)

    network.listen("n2", 9093, handle)
    manager, store = await open_store(tmp_path)
    driver = RaftDriver(
        node_id=1,
        quorum=wire.Quorum("cluster", {each: Endpoint(f"n{each}", 9093) for each in (1, 2, 3)}),
        store=store,
        listener=applied,
        network=network,
        clock=LoopClock(),
        threads=Threads(),
        random=SeededRandom(),
    )
    await driver.start()
    driver.core.handle_begin_epoch(driver.now(), BeginEpoch(5, 2))
    driver.run()
    async with asyncio.timeout(10):
        while applied.batches != sound and not applied.failures:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert not applied.failures
    assert asked[:3] == [0, 0, 0], "nothing of what was spoilt is kept"
    assert sum("spoilt" in each.getMessage() for each in caplog.records) == 1, "it is said once"
    await driver.stop()
    await manager.shutdown()


@pytest.mark.spec("CLU-06")
@pytest.mark.parametrize(("voter", "noted"), [(1, 1), (2, 0)])
async def test_who_follows_an_only_voter_does_not_take_itself_for_it(voter: int, noted: int) -> None:
    """Else it would not start with a damaged log either, although the voter has all of it."""
    log, disk = MemoryLog(), MemoryDisk()
    log.append_as_leader(batch(3), 1, now_ms=1, origin="raft")
    driver = RaftDriver(
        node_id=1,
        quorum=wire.Quorum("cluster", {voter: Endpoint("n", 9093)}),
        store=MetadataStore(disk, "/meta", log),
        listener=Applied(),
        network=LocalNetwork(),
        clock=LoopClock(),
        threads=Threads(),
        random=SeededRandom(),
    )
    await driver.start()
    await driver.stop()
    assert FlushedEnd(disk, "/meta").said.voters == noted
