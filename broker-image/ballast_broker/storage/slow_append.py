"""Appending while a disk stalls: the same checks and bookkeeping on the loop, the write itself in a thread (LOG-32).

Whoever appends looks at `Log.append_is_slow` first and uses these instead of the log's own methods while it is true.
Appends to one log take turns here, so order is kept; the log end moves only when the bytes are in the file. Nothing
else may truncate or close the log meanwhile.
"""

from __future__ import annotations

import asyncio

from ballast_broker.seams import Threads
from ballast_broker.storage.directories import SLOW_WRITE_S
from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_broker.storage.log import Log
from ballast_broker.storage.slices import AppendInfo
from ballast_broker.storage.validation import CLIENT
from ballast_wire.records import LOG_OVERHEAD


async def append_as_leader(
    log: Log,
    batches: bytearray | memoryview,
    leader_epoch: int,
    *,
    now_ms: int,
    threads: Threads,
    origin: str = CLIENT,
) -> AppendInfo:
    async with _turn(log):
        ready = log.check_batches(memoryview(batches), now_ms, origin)
        if isinstance(ready, AppendInfo):
            return ready
        first = log.end_offset
        changed = leader_epoch != log.latest_epoch and log.epochs.assign(leader_epoch, first)
        for batch in ready:
            header, last = log.stamp(batch, leader_epoch)
            await _write(log, batch, last, header.max_timestamp, now_ms, threads)
            log.record_producer(header, last)
        return log.sum_up(ready, first, now_ms, changed)


async def append_as_follower(log: Log, batches: memoryview, *, threads: Threads) -> AppendInfo:
    async with _turn(log):
        view = memoryview(batches)
        parts = log.check_follower_batches(view)
        now_ms = log.context.clock.wall_ms()
        changed = False
        stored = []
        for position, header in parts:
            batch = view[position : position + header.length + LOG_OVERHEAD]
            last = header.base_offset + header.last_offset_delta
            if header.leader_epoch != log.latest_epoch:
                changed = log.epochs.assign(header.leader_epoch, header.base_offset) or changed
            await _write(log, batch, last, header.max_timestamp, now_ms, threads)
            log.record_producer(header, last)
            stored.append(batch)
        return log.sum_up(stored, parts[0][1].base_offset, now_ms, changed)._replace(log_append_time_ms=-1)


def _turn(log: Log) -> asyncio.Lock:
    if log.slow_append_turn is None:
        log.slow_append_turn = asyncio.Lock()
    return log.slow_append_turn


async def _write(
    log: Log, batch: memoryview, last_offset: int, max_timestamp: int, now_ms: int, threads: Threads
) -> None:
    clock = log.context.clock
    try:
        segment = log.place(len(batch), last_offset, max_timestamp, now_ms)
        segment.writable_file()
        file, position = segment.hold(), segment.size
        log.write_in_progress = True
        log.invalidate_write_state()
        try:
            began_s = clock.monotonic()
            await threads.run(lambda: file.pwrite(batch, position))
            took_s = clock.monotonic() - began_s
        finally:
            segment.release()
            log.write_in_progress = False
        if took_s > SLOW_WRITE_S:
            log.directory.note_slow_write(began_s + took_s)
        log.placed(segment, len(batch), last_offset, max_timestamp, now_ms)
    except OSError as error:
        log.directory.fail(error)
        raise LogDirectoryFailure(log.directory, error) from error
