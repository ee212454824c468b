"""Rolls segments: when one ends, and how the next begins. Loop thread; part of `Log`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ballast_broker.config.logs import LogConfig
from ballast_broker.handles import are_out
from ballast_broker.storage import flushing, lookup, retention
from ballast_broker.storage.segment import MAXIMUM_RELATIVE_OFFSET, Segment
from ballast_wire.names import TopicPartition, spread

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


def roll_ms(config: LogConfig, partition: TopicPartition) -> int:
    """`segment.ms` minus the partition's jitter, so that partitions do not all roll at once."""
    longest = config.segment_ms
    if "compact" in config.cleanup_policy:  # the active segment is never compacted: it must end in time
        longest = min(longest, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, longest)
    if jitter <= 0:
        return longest
    return longest - spread(partition.topic, partition.partition, jitter)


def roll_for(log: Log, last_offset: int) -> Segment:
    """Roll to a segment in which `last_offset`, the next batch's, fits a relative offset."""
    base_offset = max(log.end_offset, last_offset - MAXIMUM_RELATIVE_OFFSET)
    if not log.active.size and base_offset == log.active.base_offset:
        return log.active
    return log.roll(base_offset)


def roll(log: Log, base_offset: int) -> Segment:
    old = log.active
    if not old.size and old.base_offset == base_offset:
        return old
    if old.size:
        old.seal()
        log.unindexed_from = max(log.unindexed_from, base_offset)
    flushing.write_epochs(log)
    if old.size and base_offset == log.end_offset > log.recovery_point and _reaches_end(log, old):
        flushing.note_unflushed(log, base_offset)
    producers = log.producers
    segment = log.new_segment(base_offset)
    if not old.size:
        retention.forget_segments(log, [old])
    producers.map_end_offset = base_offset
    _take_snapshot(log, base_offset)
    log.context.flush_later(log)
    return segment


def _take_snapshot(log: Log, base_offset: int) -> None:
    """The new segment exists, so do not fail for want of file descriptors: loading replays from an earlier snapshot."""
    try:
        log.snapshots.take(log.producers, base_offset, log.bases)
    except OSError as error:
        if not are_out(error):
            raise


def create_segment(log: Log, base_offset: int) -> Segment:
    config, context = log.config, log.context
    segment = Segment(context.disk, context.open_files, log.folder, base_offset, 0, config.segment_index_bytes)
    segment.create(context.clock.wall_ms(), preallocate_bytes=config.segment_bytes if config.preallocate else 0)
    return segment


def _reaches_end(log: Log, segment: Segment) -> bool:
    """False if the records end before the log does: after a truncation inside a batch or a compaction gap."""
    if not log.truncations:
        return True
    last = lookup.trusting_index(log, segment, lambda: segment.boundary_before(segment.size))
    return last is not None and last[1] == log.end_offset
