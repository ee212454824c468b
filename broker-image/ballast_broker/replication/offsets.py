"""Answers a leader's offset queries, by timestamp and by leader epoch, and implements DeleteRecords.

Refusals are `ApiError`. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ballast_broker.replication.reading import CONSUMER, READ_COMMITTED
from ballast_broker.replication.replica import Replica
from ballast_broker.replication.waiting import Deadlines, PendingCommit
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
DELETE_TO_HIGH_WATERMARK = -1


class FoundOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


NOT_FOUND = FoundOffset(-1, -1, -1)


def list_offset(
    replica: Replica, timestamp: int, isolation: int, current_leader_epoch: int, replica_id: int
) -> FoundOffset:
    log = replica.led_log(current_leader_epoch)
    state = replica.state
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return FoundOffset(-1, log.log_start_offset, _epoch_of(log, log.log_start_offset))
    if timestamp == LATEST_TIERED:
        return NOT_FOUND
    last = _last_visible(replica, log, isolation, replica_id)
    if replica_id == CONSUMER and state.high_watermark < state.epoch_start_offset:
        # A new leader does not know yet how far its predecessor had committed: the offset could go backwards.
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    if timestamp == LATEST:
        return FoundOffset(-1, last, state.leader_epoch)
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= last:
        return NOT_FOUND
    return FoundOffset(*found)


def _last_visible(replica: Replica, log: Log, isolation: int, replica_id: int) -> int:
    if replica_id != CONSUMER:
        return log.log_end_offset
    return log.last_stable_offset if isolation == READ_COMMITTED else replica.state.high_watermark


def _epoch_of(log: Log, offset: int) -> int:
    """The epoch of the record at `offset`, the current one for the log end; -1 if there is none."""
    epoch = log.latest_epoch
    while epoch is not None and epoch > 0:
        earlier, end_offset = log.epoch_end_offset(epoch - 1)
        if earlier < 0 or end_offset <= offset:
            return epoch
        epoch = earlier
    return -1 if epoch is None else epoch


def offset_for_leader_epoch(replica: Replica, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
    return replica.led_log(current_leader_epoch).epoch_end_offset(leader_epoch)


def delete_records(
    replica: Replica, offset: int, timeout_ms: int, deadlines: Deadlines
) -> int | asyncio.Future[ErrorCode]:
    """Advance the log start offset. Returns the new one if all replicas have it, else a future that waits for them."""
    log = replica.led_log()
    if "delete" not in log.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Records of a topic that is only compacted are not deleted.")
    target = replica.state.high_watermark if offset == DELETE_TO_HIGH_WATERMARK else offset
    if not 0 <= target <= replica.state.high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if target > log.log_start_offset:
        log.advance_log_start_offset(target)
    if replica.state.lowest_log_start_offset() >= target:
        return log.log_start_offset
    return PendingCommit(deadlines, timeout_ms, replica.delete_waiters, target).future
