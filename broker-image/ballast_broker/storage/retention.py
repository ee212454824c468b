"""Deletes segments by age, size and log start offset. Loop thread; part of `Log`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.storage import flushing, lookup
from ballast_broker.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    UNFLUSHED_SUFFIX,
    Segment,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log

KINDS = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, UNFLUSHED_SUFFIX)
Due = Callable[[Segment, "int | None"], bool]


def delete_old_segments(log: Log, now_ms: int, most: int | None = None) -> int:
    """Delete by log start offset always, by time and size if the policy says delete. Returns how many segments went: no
    more than `most` for each of the three reasons."""
    if log.cleaning_paused:
        return 0
    count = delete_while(log, lambda _, following: following is not None and following <= log.start_offset, most)
    if "delete" not in log.config.cleanup_policy:
        return count
    retention_ms, retention_bytes = log.config.retention_ms, log.config.retention_bytes
    if retention_ms >= 0:
        count += delete_while(log, lambda segment, _: _is_older(log, segment, now_ms - retention_ms), most)
    if 0 <= retention_bytes < log.size_bytes:
        surplus = log.size_bytes - retention_bytes

        def too_much(segment: Segment, _: int | None) -> bool:
            nonlocal surplus
            if surplus < segment.size:
                return False
            surplus -= segment.size
            return True

        count += delete_while(log, too_much, most)
    return count


def _is_older(log: Log, segment: Segment, than_ms: int) -> bool:
    if timestamp_of(log, segment) >= than_ms:
        return False
    lookup.trusting_index(log, segment, segment.check_age)
    return timestamp_of(log, segment) < than_ms


def timestamp_of(log: Log, segment: Segment) -> int:
    """The timestamp from which the segment's age counts."""
    return lookup.trusting_index(log, segment, segment.retention_timestamp)


def delete_while(log: Log, due: Due, most: int | None = None) -> int:
    """Delete segments, the oldest first, while `due`, but none that reaches above the high watermark."""
    count = 0
    for number, segment in enumerate(log.segments[:most]):
        following = log.bases[number + 1] if number + 1 < len(log.bases) else None
        upper = log.end_offset if following is None else following
        if log.high_watermark < upper or (following is None and not segment.size) or not due(segment, following):
            break
        if following is None and log.write_in_progress:
            break  # a thread is writing to it: next time
        count += 1
    if not count:
        return 0
    if count == len(log.segments):
        log.roll()
    going = log.segments[:count]
    log.move_start(max(log.start_offset, log.bases[count]))
    log.update_high_watermark(log.high_watermark)
    log.epochs.truncate_from_start(log.start_offset)
    flushing.write_epochs(log)
    forget_segments(log, going)
    log.snapshots.remove_before(log.bases[0])
    return count


def forget_segments(log: Log, going: list[Segment]) -> None:
    """Unlist and rename the segments; they are removed after `file.delete.delay.ms`. Readers finish undisturbed."""
    gone = set(map(id, going))
    log.segments = [segment for segment in log.segments if id(segment) not in gone]
    log.bases = [segment.base_offset for segment in log.segments]
    log.known_positions.clear()
    paths: list[str] = []
    with log.flush_lock:  # a concurrent flush sees old names or new ones, never neither
        for segment in going:
            log.size_bytes -= segment.size
            paths += retire(segment)
    log.context.remove_later(paths, log.config.file_delete_delay_ms)


def retire(segment: Segment) -> list[str]:
    """Rename the segment's files `.deleted`; returns their new paths."""
    disk = segment.disk
    renamed = []
    for kind in KINDS:
        path = segment.path(kind)
        target = path.removesuffix(segment.suffix) + DELETED_SUFFIX if segment.suffix else path + DELETED_SUFFIX
        try:
            disk.rename(path, target)
        except FileNotFoundError:
            continue
        renamed.append(target)
    segment.suffix = DELETED_SUFFIX
    segment.deleted = True
    segment.close()
    return renamed
