"""Fetches the leader's snapshot, piece by piece, for a follower that is behind the start of the leader's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ballast_broker.raft import wire
from ballast_broker.raft.integrity import SnapshotPieces
from ballast_broker.raft.messages import LoadSnapshot, SnapshotId
from ballast_broker.raft.store import lacks_handles
from ballast_wire.errors import ApiError
from ballast_wire.records import CorruptBatch

if TYPE_CHECKING:
    from ballast_broker.raft.driver import RaftDriver

logger = logging.getLogger(__name__)

OPEN_AGAIN_S = 0.1


async def fetched(driver: RaftDriver, loading: LoadSnapshot) -> bool:
    """Fetch the snapshot; True if it is complete, on stable storage, and still wanted."""
    snapshot = loading.snapshot
    try:
        writer = driver.store.new_snapshot(snapshot)
    except OSError as error:
        return _not_now(snapshot, error)
    try:
        complete = await _copy(driver, writer, loading.leader, driver.core.epoch, snapshot)
    except CorruptBatch as error:
        driver.complaints.came_spoilt(loading.leader, f"snapshot {snapshot}", error)
        complete = False
    except (OSError, TimeoutError, ValueError, ApiError) as error:
        logger.info("metadata snapshot %s could not be loaded from node %d: %s", snapshot, loading.leader, error)
        complete = False
    if not complete or driver.core.loading is not loading:
        writer.abandon()
        return False
    try:
        await driver.threads.run(writer.finish)
    except OSError as error:
        return _not_now(snapshot, error)
    return True


def begins_the_log(driver: RaftDriver, snapshot: SnapshotId) -> bool:
    """Let the log begin after the snapshot. False for want of file descriptors: the log is unchanged then."""
    try:
        driver.store.begin_after(snapshot)
    except (OSError, ApiError) as error:
        return _not_now(snapshot, error)
    driver.core.log_begins_at(snapshot.offset)
    return True


def _not_now(snapshot: SnapshotId, error: Exception) -> bool:
    if not lacks_handles(error):
        raise error
    logger.error("metadata snapshot %s could not be loaded, it is tried again: %s", snapshot, error)
    return False


async def with_handles(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, again and again as long as file descriptors are lacking."""
    while True:
        try:
            return await work()
        except OSError as error:
            if not lacks_handles(error):
                raise
        await asyncio.sleep(OPEN_AGAIN_S)


async def _copy(driver: RaftDriver, writer: Any, leader: int, epoch: int, snapshot: SnapshotId) -> bool:
    pieces = SnapshotPieces()
    link, cluster_id = driver.peers.link(leader, "fetch"), driver.quorum.cluster_id
    while True:
        request = wire.snapshot_request(
            driver.node_id, driver.directory, epoch, snapshot, writer.size_bytes, cluster_id
        )
        response = await link.call(request, wire.VERSIONS[wire.FETCH_SNAPSHOT])
        if response.error_code:
            return False  # then it has no partition data either
        data = wire.only_partition(response)
        if data.error_code:
            return False
        piece = bytes(data.unaligned_records or b"")
        pieces.feed(piece)
        writer.write(piece)
        driver.core.snapshot_progress(driver.now())
        if writer.size_bytes >= data.size:
            pieces.end()  # check before our own log is discarded for it
            return True
        if not data.unaligned_records:
            return False
