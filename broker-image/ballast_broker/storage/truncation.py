"""Truncates a log at its end (a diverged follower) or at its start (DeleteRecords). Loop thread; part of `Log`.

Order on disk: whole segments from the newest down, then the cut, so that a crash in the middle leaves a shorter but
consistent log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ballast_broker.storage import flushing, lookup, outdated_checkpoints, producer_snapshots, retention
from ballast_broker.storage.recovery import rebuild_indexes
from ballast_broker.storage.segment import Segment
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


@contextlib.contextmanager
def cutting(log: Log) -> Iterator[None]:
    """For work that must not be left half done: not begun unless there are file descriptors for it."""
    with log.disk_faults():
        _look_for_handles(log)
    with log.disk_faults(halves=True):
        yield


def _look_for_handles(log: Log) -> None:
    """Open as many files as are needed at once."""
    for segment in log.segments[-1:]:
        with contextlib.suppress(FileNotFoundError):
            held = log.context.disk.open(segment.path(), writable=False)
            try:
                log.context.disk.open(segment.path(), writable=False).close()
            finally:
                held.close()


def truncate_to(log: Log, offset: int) -> None:
    """Remove everything at or after `offset`; a batch that straddles it goes as a whole."""
    if offset < 0:
        raise ValueError(f"cannot truncate {log.topic_partition} to {offset}")
    if offset >= log.end_offset:
        log.epochs.truncate_from_end(offset)
        return
    if offset < log.bases[0]:
        truncate_fully(log, offset)
        return
    segment = log.segments[log.segment_number(offset)]
    found = lookup.trusting_index(log, segment, lambda: segment.find(offset))  # before anything is changed
    if found is None:  # a sealed segment becomes the active one as it is
        lookup.trusting_index(log, segment, segment.largest_timestamp)
    _forget_after(log, offset)
    going = [later for later in log.segments if later.base_offset > offset]
    for later in reversed(going):
        retention.forget_segments(log, [later])
    if found is not None:
        _cut(log, segment, offset, found[0])
    log.start_offset = min(log.start_offset, offset)
    _after(log, offset)


def _forget_after(log: Log, offset: int) -> None:
    """Beyond `offset` nothing counts as flushed or cleaned from now on; checkpoints that say so are marked.

    Called before the cut and again after it: a flush that began in between covered data that is gone now.
    """
    if offset < max(log.recovery_point, log.cleaned_to):
        log.context.flush_later(log)
    with log.flush_lock:
        log.truncations += 1
        log.recovery_point = min(log.recovery_point, offset)
    log.directory.checkpoints.changed(log.topic_partition)
    outdated_checkpoints.mark_outdated(
        log.context.disk, log.folder.path, log.directory.checkpoints, log.topic_partition, offset
    )
    log.cleaned_to = min(log.cleaned_to, offset)


def _cut(log: Log, segment: Segment, offset: int, position: int) -> None:
    """A batch that straddles the cut goes as well; the log end is `offset` all the same, as in Kafka."""
    file = segment.writable_file()
    file.truncate(position)
    log.size_bytes -= segment.size - position
    segment.size = position
    rebuild_after_cut(log, segment, offset, position)


def rebuild_after_cut(log: Log, segment: Segment, offset: int, position: int) -> None:
    """Drop index entries that point behind the cut, and find the largest timestamp again."""
    segment.aborted.cut(offset)
    index, times = segment.offset_index, segment.time_index
    index.keep_first(index.floor(position - 1, column=1) + 1)
    times.keep_first(times.floor(offset - 1 - segment.base_offset, column=1) + 1)
    last = times.last()
    segment.max_timestamp = last[0] if last else -1
    segment.offset_of_max_timestamp = segment.base_offset + (last[1] if last else 0)
    entry = index.last()
    segment.bytes_since_index_entry = 0
    for _, header in segment.batches(entry[1] if entry else 0):
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp = header.max_timestamp
            segment.offset_of_max_timestamp = header.base_offset + header.last_offset_delta
    if not position:
        segment.first_timestamp = -2
        rebuild_indexes(segment, log.config.index_interval_bytes, active=True)


def truncate_fully(log: Log, offset: int) -> None:
    """Empty the log and let it begin at `offset`."""
    _forget_after(log, offset)
    for segment in reversed(log.segments):
        retention.forget_segments(log, [segment])
    log.start_offset = log.end_offset = offset
    log.new_segment(offset)
    log.epochs.clear()
    log.producers.clear(offset)
    for old in list(log.snapshots.offsets):
        log.snapshots.remove(old)
    _after(log, offset)


def hold_before_start(log: Log, offset: int) -> None:
    """Prepare an empty log for a batch that begins before the log start offset, which stays: only the file begins at
    `offset`."""
    start = log.start_offset
    truncate_fully(log, offset)
    log.move_start(start)
    log.update_high_watermark(start)


def _after(log: Log, offset: int) -> None:
    log.end_offset = offset
    _forget_after(log, offset)
    log.known_positions.clear()
    log.invalidate_write_state()
    log.epochs.truncate_from_end(offset)
    flushing.write_epochs(log)
    log.update_high_watermark(log.high_watermark)
    log.snapshots.remove_after(offset)
    producer_snapshots.cut_back(log.producers, log.segments, log.snapshots, offset)


def advance_start(log: Log, offset: int) -> None:
    if offset > log.high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Cannot increment the log start offset to {offset} of partition {log.topic_partition} "
            f"since it is larger than the high watermark {log.high_watermark}",
        )
    if offset > log.start_offset:
        log.move_start(offset)
        log.epochs.truncate_from_start(offset)
