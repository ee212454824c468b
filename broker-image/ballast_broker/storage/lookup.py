"""Finds positions: by offset for reads, by timestamp for ListOffsets; and aborted transactions. Loop thread; part of
`Log`.

Sequential readers and writers are served from the log's `known_positions`; others go through the sparse index and a
scan of at most one index interval. A corrupt index is rebuilt from the log, once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from ballast_broker.storage.bounded_decoding import decode_bounded
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.recovery import rebuild_indexes
from ballast_broker.storage.segment import Segment
from ballast_broker.storage.slices import LogSlice
from ballast_wire.records import LOG_OVERHEAD, BatchView, CorruptBatch, Header

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.transactions import EndedTransaction

MOST_KNOWN: Final = 32
_KEPT_KNOWN: Final = 16
_T = TypeVar("_T")


def trusting_index(log: Log, segment: Segment, ask: Callable[[], _T]) -> _T:
    """Call `ask`; if the index turns out to be corrupt or missing, rebuild it and call `ask` once more."""
    try:
        return ask()
    except (CorruptFile, FileNotFoundError):
        rebuild_indexes(segment, log.config.index_interval_bytes, active=segment is log.active)
        return ask()


def remember(log: Log, offset: int, segment: Segment, position: int) -> None:
    log.known_positions[offset] = (segment, position)
    if len(log.known_positions) > MOST_KNOWN:
        forget_oldest(log)


def forget_oldest(log: Log) -> None:
    """Drops many at once: finding the first entry of a dict that lost its first ones is slow."""
    known = log.known_positions
    for old in list(known)[:-_KEPT_KNOWN]:
        del known[old]


def looking(log: Log, waiting: bool) -> AbstractContextManager[None]:
    """A context in which reads wait for the disk only if `waiting`."""
    return nullcontext() if waiting else log.context.disk.not_waiting()


def locate(log: Log, offset: int, waiting: bool = True) -> tuple[Segment, int] | None:
    """Segment and position of the first batch that ends at or after `offset`; None if there is none."""
    known = log.known_positions.get(offset)
    if known is not None and known[1] < known[0].size:
        return known
    for segment in log.segments[log.segment_number(offset) :]:
        if not segment.size:
            continue
        if offset <= segment.base_offset:
            return segment, 0
        with looking(log, waiting):
            found = trusting_index(log, segment, lambda segment=segment: segment.find(offset))  # type: ignore[misc]
        if found is not None:
            return segment, found[0]
    return None


def read(log: Log, offset: int, max_bytes: int, upper_offset: int, min_one: bool, waiting: bool) -> LogSlice:
    located = locate(log, offset, waiting)
    if located is None:
        return LogSlice(None, 0, 0, offset, log.directory)
    segment, position = located
    end, next_offset = _end_of_slice(log, segment, upper_offset, waiting)
    if end - position > max_bytes:
        with looking(log, waiting):
            end, next_offset = _cut(log, segment, position, max_bytes, min_one, end, next_offset)
    if end <= position:
        return LogSlice(None, 0, 0, offset, log.directory)
    if next_offset != log.end_offset:
        remember(log, next_offset, segment, end)
    return LogSlice(segment, position, end - position, next_offset, log.directory)


def _end_of_slice(log: Log, segment: Segment, upper_offset: int, waiting: bool) -> tuple[int, int]:
    """The end position of the segment's readable part, and the offset there."""
    number = log.segment_number(segment.base_offset) + 1
    segment_end = log.bases[number] if number < len(log.bases) else log.end_offset
    if upper_offset >= segment_end:
        return segment.size, segment_end
    known = log.known_positions.get(upper_offset)
    if known is not None and known[0] is segment:
        return known[1], upper_offset
    with looking(log, waiting):
        found = trusting_index(log, segment, lambda: segment.find(upper_offset))
    if found is None:
        return segment.size, segment_end
    if found[1].base_offset < upper_offset:  # the batch straddles the limit: it is not readable yet
        return found[0], found[1].base_offset
    remember(log, upper_offset, segment, found[0])
    return found[0], upper_offset


def _cut(
    log: Log, segment: Segment, position: int, max_bytes: int, min_one: bool, end: int, next_offset: int
) -> tuple[int, int]:
    """The last batch boundary within `max_bytes`; at least one batch if `min_one`."""
    boundary = trusting_index(log, segment, lambda: segment.boundary_before(position + max_bytes))
    if boundary is not None and boundary[0] > position:
        return boundary
    if not min_one:
        return position, next_offset
    first = next(segment.batches(position), None)
    if first is None:
        raise segment.spoiled_at(position)
    return position + first[1].length + LOG_OVERHEAD, first[1].base_offset + first[1].last_offset_delta + 1


def aborted_transactions(log: Log, offset: int, upper_offset: int) -> list[EndedTransaction]:
    found: list[EndedTransaction] = []
    indexed = [segment for segment in log.segments[log.segment_number(offset) :] if segment.aborted.there]
    if not indexed:  # as in nearly every log
        return found
    with log.disk_faults():
        for segment in indexed:
            if segment.aborted.select(offset, upper_offset, found):
                break
    return found


def offset_for_timestamp(log: Log, timestamp: int) -> tuple[int, int, int] | None:
    for segment in log.segments:
        if not segment.size or trusting_index(log, segment, segment.largest_timestamp) < timestamp:
            continue
        found = trusting_index(log, segment, lambda segment=segment: _in_segment(segment, timestamp, log.start_offset))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def _in_segment(segment: Segment, timestamp: int, start_offset: int) -> tuple[int, int, int] | None:
    """The segment's first record from `start_offset` on with at least `timestamp`."""
    number = segment.time_index.floor(timestamp - 1)  # later than all records before it
    offset = segment.base_offset + (segment.time_index.at(number)[1] if number >= 0 else 0)
    start = end = segment.floor_position(max(offset, start_offset))
    for position, header in segment.batches(start):
        end = position + header.length + LOG_OVERHEAD
        if header.max_timestamp < timestamp or header.base_offset + header.last_offset_delta < start_offset:
            continue
        found = first_record_at(segment, position, header, timestamp, start_offset)
        if found is not None:
            return found
    segment.check_walked(start, end)
    return None


def first_record_at(
    segment: Segment, position: int, header: Header, timestamp: int, start_offset: int
) -> tuple[int, int, int] | None:
    """The first record of the batch at `position` with at least `timestamp`."""
    data = memoryview(segment.file().pread(header.length + LOG_OVERHEAD, position))
    view = BatchView(data)
    if view.is_log_append_time and header.record_count == header.last_offset_delta + 1:  # the cleaner removed none
        return header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch
    try:
        for record in decode_bounded(view):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.timestamp, record.offset, header.leader_epoch
        lies = header.record_count > 0 and header.base_offset >= start_offset
    except CorruptBatch:
        lies = True
    # A corrupt or oversized body was stored as sent: answer by its header. Otherwise a client could make us decompress
    # one body after the other for nothing.
    return (header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch) if lies else None


def offset_of_max_timestamp(log: Log) -> tuple[int, int, int] | None:
    """As in Apache Kafka this may be a record before the log start offset, while its segment is still there."""
    best: Segment | None = None
    for segment in log.segments:
        if not segment.size:
            continue
        largest = trusting_index(log, segment, segment.largest_timestamp)
        if largest >= 0 and (best is None or largest > best.max_timestamp):
            best = segment
    if best is None:
        return None
    segment = best
    return trusting_index(log, segment, lambda: _in_segment(segment, segment.max_timestamp, segment.base_offset))
