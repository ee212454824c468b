"""Appends everything but a single plain batch: several batches, batches to inspect, batches fetched from the leader.

Part of `Log`, which has the fast path; loop thread only. `slow_append` takes the same steps with the write in a thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NoReturn

from ballast_broker.storage import truncation
from ballast_broker.storage.conversion import prepare
from ballast_broker.storage.errors import UnexpectedAppendOffset
from ballast_broker.storage.producer_snapshots import look_back, observe
from ballast_broker.storage.producers import NEVER, NOT_ASKED
from ballast_broker.storage.slices import AppendInfo
from ballast_broker.storage.transactions import read_marker
from ballast_broker.storage.validation import (
    CLIENTS,
    END_WITH_NEW_EPOCH,
    TRANSACTION,
    check_follower_batch,
    check_leader_batch,
    refuse_larger_than_segment,
    split,
)
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import (
    CONTROL_MASK,
    EPOCH_POSITION,
    HEADER,
    LOG_OVERHEAD,
    TRANSACTIONAL_MASK,
    Header,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.producers import SentBatch, Verification

_put_offset: Final = struct.Struct(">q").pack_into
_put_epoch: Final = struct.Struct(">i").pack_into


def append_several(
    log: Log, view: memoryview, leader_epoch: int, now_ms: int, origin: str, verified: Verification | None
) -> AppendInfo:
    """Append several batches (coordinators, the metadata log), transactional ones, or ones to be inspected."""
    ready = check_batches(log, view, now_ms, origin, verified)
    if isinstance(ready, AppendInfo):
        return ready
    first = log.end_offset
    if leader_epoch != log.latest_epoch:
        log.epochs.assign(leader_epoch, first)
    for batch in ready:
        header, last = stamp(log, batch, leader_epoch)
        expect_marker(log, header)
        log.write(batch, last, header.max_timestamp, now_ms)
        record_producer(log, header, last, batch)
        log.flush_if_due()
    return appended(log, first, ready, now_ms)


def check_batches(
    log: Log, view: memoryview, now_ms: int, origin: str, verified: Verification | None
) -> list[memoryview] | AppendInfo:
    """The batches as they will be stored, or the result for a duplicate."""
    parts = split(view, log.topic_partition)
    if origin in CLIENTS and len(parts) > 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            "Produce requests are only allowed to contain exactly one record batch per partition",
        )
    ready = []
    for position, header in parts:
        batch = view[position : position + header.length + LOG_OVERHEAD]
        check_leader_batch(batch, header, log.config, log.topic_partition, origin, now_ms)
        if header.attributes & TRANSACTIONAL_MASK and header.producer_id >= 0:
            duplicate = _check_transaction(log, header, batch, origin, verified)
        else:
            duplicate = check_producer(log, header, log.end_offset)
        if duplicate is not None:
            return repeated(log, duplicate, len(view))
        if log.inspects_records:
            batch = prepare(batch, log.config, log.topic_partition, origin, now_ms)
        if len(batch) > log.config.segment_bytes:
            refuse_larger_than_segment(len(batch), log.config, log.topic_partition)
        ready.append(batch)
    return ready


def _check_transaction(
    log: Log, header: Header, batch: memoryview, origin: str, verified: Verification | None
) -> SentBatch | None:
    """For a coordinator's batch check the epochs only: it has no sequence numbers and no duplicates."""
    producers, producer_id, epoch, sequence = log.producers, header.producer_id, header.producer_epoch, -1
    end, partition = log.end_offset, log.topic_partition
    if header.attributes & CONTROL_MASK:
        producers.check(producer_id, epoch, sequence, end, partition, transactional=True)
        marker = read_marker(batch)
        if marker is not None:
            producers.check_marker(producer_id, marker.coordinator_epoch, end, partition)
        if origin == END_WITH_NEW_EPOCH:
            producers.check_ends_earlier(producer_id, epoch, end, partition)
        return None
    if origin == TRANSACTION:
        sequence = header.base_sequence
        duplicate = producers.find_duplicate(producer_id, epoch, sequence, header.last_offset_delta)
        if duplicate is not None:
            return duplicate
    needs_verification = verified is not NOT_ASKED and (origin == TRANSACTION or verified is not None)
    if needs_verification and not producers.is_open(producer_id, epoch):
        producers.check_verified(producer_id, sequence, end, partition, verified)
    if origin == TRANSACTION:
        return check_producer(log, header, end, transactional=True)
    producers.check(producer_id, epoch, sequence, end, partition, transactional=True)
    return None


def check_producer(log: Log, header: Header, offset: int, *, transactional: bool = False) -> SentBatch | None:
    """Raise for a sequence gap or a fenced producer; return the stored batch that this one duplicates, if any."""
    producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
    if producer_id < 0:
        return None
    producers = log.producers
    if sequence >= 0:
        duplicate = producers.find_duplicate(producer_id, epoch, sequence, header.last_offset_delta)
        if duplicate is not None:
            return duplicate
    try:
        producers.check(producer_id, epoch, sequence, offset, log.topic_partition, transactional=transactional)
    except ApiError:
        state = producers.get(producer_id)
        if state is None or state.has_complete_window or state.epoch != epoch:
            raise
        with log.disk_faults():
            look_back(state, producer_id, log.segments)
        return check_producer(log, header, offset, transactional=transactional)
    return None


def expect_marker(log: Log, header: Header) -> None:
    """Call before a batch is written: keeps a concurrent flush from moving the recovery point past a marker whose
    `.txnindex` entry is not written yet. Recovery does not look for missing entries below the recovery point."""
    if header.attributes & CONTROL_MASK:
        log.unindexed_from = min(log.unindexed_from, log.end_offset)


def record_producer(log: Log, header: Header, last_offset: int, batch: memoryview) -> None:
    """The batch is in the log: update its producer's state, and the transaction that it may end."""
    producers = log.producers
    ended = observe(producers, header, last_offset, batch)
    producers.map_end_offset = last_offset + 1
    if ended is not None:
        producers.committed(log.high_watermark)  # keeps the list short even if nobody asks for the last stable offset
    aborted = log.segments[-1].aborted
    if aborted.late or (ended is not None and ended.aborted):
        with log.disk_faults():
            aborted.append(ended if ended is not None and ended.aborted else None)
    if not aborted.late:
        log.unindexed_from = NEVER


def repeated(log: Log, batch: SentBatch, size: int) -> AppendInfo:
    """The result for a batch that is in the log already."""
    return AppendInfo(batch.first_offset, batch.last_offset, batch.timestamp, log.start_offset, size, duplicate=True)


def stamp(log: Log, batch: memoryview, leader_epoch: int) -> tuple[Header, int]:
    """Assign the next offsets to the batch; returns its header and its last offset."""
    header = Header._make(HEADER.unpack_from(batch))
    _put_offset(batch, 0, log.end_offset)
    _put_epoch(batch, EPOCH_POSITION, leader_epoch)
    return header, log.end_offset + header.last_offset_delta


def appended(log: Log, first: int, batches: list[memoryview], now_ms: int) -> AppendInfo:
    append_time_ms = now_ms if log.config.message_timestamp_type == "LogAppendTime" else -1
    return AppendInfo(first, log.end_offset - 1, append_time_ms, log.start_offset, sum(map(len, batches)))


def append_as_follower(log: Log, view: memoryview) -> AppendInfo:
    """Append batches as the leader has them: offsets and epochs are kept."""
    parts = ready_for_follower_batches(log, view)
    now_ms = log.context.clock.wall_ms()
    for position, header in parts:
        last = header.base_offset + header.last_offset_delta
        if header.leader_epoch != log.epochs.latest:
            log.epochs.assign(header.leader_epoch, header.base_offset)
        batch = view[position : position + header.length + LOG_OVERHEAD]
        expect_marker(log, header)
        log.write(batch, last, header.max_timestamp, now_ms)
        record_producer(log, header, last, batch)
        log.flush_if_due()
    return appended_by_follower(log, parts, view)


def appended_by_follower(log: Log, parts: list[tuple[int, Header]], view: memoryview) -> AppendInfo:
    return AppendInfo(parts[0][1].base_offset, log.end_offset - 1, -1, log.start_offset, len(view))


def ready_for_follower_batches(log: Log, view: memoryview) -> list[tuple[int, Header]]:
    """Check the batches, and let an empty log begin where the first of them does."""
    parts = split(view, log.topic_partition)
    begin = expected = _where_to_begin(log, parts)
    for position, header in parts:
        check_follower_batch(view[position : position + header.length + LOG_OVERHEAD], header, log.topic_partition)
        if header.base_offset < expected:
            _refuse_offset(log, header.base_offset, expected)
        expected = header.base_offset + header.last_offset_delta + 1
    if begin < log.end_offset:
        with truncation.cutting(log):
            truncation.hold_before_start(log, begin)
    return parts


def _where_to_begin(log: Log, parts: list[tuple[int, Header]]) -> int:
    """The log's end. An empty log may start inside the first batch: there DeleteRecords put the leader's log start."""
    end = log.end_offset
    if not log.size_bytes and log.start_offset == end and parts:
        first = parts[0][1]
        if first.base_offset < end <= first.base_offset + first.last_offset_delta:
            return first.base_offset
    return end


def _refuse_offset(log: Log, offset: int, expected: int) -> NoReturn:
    raise UnexpectedAppendOffset(
        f"Unexpected offset in append to {log.topic_partition}. First offset {offset} is less than "
        f"the next offset {expected}. Log start offset = {log.start_offset}"
    )
