"""Runs the periodic work of storage: each directory's chores, checkpoints, retention, producer expiry.

Tasks are started and owned by whoever awaits `run`. Work over all partitions yields to the loop every 2 ms; blocking
calls go to the directory's threads, and a directory that hangs holds up no other. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ballast_broker.storage import checkpoint
from ballast_broker.storage.chores import LONGEST_SLEEP_S, Chores
from ballast_broker.storage.directories import LogDirectory, all_but_silent
from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_broker.storage.flushing import forget_marks
from ballast_broker.storage.outdated_checkpoints import Checkpoint
from ballast_broker.storage.to_its_end import to_its_end
from ballast_broker.turns import in_turns
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager

SLICE_S = 0.002
SEGMENTS_AT_ONCE = 8  # each costs a read of its beginning, and renames
# After a crash everything behind the recovery point is scanned, so it is checkpointed soon after it moves. A checkpoint
# visits every log: it gets no more than this share of the time.
CHECKPOINT_PAUSE_S = 1.0
CHECKPOINT_SHARE = 0.01
# An unchanged checkpoint is rewritten after this time all the same: it reveals the failure of a disk to which nobody
# else writes.
PROBE_S = 10.0
FLUSHES = "flushes"
logger = logging.getLogger(__name__)


class Maintenance:
    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._flushed = asyncio.Event()
        self._chores = {
            directory: Chores(directory, manager.disk, manager.clock, self._flushed.set)
            for directory in manager.all_directories
        }
        self._under_way: dict[tuple[LogDirectory, str], asyncio.Task[None]] = {}  # by directory and kind of work
        # Set when a log was deleted or moved away: what checkpoints say of it must not be applied to a namesake. Set at
        # startup, too, since nobody knows then which log they mean.
        self._gone = asyncio.Event()
        self._gone.set()
        self._checkpointing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Asked for by logs

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        """Remove the paths, all of one folder, after the delay."""
        if paths:
            self._chores_at(paths[0]).remove_later(paths, delay_ms)

    def flush_later(self, log: Log) -> None:
        self._chores[log.directory].flush_later(log)

    def log_is_gone(self) -> None:
        """A log has left its directory: rewrite the checkpoints."""
        self._gone.set()

    @property
    def removals_waiting(self) -> int:
        return sum(chores.removals_waiting for chores in self._chores.values())

    def forget_removals_under(self, folder: str) -> None:
        self._chores_at(folder).forget_removals_under(folder)

    def folder_was_renamed(self, before: str, after: str) -> None:
        self._chores_at(before).folder_was_renamed(before, after)

    async def remove_everything_waiting(self) -> None:
        """Remove all pending files now, without waiting for the delay."""
        for chores in self._chores.values():
            await chores.remove_everything_waiting()

    def _chores_at(self, path: str) -> Chores:
        return self._chores[self._manager.directory_around(path)]

    # Tasks

    async def run(self) -> None:
        """Run all periodic work until cancelled."""
        config = self._manager.config
        async with asyncio.TaskGroup() as group:
            for chores in self._chores.values():
                group.create_task(chores.run())
            group.create_task(self._checkpoint_when(self._flushed, self.checkpoint_progress))
            group.create_task(self._checkpoint_when(self._gone, self.checkpoint_everything))
            group.create_task(self._every(config.log_retention_check_interval_ms, self.delete_old_segments))
            group.create_task(
                self._every(config.log_flush_offset_checkpoint_interval_ms, self.checkpoint_recovery_points)
            )
            group.create_task(
                self._every(config.log_flush_start_offset_checkpoint_interval_ms, self.checkpoint_start_offsets)
            )
            group.create_task(
                self._every(config.replica_high_watermark_checkpoint_interval_ms, self.checkpoint_high_watermarks)
            )
            group.create_task(self._every(config.producer_id_expiration_check_interval_ms, self.expire_producers))
            group.create_task(self._every(config.log_flush_scheduler_interval_ms, self.flush_old))

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` at this interval; once, as in Apache Kafka, if the interval is not positive."""
        if interval_ms <= 0:
            await work()
        while interval_ms > 0:
            left_s = interval_ms / 1000
            while left_s > 0:
                step = min(left_s, LONGEST_SLEEP_S)
                await asyncio.sleep(step)
                left_s -= step
            await work()

    async def _checkpoint_when(self, happened: asyncio.Event, write: Callable[[], Awaitable[None]]) -> None:
        clock = self._manager.clock
        while True:
            await happened.wait()
            happened.clear()
            began = clock.monotonic()
            await write()
            took_s = clock.monotonic() - began
            await asyncio.sleep(max(CHECKPOINT_PAUSE_S, took_s / CHECKPOINT_SHARE))

    async def _in_each(self, kind: str, works: Mapping[LogDirectory, Coroutine[Any, Any, None]]) -> None:
        """Run the works concurrently. Silent directories are not waited for: their work goes on, and the caller begins
        no other of this kind there until it is done."""
        tasks = {}
        for directory, work in works.items():
            task = tasks[directory] = asyncio.get_running_loop().create_task(work)
            self._under_way[directory, kind] = task
            task.add_done_callback(lambda _, key=(directory, kind): self._under_way.pop(key))  # type: ignore[misc]
        await all_but_silent(tasks)
        for task in tasks.values():
            if task.done():
                task.result()

    def _is_busy(self, directory: LogDirectory, kind: str) -> bool:
        return (directory, kind) in self._under_way

    async def done(self, directories: Collection[LogDirectory]) -> None:
        """Wait for all work begun in these directories."""
        while going := [task for (directory, _), task in self._under_way.items() if directory in directories]:
            await asyncio.wait(going)

    # Work over all logs, in slices

    async def slices(self, logs: Iterable[Log], *, also_closed: bool = False) -> AsyncIterator[Log]:
        """Each log of an online directory, yielding to the event loop every 2 ms."""
        clock = self._manager.clock
        began = clock.monotonic()
        for log in list(logs):
            if clock.monotonic() - began > SLICE_S:
                await asyncio.sleep(0)
                began = clock.monotonic()
            if log.directory.online and (also_closed or not log.closed):
                yield log

    async def delete_old_segments(self) -> int:
        now_ms = self._manager.clock.wall_ms()
        count = 0
        async for log in self.slices(self._manager.logs.values()):
            if log.directory.threads.silent:
                continue  # renaming would block the loop
            try:
                while gone := log.delete_old_segments(now_ms, SEGMENTS_AT_ONCE):
                    count += gone
                    await asyncio.sleep(0)
                    if log.closed:
                        break
            except LogDirectoryFailure as error:
                logger.error("retention of %s failed: %s", log.topic_partition, error)
        return count

    async def expire_producers(self) -> None:
        now_ms = self._manager.clock.wall_ms()
        expiration_ms = self._manager.config.producer_id_expiration_ms
        async for log in self.slices(self._manager.logs.values()):
            if log.producers_are_loaded:
                await in_turns(log.producers.expire(now_ms, expiration_ms))

    async def flush_old(self) -> None:
        """Flush the logs that `flush.ms` makes due."""
        now_s = self._manager.clock.monotonic()
        due: defaultdict[LogDirectory, list[Log]] = defaultdict(list)
        async for log in self.slices(self._manager.logs.values()):
            if log.end_offset > log.recovery_point and (now_s - log.last_flush_s) * 1000 >= log.config.flush_ms:
                due[log.directory].append(log)
        free = {d: logs for d, logs in due.items() if not self._is_busy(d, FLUSHES)}
        await self._in_each(FLUSHES, {d: self._chores[d].flush(logs) for d, logs in free.items()})

    async def checkpoint_everything(self) -> None:
        await self.checkpoint_start_offsets()
        await self.checkpoint_high_watermarks()
        await self.checkpoint_progress()

    async def checkpoint_progress(self) -> None:
        """Checkpoint how far logs are flushed and cleaned; truncation moves both back."""
        await self.checkpoint_recovery_points()
        await self.checkpoint_cleaned_offsets()

    async def checkpoint_recovery_points(self) -> None:
        await self._checkpoint(checkpoint.RECOVERY_POINTS, lambda log: log.recovery_point)

    async def checkpoint_start_offsets(self) -> None:
        """Includes offsets equal to the first segment's base: a power failure may bring back earlier segments. Includes
        future logs: they may be swapped in before this is written again."""
        await self._checkpoint(checkpoint.LOG_START_OFFSETS, lambda log: log.start_offset or None, copies=True)

    async def checkpoint_high_watermarks(self) -> None:
        await self._checkpoint(checkpoint.HIGH_WATERMARKS, lambda log: log.high_watermark)

    async def checkpoint_cleaned_offsets(self) -> None:
        await self._checkpoint(checkpoint.CLEANER_OFFSETS, lambda log: log.cleaned_to or None)

    async def _checkpoint(self, name: str, value_of: Callable[[Log], int | None], *, copies: bool = False) -> None:
        # Periodic checkpoints, those after a flush and those at shutdown would otherwise share one temporary file.
        async with self._checkpointing[name]:
            await all_but_silent({d: task for (d, kind), task in self._under_way.items() if kind == name})
            values: dict[LogDirectory, dict[TopicPartition, int]] = {
                d: {} for d in self._manager.all_directories if d.online and not self._is_busy(d, name)
            }
            for directory in values:
                directory.checkpoints[name].begin_to_collect()

            def note(log: Log) -> None:
                value = value_of(log)
                if value is not None and log.directory in values:
                    values[log.directory][log.topic_partition] = value

            logs = self._manager.held.all_current() + (list(self._manager.future_logs.values()) if copies else [])
            async for log in self.slices(logs, also_closed=True):
                note(log)
            writes = {}
            for directory, offsets in values.items():
                file = directory.checkpoints[name]
                for topic_partition in file.collected():
                    offsets.pop(topic_partition, None)
                    for log in self._manager.held.named(topic_partition, directory, copies=copies):
                        note(log)
                # Begin before anything else can run: whatever goes or is cut from now on has to be marked.
                writes[directory] = self._write(directory, file, offsets, is_new=file.begin_to_write(offsets))
            await self._in_each(name, writes)

    async def _write(
        self, directory: LogDirectory, file: Checkpoint, offsets: dict[TopicPartition, int], *, is_new: bool
    ) -> None:
        if not directory.online:
            return
        clock = self._manager.clock
        if is_new or clock.monotonic() - file.written_s >= PROBE_S:
            path = f"{directory.path}/{file.name}"

            def write() -> None:
                directory.check_that_it_is_there()
                self._manager.disk.write_atomically(path, checkpoint.render_offsets(offsets))

            try:
                # Even if cancelled: the next writer would use the same temporary file.
                await to_its_end(directory.threads, write)
            except OSError as error:
                directory.failure_for(error)
                return
            file.written(clock.monotonic())
        await self._forget_marks(directory, file)
        file.settled()

    async def _forget_marks(self, directory: LogDirectory, file: Checkpoint) -> None:
        """Remove outdated marks. Those of a log that the manager does not hold stay."""
        manager = self._manager
        for topic_partition in file.marked():
            marks = file.outdated_marks(topic_partition)
            logs = manager.held.named(topic_partition, directory, copies=True)
            for log in logs:
                with suppress(LogDirectoryFailure):
                    await directory.threads.run(partial(forget_marks, log, marks))
            if logs:
                file.removed(topic_partition)
