"""Raft's store on real files with the storage engine's log: what it reports as flushed survives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.raft.memory import static_voters
from tests.broker.seams import SeededRandom

from ballast_broker.config.logs import LogConfig
from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.records import record
from ballast_broker.raft.control_records import snapshot_header_batch
from ballast_broker.raft.flushed_end import NOTHING, Flushed, FlushedEnd
from ballast_broker.raft.leader import misfit
from ballast_broker.raft.messages import Fetch, SnapshotId
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.terms import Persisted, Position
from ballast_broker.real_world import RealClock
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.manager import LogManager
from ballast_wire.errors import ApiError
from ballast_wire.records import iterate_batches


class Threads:
    async def run(self, work: Any) -> Any:
        return await asyncio.to_thread(work)


async def open_store(path: Path, disk: Any = None, **log_config: Any) -> tuple[LogManager, MetadataStore]:
    config = StorageConfig(log_dirs=(str(path),), node_id=1, cluster_id="MkU3OEVBNTcwNTJENDM2Qg")
    manager = LogManager(disk or RealDisk(), RealClock(), Threads(), config, SeededRandom())
    await manager.start()
    log = await manager.open_raft_log(LogConfig(**log_config))
    return manager, MetadataStore(manager.disk, log.folder.path, log)


async def reopened(
    manager: LogManager, store: MetadataStore, path: Path, **log_config: Any
) -> tuple[LogManager, MetadataStore]:
    """The store as a node finds it after a clean shutdown."""
    store.close()
    await manager.shutdown()
    return await open_store(path, **log_config)


def lacking(store: MetadataStore) -> Position | None:
    return store.lacks


def batch(count: int = 1) -> bytearray:
    return data_batch([record("NoOpRecord") for _ in range(count)], 1)


@pytest.mark.spec("CLU-02")
async def test_the_vote_and_the_log_survive_a_restart(tmp_path: Path) -> None:
    manager, store = await open_store(tmp_path)
    assert store.load_persisted() == Persisted()
    store.configured(static_voters((1, 2, 3)))
    store.persist(Persisted(7, 2, -1))
    assert store.append(batch(2), 6, 5) == (0, 1)
    assert store.append(batch(3), 7, 5) == (2, 4)
    manager, store = await reopened(manager, store, tmp_path)
    assert store.load_persisted() == Persisted(7, 2, -1)
    assert (store.start_offset, store.end_offset, store.last_epoch) == (0, 5, 7)
    assert store.epoch_end_offset(6) == (6, 2)
    assert store.epoch_end_offset(5) == (-1, -1)
    assert store.epoch_end_offset(9) == (7, 5)
    await manager.shutdown()


async def test_what_a_follower_fetched_is_what_the_leader_has(tmp_path: Path) -> None:
    leading, leader = await open_store(tmp_path / "leader")
    following, follower = await open_store(tmp_path / "follower")
    for epoch in (1, 1, 3):
        leader.append(batch(2), epoch, 5)
    follower.append_fetched(leader.read(0, 1 << 20, leader.end_offset))
    assert follower.end_offset == leader.end_offset == 6
    assert follower.epoch_end_offset(2) == (1, 4)
    follower.truncate(4)
    assert (follower.end_offset, follower.last_epoch) == (4, 1)
    part = leader.read(2, 1, leader.end_offset)
    assert [each.base_offset for each in iterate_batches(memoryview(part))] == [2]
    await leading.shutdown()
    await following.shutdown()


@pytest.mark.spec("CLU-03")
async def test_snapshots_count_once_they_are_complete(tmp_path: Path) -> None:
    manager, store = await open_store(tmp_path)
    for _ in range(6):
        store.append(batch(2), 2, 5)
    store.committed_up_to(10)
    for end in (4, 8):
        writer = store.new_snapshot(SnapshotId(end, 2))
        writer.write(b"x" * 5000)
        assert store.latest_snapshot != SnapshotId(end, 2)
        writer.finish()
        store.snapshot_written(SnapshotId(end, 2))
    assert store.start_offset == 4
    assert store.read_snapshot(SnapshotId(8, 2), 4990, 100) == (b"x" * 10, 5000)
    for nowhere in (-1, 5000):
        assert store.read_snapshot(SnapshotId(8, 2), nowhere, 100) == (b"", 5000)
    assert store.read_snapshot(SnapshotId(9, 2), 0, 100) is None
    store.new_snapshot(SnapshotId(10, 2)).write(b"half")
    manager, store = await reopened(manager, store, tmp_path)
    assert store.snapshots == [SnapshotId(4, 2), SnapshotId(8, 2)]
    assert not [name for name in store.disk.list(store.directory) if name.endswith(".part")]
    assert store.epoch_end_offset(1) == (-1, -1)
    await manager.shutdown()


@pytest.mark.spec("CLU-03")
async def test_segments_that_lie_before_the_older_snapshot_go(tmp_path: Path) -> None:
    small = {"segment_bytes": 200, "retention_ms": -1}
    manager, store = await open_store(tmp_path, **small)
    for _ in range(20):
        store.append(batch(2), 2, 5)
    store.committed_up_to(40)
    for end in (20, 30):
        store.new_snapshot(SnapshotId(end, 2)).finish()
        store.snapshot_written(SnapshotId(end, 2))
    assert store.start_offset == 20
    first = min(name for name in store.disk.list(store.directory) if name.endswith(".log"))
    assert 10 < int(first.removesuffix(".log")) <= 20
    manager, store = await reopened(manager, store, tmp_path, **small)
    assert 10 < store.start_offset <= 20
    assert store.end_offset == 40
    assert len(store.read(20, 1 << 20, 40)) > 0
    await manager.shutdown()


async def test_the_log_begins_after_a_fetched_snapshot(tmp_path: Path) -> None:
    manager, store = await open_store(tmp_path)
    store.append(batch(2), 1, 5)
    writer = store.new_snapshot(SnapshotId(50, 4))
    writer.write(b"y")
    writer.finish()
    store.begin_after(SnapshotId(50, 4))
    assert (store.start_offset, store.end_offset, store.last_epoch) == (50, 50, 4)
    assert store.epoch_end_offset(4) == (4, 50)
    assert store.epoch_end_offset(3) == (-1, -1), "what was before the snapshot cannot be compared any more"
    assert store.append(batch(1), 5, 5) == (50, 50)
    manager, store = await reopened(manager, store, tmp_path)
    assert (store.start_offset, store.end_offset, store.last_epoch) == (50, 51, 5)
    assert store.epoch_end_offset(4) == (4, 50)
    assert store.epoch_end_offset(3) == (-1, -1)
    with pytest.raises((ApiError, ValueError)):
        store.read(10, 100, 51)
    await manager.shutdown()


@pytest.mark.spec("CLU-03")
async def test_an_own_snapshot_that_is_done_when_the_log_begins_after_a_later_one_says_nothing_of_epochs(
    tmp_path: Path,
) -> None:
    """A follower that has committed more of epoch 1 would be told to truncate that, and exit."""
    manager, store = await open_store(tmp_path)
    store.append(batch(10), 1, 5)
    own = store.new_snapshot(SnapshotId(10, 1))
    store.new_snapshot(SnapshotId(50, 4)).finish()
    store.begin_after(SnapshotId(50, 4))
    own.finish()
    store.snapshot_written(SnapshotId(10, 1))
    for _ in range(2):
        assert store.epoch_end_offset(1) == (-1, -1)
        reply = misfit(store, 5, 1, Fetch(5, 2, 60, 1, 500))
        assert reply is not None
        assert (reply.snapshot, reply.diverging) == (SnapshotId(50, 4), None)
        manager, store = await reopened(manager, store, tmp_path)
    await manager.shutdown()


@pytest.mark.spec("CLU-02")
async def test_two_loads_of_one_snapshot_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The first is abandoned when the leader changes, perhaps after the second has begun."""
    manager, store = await open_store(tmp_path)
    snapshot = SnapshotId(40, 3)
    first = store.new_snapshot(snapshot)
    first.write(b"of a leader that is gone")
    second = store.new_snapshot(snapshot)
    second.write(b"whole")
    first.abandon()
    second.finish()
    assert store.disk.read_bytes(store.path_of(snapshot)) == b"whole"
    third = store.new_snapshot(SnapshotId(50, 3))
    third.write(b"torn")
    store = MetadataStore(store.disk, store.directory, store.log)
    assert store.snapshots == [snapshot]
    assert not [name for name in store.disk.list(store.directory) if name.endswith(".part")]
    await manager.shutdown()


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("epoch", [3, 4])
async def test_a_log_that_ends_before_its_snapshot_begins_after_it(tmp_path: Path, epoch: int) -> None:
    """A crash came between storing the snapshot and starting the log after it. Otherwise the node would vote as if it
    lacked what the snapshot contains, or, with records of a leader that committed nothing, even as if it had more."""
    manager, store = await open_store(tmp_path)
    store.append(batch(2), epoch, 5)
    writer = store.new_snapshot(SnapshotId(40, 3))
    writer.finish()
    manager, store = await reopened(manager, store, tmp_path)
    assert (store.start_offset, store.end_offset, store.last_epoch) == (40, 40, 3)
    store.append(batch(2), 3, 5)
    manager, store = await reopened(manager, store, tmp_path)
    assert (store.start_offset, store.end_offset, store.last_epoch) == (40, 42, 3)
    await manager.shutdown()


@pytest.mark.spec("CLU-06")
async def test_what_is_not_there_any_more_is_lacking_until_it_is_there_again(tmp_path: Path) -> None:
    manager, store = await open_store(tmp_path)
    store.configured(static_voters((1, 2, 3)))
    for epoch in (1, 1, 3):
        store.append(batch(2), epoch, 5)
    store.log.flush()
    store.flushed(store.position)
    store.log.truncate_to(2)
    manager, store = await reopened(manager, store, tmp_path)
    assert lacking(store) == Position(3, 6)
    store.append(batch(9), 2, 5)
    store.flushed(store.position)
    assert lacking(store) == Position(3, 6), "of an earlier epoch it may be as much as it will"
    store.append(batch(1), 4, 5)
    assert lacking(store) == Position(3, 6), "nor does it count before it is flushed"
    store.flushed(store.position)
    assert lacking(store) is None
    store.close()
    await manager.shutdown()


@pytest.mark.spec("CLU-06")
async def test_what_is_cut_to_follow_a_leader_is_not_lacking(tmp_path: Path) -> None:
    manager, store = await open_store(tmp_path)
    store.configured(static_voters((1, 2, 3)))
    for epoch in (1, 3, 4):
        store.append(batch(2), epoch, 5)
        store.flushed(store.position)
    store.truncate(4)
    assert FlushedEnd(store.disk, store.directory).said == Flushed(Position(3, 4), 3)
    manager, store = await reopened(manager, store, tmp_path)
    assert store.lacks is None
    writer = store.new_snapshot(SnapshotId(9, 2))
    writer.write(snapshot_header_batch(0, 1, 2, None))
    writer.finish()
    store.begin_after(SnapshotId(9, 2))
    assert FlushedEnd(store.disk, store.directory).said.end == Position(2, 9)
    assert store.lacks is None
    store.close()
    await manager.shutdown()


@pytest.mark.spec("CLU-06")
def test_an_end_that_is_torn_or_spoilt_says_nothing(tmp_path: Path) -> None:
    said = Flushed(Position(3, 10**12), 5)
    end = FlushedEnd(RealDisk(), str(tmp_path))
    end.say(said, durably=True)
    end.close()
    whole = Path(end.path).read_bytes()
    assert FlushedEnd(RealDisk(), str(tmp_path)).said == said
    for spoilt in (b"", whole[:20], bytes(len(whole)), whole.replace(b"1", b"2", 1), b"\xff" + whole[1:]):
        Path(end.path).write_bytes(spoilt)
        assert FlushedEnd(RealDisk(), str(tmp_path)).said == NOTHING
