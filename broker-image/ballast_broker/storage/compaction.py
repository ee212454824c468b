"""Chooses the log to compact next, and puts the cleaner's result in place. Loop thread.

The result replaces segments only if they are still exactly those that were cleaned; otherwise it is discarded.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ballast_broker.config.logs import LONG_MAX
from ballast_broker.handles import OUT_OF_HANDLES
from ballast_broker.storage import flushing, retention
from ballast_broker.storage.cleaner import MAP_ENTRY_BYTES, CleanedGroup, CleanJob, CleanResult
from ballast_broker.storage.cleaner_process import CleanerDied, CleanerFailed, CleanerMissing, CleanerRunner
from ballast_broker.storage.directories import LogDirectory, all_but_silent
from ballast_broker.storage.errors import LogDirectoryFailure, OutOfHandles
from ballast_broker.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager

_KINDS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)  # the log last: its rename commits the swap
# A temporary shortage of the machine, not the log's or the disk's fault; any other OSError is the disk's.
_OF_THE_MACHINE = (*OUT_OF_HANDLES, errno.ENOMEM)
# For a log that there was no space for. What was cleaned by then frees some once the old files are removed.
PAUSE_WITHOUT_ROOM_S = 300.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dirt:
    """The dirty part of a log, offsets [first, end), and how large it is."""

    first_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def measure(log: Log, cleaned_to: int, now_ms: int) -> Dirt:
    """The dirty part: from where cleaning ended to the first segment that is active, too young, or not stable to its
    end."""
    first = min(max(cleaned_to, log.bases[0]), log.end_offset)
    lag_ms = log.config.min_compaction_lag_ms
    end = min(log.active.base_offset, log.last_stable_offset)
    clean_bytes = dirty_bytes = 0
    limit = first
    overdue = False
    for segment, following in zip(log.segments, log.bases[1:], strict=False):
        if following <= first:
            clean_bytes += segment.size
            continue
        if following > end or (lag_ms > 0 and retention.timestamp_of(log, segment) > now_ms - lag_ms):
            break
        dirty_bytes += segment.size
        limit = following
        if log.config.max_compaction_lag_ms < LONG_MAX and segment.size:
            timestamp = segment.first_batch_timestamp()  # without a timestamp its age is unknown
            overdue = overdue or 0 < timestamp < now_ms - log.config.max_compaction_lag_ms
    return Dirt(first, limit, clean_bytes, dirty_bytes, overdue)


def make_job(log: Log, dirt: Dirt, now_ms: int, map_entries: int, reserve_bytes: int | None = None) -> CleanJob:
    return CleanJob(
        folder=log.folder.path,
        segments=[(s.base_offset, s.size) for s in log.segments[:-1] if s.base_offset < dirt.end_offset],
        first_dirty_offset=dirt.first_offset,
        dirty_end_offset=dirt.end_offset,
        map_entries=map_entries,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        producers={number: (state.epoch, state.last_offset) for number, state in log.producers.items()},
        aborted=log.aborted_transactions(log.bases[0], dirt.end_offset),
        reserve_bytes=reserve_bytes,
    )


def swap_in(log: Log, sources: list[Segment], cleaned: CleanedGroup) -> None:
    """Replace all of `sources` by the `.cleaned` files named after the first of them."""
    disk, context = log.context.disk, log.context
    base_offset, limit = sources[0].base_offset, log.config.segment_index_bytes
    fresh = Segment(disk, context.open_files, log.folder, base_offset, cleaned.size, limit)
    fresh.aborted.adopt(cleaned.aborted)
    kinds = (TRANSACTION_INDEX_SUFFIX, *_KINDS) if cleaned.aborted else _KINDS
    for kind in kinds:
        disk.rename(fresh.path(kind) + CLEANED_SUFFIX, fresh.path(kind) + SWAP_SUFFIX)
    number = log.segments.index(sources[0])
    flushing.forget_unflushed(log, log.segments[number + len(sources)])
    retired: list[str] = []
    with log.flush_lock:  # a concurrent flush sees either the old names or the new ones
        for source in sources:
            retired += retention.retire(source)
            log.size_bytes -= source.size
        for kind in kinds:
            disk.rename(fresh.path(kind) + SWAP_SUFFIX, fresh.path(kind))
    fresh.created_ms = sources[0].created_ms
    log.segments = [*log.segments[:number], fresh, *log.segments[number + len(sources) :]]
    log.bases = [segment.base_offset for segment in log.segments]
    log.size_bytes += cleaned.size
    log.known_positions.clear()
    context.remove_later(retired, log.config.file_delete_delay_ms)


class Compactor:
    """Cleans one log after the other, the dirtiest first; a silent directory does not hold up the others."""

    def __init__(self, manager: LogManager, runner: CleanerRunner) -> None:
        self._manager = manager
        self._runner = runner
        self._configured = asyncio.Event()
        self.configure({})
        self.cleaned_bytes = 0
        self.passes = 0
        self.uncleanable: dict[TopicPartition, str] = {}
        self.without_room: dict[TopicPartition, float] = {}  # when it is tried again at the earliest
        self._died_of: TopicPartition | None = None
        self.under_way: dict[LogDirectory, asyncio.Task[bool]] = {}

    @property
    def left_alone(self) -> int:
        """How many logs are not cleaned, and so only grow: the uncleanable ones and those that lack space for it."""
        return len(self.uncleanable.keys() | self.without_room.keys())

    def configure(self, dynamic: Mapping[str, Any]) -> None:
        """Apply the dynamic configuration, else the broker's file. A new rate applies to jobs under way, too."""
        config = self._manager.config
        self._backoff_s = dynamic.get("log.cleaner.backoff.ms", config.log_cleaner_backoff_ms) / 1000
        self._map_bytes = dynamic.get("log.cleaner.dedupe.buffer.size", config.log_cleaner_dedupe_buffer_size)
        rate = dynamic.get("log.cleaner.io.max.bytes.per.second", config.log_cleaner_io_max_bytes_per_second)
        self._runner.change_rate(rate if 0 < rate < math.inf else 0.0)
        self._configured.set()

    async def run(self) -> None:
        """Clean while there is something to clean, else wait; until cancelled."""
        try:
            while True:
                if not await self.clean_dirtiest():
                    await self._wait()
        finally:
            for cleaning in self.under_way.values():
                cleaning.cancel()
            await asyncio.gather(*self.under_way.values(), return_exceptions=True)
            await self._runner.close()

    async def _wait(self) -> None:
        self._configured.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._backoff_s):
                await self._configured.wait()

    async def dirtiest(self, now_ms: int) -> Log | None:
        """The dirtiest of all logs. Yields to the event loop in between."""
        self._forget_who_waits_no_more()
        await all_but_silent({each: each.ask_usage() for each in self._manager.online_directories()})
        best, most = None, (False, 0.0)
        async for log in self._manager.maintenance.slices(self._manager.logs.values()):
            dirt = self._dirt_of(log, now_ms)
            if dirt is not None and (best is None or (dirt.overdue, dirt.ratio) > most):
                best, most = log, (dirt.overdue, dirt.ratio)
        return best

    def _dirt_of(self, log: Log, now_ms: int) -> Dirt | None:
        """None if there is not enough to clean, or the log must not be cleaned now."""
        if "compact" not in log.config.cleanup_policy or log.cleaning_paused or log.closed:
            return None
        if log.topic_partition in self.uncleanable or log.directory.threads.silent or log.directory in self.under_way:
            return None
        try:
            with log.disk_faults():
                dirt = measure(log, log.cleaned_to, now_ms)
        except LogDirectoryFailure:
            return None
        enough = dirt.overdue or dirt.ratio > log.config.min_cleanable_dirty_ratio
        if not dirt.dirty_bytes or not enough:
            self.without_room.pop(log.topic_partition, None)
            return None
        return dirt if self._has_room(log) else None

    def _has_room(self, log: Log) -> bool:
        """Whether there is space to clean at least its oldest segment, the smallest unit of cleaning."""
        now_s = self._manager.clock.monotonic()
        if self.without_room.get(log.topic_partition, now_s) > now_s:
            return False
        if self._manager.placement.has_room(log.directory, log.segments[0].size):
            return True
        self._has_to_wait_for_room(log, now_s)
        return False

    def _has_to_wait_for_room(self, log: Log, until_s: float) -> None:
        """A full disk is not a failed one: only a write that cannot wait takes it offline (DIR-42)."""
        if log.topic_partition not in self.without_room:
            logger.error("cleaning %s has to wait for room in %s", log.topic_partition, log.directory.path)
        self.without_room[log.topic_partition] = until_s

    def _forget_who_waits_no_more(self) -> None:
        for topic_partition in list(self.without_room):
            log = self._manager.get(topic_partition)
            if log is None or not log.directory.online or "compact" not in log.config.cleanup_policy:
                del self.without_room[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition's log is gone: drop what is known about it."""
        self.uncleanable.pop(topic_partition, None)
        self.without_room.pop(topic_partition, None)

    async def clean_dirtiest(self) -> bool:
        """Clean one log; returns whether there may be more to clean."""
        now_ms = self._manager.clock.wall_ms()
        log = await self.dirtiest(now_ms)
        if log is None:
            return False
        dirt = self._dirt_of(log, now_ms)
        if dirt is None:
            return True  # truncated, closed or moved since it was measured
        directory = log.directory
        cleaning = self.under_way[directory] = asyncio.create_task(self._try_to_clean(log, dirt, now_ms))
        cleaning.add_done_callback(lambda _: self.under_way.pop(directory))
        await all_but_silent({directory: cleaning})
        return cleaning.result() if cleaning.done() else True

    async def _try_to_clean(self, log: Log, dirt: Dirt, now_ms: int) -> bool:
        try:
            await self.clean(log, dirt, now_ms)
            self._died_of = None
        except CleanerMissing as error:
            logger.error("cleaning has to wait: %s", error)
            return False
        except CleanerDied as error:
            logger.error("cleaning %s failed: %s", log.topic_partition, error)
            if self._died_of != log.topic_partition:
                self._died_of = log.topic_partition
                return False  # once more, after a while
            self.uncleanable[log.topic_partition] = str(error)
        except CleanerFailed as error:
            logger.error("cleaning %s failed: %s", log.topic_partition, error)
            if error.os_error in _OF_THE_MACHINE:
                return False  # once more, after a while
            if error.os_error is not None and not log.closed:
                log.directory.fail(OSError(error.os_error, str(error)))
            elif not log.closed:
                self.uncleanable[log.topic_partition] = str(error)
        except LogDirectoryFailure as error:
            logger.error("cleaning %s failed: %s", log.topic_partition, error)
            return not isinstance(error, OutOfHandles)
        return True

    async def clean(self, log: Log, dirt: Dirt, now_ms: int) -> CleanResult:
        config = self._manager.config
        entries = int(self._map_bytes * config.log_cleaner_io_buffer_load_factor)
        job = make_job(log, dirt, now_ms, max(1, entries // MAP_ENTRY_BYTES), config.log_dir_reserve_bytes)
        segments = {segment.base_offset: segment for segment in log.segments[: len(job.segments)]}
        truncations = log.truncations
        # Gaps left by cleaning must not look like holes left by a power failure.
        end = log.active.base_offset
        await log.directory.threads.run(lambda: log.flush(end))
        try:
            result = await self._runner.run(job)
        except CleanerFailed:
            await log.directory.threads.answers()
            self._throw_away(log, list(segments))
            if log.truncations == truncations and not any(segment.deleted for segment in segments.values()):
                raise
            return CleanResult(dirt.first_offset, [])  # its input was removed meanwhile: try another time
        await log.directory.threads.answers()
        self.passes += 1
        self.cleaned_bytes += result.read_bytes
        with log.disk_faults():
            if result.out_of_room:
                done = {group.replaced[0] for group in result.groups}
                self._throw_away(log, [base for base in segments if base not in done])
            if log.cleaning_paused or log.closed or log.truncations != truncations:
                self._throw_away(log, [group.replaced[0] for group in result.groups])
                return result
            whole = True
            for group in result.groups:
                sources = [segments[base] for base in group.replaced]
                # Where retention took a part, the rest stays as it is: then no later one may lack a tombstone for it.
                whole = whole and len({source.deleted for source in sources}) == 1
                if whole and not sources[0].deleted:
                    swap_in(log, sources, group)
                else:
                    self._throw_away(log, group.replaced[:1])
        # Sync the renames before `cleaned_to` moves: after a power failure old segments could count as cleaned, and one
        # day lose a tombstone but not what it deletes.
        await log.directory.threads.run(lambda: flushing.sync_names(log))
        if result.out_of_room:
            self._has_to_wait_for_room(log, self._manager.clock.monotonic() + PAUSE_WITHOUT_ROOM_S)
        else:
            self.without_room.pop(log.topic_partition, None)
        if whole and not result.out_of_room and log.truncations == truncations:
            log.cleaned_to = result.end_offset
            await self._manager.maintenance.checkpoint_cleaned_offsets()
        return result

    def _throw_away(self, log: Log, bases: Iterable[int]) -> None:
        """Remove the `.cleaned` files with these base offsets, finished or not."""
        if not log.directory.online:
            return
        with log.disk_faults():
            for base in bases:
                for kind in (TRANSACTION_INDEX_SUFFIX, *_KINDS):
                    path = f"{log.folder.path}/{base:020d}{kind}{CLEANED_SUFFIX}"
                    if self._manager.disk.exists(path):
                        self._manager.disk.remove(path)
