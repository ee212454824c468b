"""Implements waiting requests (a fetch for data, a produce for its commit) and the timer wheel for their timeouts.

Waiting costs no CPU: a request is parked at its partitions and in one slot of the wheel until an event or its timeout.
Wake-ups of fetches are collected and handled once per turn of the loop, so a burst of appends makes one response.
Loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ballast_wire.errors import ErrorCode

if TYPE_CHECKING:
    from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult
    from ballast_broker.replication.replica import Replica
    from ballast_broker.replication.waiters import Waiters
    from ballast_broker.replication.watching import Watch

log = logging.getLogger(__name__)

TICK_S: Final = 0.005
LONG_WAIT_MS: Final = 500


class Expiring(Protocol):
    slot: int

    def expire(self) -> None: ...


class Deadlines:
    """A timer wheel with one timer for its earliest slot. Nothing expires early.

    A slot is 5 ms wide, for long waits up to a hundredth of the wait: an item that is discarded leaves its empty slot
    until that is due, and coarse slots keep their number low.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[Expiring, None]] = {}  # items in the order of arrival
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, item: Expiring, delay_ms: float) -> None:
        loop = asyncio.get_running_loop()
        key = math.ceil((loop.time() + delay_ms / 1000) / TICK_S)
        if delay_ms > LONG_WAIT_MS:
            coarse = 1 << int(delay_ms / LONG_WAIT_MS).bit_length() - 1
            key = -(-key // coarse) * coarse
        item.slot = key
        slot = self._slots.get(key)
        if slot is not None:
            slot[item] = None
            return
        self._slots[key] = {item: None}
        heapq.heappush(self._order, key)
        if self._order[0] == key:
            self._arm(loop)

    def discard(self, item: Expiring) -> None:
        # The slot stays, empty: its timer is set already, and most slots are shared.
        slot = self._slots.get(item.slot)
        if slot is not None:
            slot.pop(item, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._slots.clear()
        self._order.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._order[0] * TICK_S, self._fire) if self._order else None

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        # Timers may fire early by the clock's resolution; half a slot is more than that.
        now = loop.time() / TICK_S + 0.5
        while self._order and self._order[0] <= now:
            for item in self._slots.pop(heapq.heappop(self._order)):
                try:
                    item.expire()
                except Exception:  # the others must expire all the same: one timer serves all
                    log.exception("a request could not be ended in time")
        self._timer = None
        if self._order:
            self._arm(loop)


class ParkedFetch:
    """A fetch that waits for more data. `finish` reads again and answers; it is called at most once.

    A fetch of many partitions is parked before its first read, which takes several turns of the loop (`is_read`); what
    wakes it meanwhile (`woken`, `timed_out`) takes effect when that is done.
    """

    __slots__ = (
        "_deadlines", "_finish", "being_read", "entries", "from_follower", "future", "missing_bytes", "params",
        "parked_on", "slot", "timed_out", "watch", "woken",
    )  # fmt: skip

    def __init__(
        self,
        params: FetchParams,
        entries: list[FetchEntry],
        deadlines: Deadlines,
        finish: Callable[[ParkedFetch], None],
        missing_bytes: int,
        watch: Watch | None = None,
    ) -> None:
        self.params = params
        self.entries = entries
        self.watch = watch  # for a session: reads what is due there; `entries` is empty
        self.from_follower = params.replica_id >= 0
        self.missing_bytes = missing_bytes
        self.future: asyncio.Future[list[FetchResult]] = asyncio.get_running_loop().create_future()
        self.parked_on: list[Replica] = []
        self.slot = -1
        self.being_read = self.woken = self.timed_out = False
        self._deadlines = deadlines
        self._finish = finish

    def park(self, delay_ms: float, replicas: list[Replica]) -> None:
        self.parked_on = replicas
        for replica in replicas:
            replica.parked[self] = None
        if self.watch is not None:
            self.watch.parked = self
        self._deadlines.add(self, delay_ms)
        self.future.add_done_callback(self._leave)

    def _leave(self, _: asyncio.Future[list[FetchResult]]) -> None:
        """Unpark: the fetch was answered, or the client went away and the future was cancelled."""
        self._deadlines.discard(self)
        for replica in self.parked_on:
            replica.parked.pop(self, None)
        if self.watch is not None and self.watch.parked is self:
            self.watch.parked = None

    def wait(self, delay_ms: float) -> None:
        """Wait this long from now on, replacing the earlier deadline."""
        self._deadlines.discard(self)
        self._deadlines.add(self, delay_ms)

    def expire(self) -> None:
        self.end(self._finish)

    def end(self, finish: Callable[[ParkedFetch], None]) -> None:
        """On a bug fail the request, which closes its connection: otherwise the client would wait for ever."""
        try:
            finish(self)
        except Exception as error:
            log.exception("a fetch that waited could not be answered")
            if not self.future.done():
                self.future.set_exception(error)


class Wakeups:
    """Collects parked fetches that were woken; they are finished at the end of this turn of the loop."""

    def __init__(self, finish: Callable[[ParkedFetch], None]) -> None:
        self._finish = finish
        self._woken: dict[ParkedFetch, None] = {}

    def wake(self, fetch: ParkedFetch) -> None:
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._drain)
        self._woken[fetch] = None

    def _drain(self) -> None:
        woken, self._woken = self._woken, {}
        for fetch in woken:
            if not fetch.future.done():
                fetch.end(self._finish)


class PendingCommit:
    """A produce (or DeleteRecords) that waits on one partition, among its `waiters`."""

    __slots__ = ("_deadlines", "_waiters", "future", "slot")

    def __init__(self, deadlines: Deadlines, timeout_ms: int, waiters: Waiters, offset: int) -> None:
        self.future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.slot = -1
        self._deadlines = deadlines
        self._waiters = waiters
        deadlines.add(self, timeout_ms)
        waiters.add(offset, self)

    @property
    def answered(self) -> bool:
        return self.future.done()

    def answer(self, error: ErrorCode) -> None:
        self._deadlines.discard(self)
        if not self.future.done():
            self.future.set_result(error)

    def expire(self) -> None:
        if not self.future.done():
            self.future.set_result(ErrorCode.REQUEST_TIMED_OUT)
            self._waiters.gave_up()
