"""Appends while a disk stalls: the same checks and bookkeeping on the loop, but the write in a thread (LOG-32).

Callers check `Log.append_is_slow` first, and use these instead of the log's own methods while it is true.
Guarantees: appends to one log are made in the order of the calls; the log end moves only when the bytes are in the
file. Other events of the log (a new leader epoch, truncation, closing) do not wait: they interrupt the append
(`Log.interrupt_appends`), which fails with NOT_LEADER_OR_FOLLOWER, so that clients retry. The bytes that it left behind
the log end are cut off before the next append writes. A move waits for its turn, and takes along who waits behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ballast_broker.seams import File
from ballast_broker.storage import appending
from ballast_broker.storage.directories import SLOW_WRITE_S
from ballast_broker.storage.directory_threads import DirectoryThreads
from ballast_broker.storage.log import Log
from ballast_broker.storage.producers import Verification
from ballast_broker.storage.segment import Segment
from ballast_broker.storage.slices import AppendInfo
from ballast_broker.storage.to_its_end import outlast
from ballast_broker.storage.validation import CLIENT
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import LOG_OVERHEAD, Header

T = TypeVar("T")
# A thread also waits for the GIL, 5 ms and more while the loop is busy. That must not count as a slow disk, or appends
# would never return to the loop.
SLOW_IN_THREAD_S = 4 * SLOW_WRITE_S


def append_as_leader(
    log: Log,
    batches: bytearray | memoryview,
    leader_epoch: int,
    *,
    now_ms: int,
    origin: str = CLIENT,
    verified: Verification | None = None,
) -> Coroutine[Any, Any, AppendInfo]:
    """Queues the append at once; the caller must await the coroutine or make a task of it."""

    async def append(turn: _Turn) -> AppendInfo:
        log = turn.log
        ready = appending.check_batches(log, memoryview(batches), now_ms, origin, verified)
        if isinstance(ready, AppendInfo):
            await turn.flush_if_due()  # the flush may have failed the first time
            return ready
        first = log.end_offset
        for batch in ready:
            header, last = appending.stamp(log, batch, leader_epoch)
            await turn.write(batch, header, last, now_ms)
            if leader_epoch != log.latest_epoch:
                log.epochs.assign(leader_epoch, log.end_offset - header.last_offset_delta - 1)
            appending.record_producer(log, header, last, batch)
        await turn.flush_if_due()
        return appending.appended(log, first, ready, now_ms)

    return _in_turn(log, append)


def append_as_follower(log: Log, batches: memoryview) -> Coroutine[Any, Any, AppendInfo]:
    async def append(turn: _Turn) -> AppendInfo:
        log, view = turn.log, memoryview(batches)
        parts = appending.ready_for_follower_batches(log, view)
        now_ms = log.context.clock.wall_ms()
        for position, header in parts:
            batch = view[position : position + header.length + LOG_OVERHEAD]
            last = header.base_offset + header.last_offset_delta
            await turn.write(batch, header, last, now_ms)
            if header.leader_epoch != log.latest_epoch:
                log.epochs.assign(header.leader_epoch, header.base_offset)
            appending.record_producer(log, header, last, batch)
        await turn.flush_if_due()
        return appending.appended_by_follower(log, parts, view)

    return _in_turn(log, append)


def _in_turn(log: Log, append: Callable[[_Turn], Coroutine[Any, Any, AppendInfo]]) -> Coroutine[Any, Any, AppendInfo]:
    """Counts the append from the call on, so that no later one is written on the loop and overtakes it."""
    log.slow_appends += 1
    turn = _Turn(log)
    lock = turns_of(log)

    async def wait_and_append() -> AppendInfo:
        try:
            async with lock:
                turn.check()
                return await append(turn)
        finally:
            turn.log.slow_appends -= 1

    return wait_and_append()


def turns_of(log: Log) -> asyncio.Lock:
    """Held by the append that is under way."""
    if log.slow_append_turn is None:
        log.slow_append_turn = asyncio.Lock()  # fair: first come, first served
    return log.slow_append_turn


def hand_over(log: Log, moved_to: Log) -> None:
    """Another log has taken the place of this one: it gets the appends that wait, before any later one."""
    moved_to.slow_append_turn, moved_to.slow_appends = log.slow_append_turn, log.slow_appends
    moved_to.interruptions = log.interruptions
    log.moved_to = moved_to


class _Turn:
    """One append's exclusive turn at the log; notices interruptions from the call on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._interruptions = log.interruptions
        self._cancelled = False

    @property
    def log(self) -> Log:
        """Where it is now: no move ends during a turn, but while one is waited for."""
        while self._log.moved_to is not None:
            self._log = self._log.moved_to
        return self._log

    @property
    def _threads(self) -> DirectoryThreads:
        return self.log.directory.threads

    @property
    def _over(self) -> bool:
        return self._cancelled or self.log.closed or self.log.interruptions != self._interruptions

    def check(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._over:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def write(self, batch: memoryview, header: Header, last_offset: int, now_ms: int) -> None:
        log, clock, max_timestamp = self.log, self.log.context.clock, header.max_timestamp
        if self._threads.silent:  # `segment_for_append` may create a segment, on the loop
            await self._threads.answers()
            self.check()
        try:
            segment = log.segment_for_append(len(batch), last_offset, max_timestamp, now_ms)
            segment.writable_file()
            file, position = segment.hold(), segment.size
            log.write_in_progress = True
            log.invalidate_write_state()
            try:
                took_s, waited = await self._finish(self._threads.run(lambda: self._write(file, batch, position)))
                if self._over:
                    await self._cut_off(segment, file)
            finally:
                segment.release()
                log.write_in_progress = False
        except OSError as error:
            raise log.directory.failure_for(error) from error
        if took_s > SLOW_IN_THREAD_S:
            log.directory.note_slow_write(clock.monotonic(), waited=waited)
        self.check()
        appending.expect_marker(log, header)
        with log.disk_faults():  # an index write may fail, or the directory have failed meanwhile
            log.account_appended(segment, len(batch), last_offset, max_timestamp, now_ms)

    async def flush_if_due(self) -> None:
        if self.log.flush_is_due:
            await self._finish(self._threads.run(self.log.flush))
            self.check()

    def _write(self, file: File, batch: memoryview, position: int) -> tuple[float, bool]:
        """In the thread, so that only the disk is measured. Returns how long the write took and whether it blocked."""
        directory, monotonic = self.log.directory, self.log.context.clock.monotonic
        waits, began_s = directory.waits(), monotonic()
        file.pwrite(batch, position)
        return monotonic() - began_s, directory.waits() != waits

    async def _finish(self, work: Awaitable[T]) -> T:
        """A thread cannot be cancelled: a cancelled append keeps its turn until the thread is done."""
        task = asyncio.ensure_future(work)
        if await outlast(task) is not None:
            self._cancelled = True
        return task.result()

    async def _cut_off(self, segment: Segment, file: File) -> None:
        """Truncate the file to the segment's size; again if another truncation has changed that meanwhile."""
        size = -1
        while size != segment.size and not segment.deleted:
            size = segment.size
            await self._finish(self._threads.run(lambda size=size: file.truncate(size)))  # type: ignore[misc]
