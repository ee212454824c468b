"""Passes committed batches to the listener: one piece, all the steps of it, then the next. Loop thread only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ballast_broker.raft import snapshot_loading
from ballast_broker.raft.store import lacks_handles, next_offset
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.raft.driver import CommitListener, RaftDriver
    from ballast_broker.raft.messages import SnapshotId

TRY_AGAIN_S = 0.1  # for want of file descriptors
PIECE_BYTES = 32 * 1024


class CommitFeed:
    def __init__(self, driver: RaftDriver, listener: CommitListener) -> None:
        self._driver = driver
        self._listener = listener
        self.offset = 0
        """The first offset not handed over yet."""
        self._busy = False
        self._piece_done = asyncio.Event()
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()

    def when_at(self, last: int) -> asyncio.Future[int]:
        """A future of `last`, the last offset of a batch appended as leader; done once the batch is handed over."""
        handed_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((last, handed_over))
        return handed_over

    def fail_waiting(self) -> None:
        while self._waiting:
            _, handed_over = self._waiting.popleft()
            if not handed_over.done():
                handed_over.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))

    async def begin_with(self, snapshot: SnapshotId) -> None:
        """Let the listener load this snapshot; what is committed meanwhile comes after it."""
        self.offset = snapshot.offset
        self._busy = True
        try:
            await snapshot_loading.with_handles(lambda: self._listener.load_snapshot(snapshot))
        finally:
            self._busy = False

    async def pause(self) -> None:
        """Wait until the current piece is handed over, or the driver has stopped."""
        while self._busy and not self._driver.stopped:
            await self._piece_done.wait()

    def go_on(self) -> None:
        """Hand over the next piece: one at a time, so that a long log does not block the loop."""
        if self._busy or self._driver.stopped or self.offset >= self._committed_offset():
            return
        self._busy = True
        self._piece_done.clear()
        try:
            data = self._driver.store.read(self.offset, PIECE_BYTES, self._committed_offset())
            end_offset = next_offset(data)
        except Exception as error:
            self._busy = False
            self._piece_done.set()
            if lacks_handles(error):
                asyncio.get_running_loop().call_later(TRY_AGAIN_S, self.go_on)
            else:
                self._driver.fail(error)
            return
        self._hand_over(self._listener.committed(data), end_offset)

    def _committed_offset(self) -> int:
        return min(self._driver.core.high_watermark, self._driver.store.end_offset)

    def _hand_over(self, steps: Iterator[None], end_offset: int) -> None:
        """Run steps for a while, the rest in the next turn of the loop: a batch may change thousands of replicas."""
        driver = self._driver
        if driver.stopped:
            return
        loop, until_s = asyncio.get_running_loop(), driver.now() + LONGEST_TURN_S
        try:
            for _ in steps:
                if driver.now() > until_s:
                    loop.call_soon(self._hand_over, steps, end_offset)
                    return
        except Exception as error:
            driver.fail(error)
            return
        self.offset, self._busy = end_offset, False
        self._piece_done.set()
        while self._waiting and self._waiting[0][0] < self.offset:
            last, handed_over = self._waiting.popleft()
            if not handed_over.done():
                handed_over.set_result(last)
        if self.offset < self._committed_offset():
            loop.call_soon(self.go_on)
