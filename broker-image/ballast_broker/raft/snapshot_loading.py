"""A follower whose log does not reach the leader's takes the leader's snapshot, piece by piece."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ballast_broker.raft import wire
from ballast_broker.raft.messages import LoadSnapshot, SnapshotId
from ballast_broker.raft.soundness import SnapshotPieces
from ballast_wire.errors import ApiError
from ballast_wire.records import CorruptBatch

if TYPE_CHECKING:
    from ballast_broker.raft.driver import RaftDriver

logger = logging.getLogger(__name__)


async def fetched(driver: RaftDriver, loading: LoadSnapshot) -> bool:
    """Whether it is here, complete and on stable storage, and still wanted."""
    snapshot = loading.snapshot
    writer = driver.store.new_snapshot(snapshot)
    try:
        complete = await _copy(driver, writer, loading.leader, driver.core.epoch, snapshot)
    except CorruptBatch as error:
        driver.came_spoilt(loading.leader, f"snapshot {snapshot}", error)
        complete = False
    except (OSError, TimeoutError, ValueError, ApiError) as error:
        logger.info("snapshot %s from %d: %s", snapshot, loading.leader, error)
        complete = False
    if not complete or driver.core.loading is not loading:
        writer.abandon()
        return False
    await driver.threads.run(writer.finish)
    return True


async def _copy(driver: RaftDriver, writer: Any, leader: int, epoch: int, snapshot: SnapshotId) -> bool:
    pieces = SnapshotPieces()
    link, cluster_id = driver.peers.link(leader, "fetch"), driver.quorum.cluster_id
    while True:
        request = wire.snapshot_request(
            driver.node_id, driver.directory, epoch, snapshot, writer.size_bytes, cluster_id
        )
        response = await link.call(request, wire.VERSIONS[wire.FETCH_SNAPSHOT])
        if response.error_code:
            return False  # it has nothing to say of the snapshot then
        data = wire.only_partition(response)
        if data.error_code:
            return False
        piece = bytes(data.unaligned_records or b"")
        pieces.feed(piece)
        writer.write(piece)
        driver.core.snapshot_progress(driver.now())
        if writer.size_bytes >= data.size:
            pieces.end()  # before our own log is given up for it
            return True
        if not data.unaligned_records:
            return False
