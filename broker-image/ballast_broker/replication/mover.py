"""Implements a mover: a task that works on its queue of moves, one at a time, until it is empty. Loop thread only.

Concurrently, in threads: what was copied is synced while the next segment is copied, and if another mover is idle, a
second segment of the same move is copied ahead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ballast_broker.replication.moves import Move, MoveQueue, Stage
from ballast_broker.storage.to_its_end import to_its_end
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError

if TYPE_CHECKING:
    from ballast_broker.replication.movers import Movers
    from ballast_broker.seams import Threads
    from ballast_broker.storage.adoption import CopyAhead, SegmentCopy
    from ballast_broker.storage.segment import Segment

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0


class Mover:
    def __init__(self, movers: Movers, number: int) -> None:
        self.queue = MoveQueue()
        self.wake = asyncio.Event()
        self.working_on: Move | None = None
        self._looks_at_paused_s = 0.0
        self._movers = movers
        self._number = number
        self._task: asyncio.Task[None] | None = None
        self._sync: asyncio.Task[None] | None = None
        self._ahead: _Ahead | None = None

    def add(self, move: Move) -> None:
        self.queue.add(move)
        self.wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mover-{self._number}")

    def hand_over(self, other: Mover) -> None:
        """Hand over all moves except the one being worked on, and what is copied ahead for one of them."""
        for move in self.queue:
            if move is not self.working_on:
                self.queue.remove(move)
                other.add(move)
        ahead = self._ahead
        if ahead is not None and ahead.move is not self.working_on and not ahead.task.cancelling():  # not being dropped
            other._ahead, self._ahead = ahead, None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        ahead = await self._end_ahead()
        if ahead is not None:
            ahead.close()  # the next start removes the partial copy
        await asyncio.gather(self.synced(), return_exceptions=True)

    async def _run(self) -> None:
        turn = Turn()
        while len(self.queue):
            await turn.ends_if_long()  # steps of small logs may never block
            await self._turn()
            await self.drop_unwanted()

    async def _turn(self) -> None:
        self.wake.clear()
        current = self.working_on = self._next()
        if current is None:
            await self.wait(LONGEST_WAIT_S)
            return
        try:
            await self._movers.step(self, current)
        except ApiError as error:
            self._movers.fail(current, error.message or error.code.name)
        except OSError as error:
            self._movers.disk_failed(current, error)
        except Exception as error:
            log.exception("the move of %s failed", current.topic_partition)
            self._movers.fail(current, str(error))
        finally:
            self.working_on = None

    def _next(self) -> Move | None:
        """The next move to work on. Paused moves are re-examined only when there is nothing else to do, and once in a
        while: there may be thousands. If a disk hangs, that pauses all its moves at once."""
        current = self.queue.next()
        now_s = self._movers.now_s()
        if current is None or self._movers.is_silent(current) or now_s >= self._looks_at_paused_s:
            self._looks_at_paused_s = now_s + LONGEST_WAIT_S
            self._movers.look_at_paused(self.queue)
            return self.queue.next()
        return current

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, LONGEST_WAIT_S)):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()  # else further waits would return at once, in a busy loop

    # -- beside it ----------------------------------------------------------------------------------------------------
    async def sync_in_background(self, threads: Threads, move: Move, copy: SegmentCopy) -> None:
        """Sync the copy while the next segment is copied, so that the flush before the swap is short. A disk reports a
        failed write only once, so an error here fails the move even if another one is being worked on by then."""

        synced = move.synced  # where the copy is cut meanwhile, by another mover, another set counts

        async def sync_and_close() -> None:
            try:
                segment = await to_its_end(threads, copy.sync)
                if segment is not None:
                    synced.add(segment)
            except OSError as error:
                self._movers.disk_failed(move, error)
            finally:
                copy.close()

        try:
            await self.synced()
        except BaseException:
            copy.close()
            raise
        self._sync = asyncio.get_running_loop().create_task(sync_and_close())

    async def synced(self) -> None:
        sync, self._sync = self._sync, None
        if sync is not None:
            await sync

    def begin_ahead(self, move: Move, copy: CopyAhead) -> None:
        task = asyncio.get_running_loop().create_task(self._movers.copy_ahead(move, copy))
        self._ahead = _Ahead(move, copy, task)

    async def stopped_ahead(self, move: Move, segment: Segment) -> CopyAhead | None:
        """What was copied ahead of this segment, with the copying stopped. To take it over call `took_ahead`."""
        ahead = self._ahead
        if ahead is None:
            return None
        if not ahead.wanted or ahead.move is not move or ahead.copy.segment is not segment:
            await self._drop_ahead()
            return None
        await ahead.stop()
        if not ahead.task.cancelled():
            ahead.task.result()
        return ahead.copy

    def took_ahead(self) -> None:
        self._ahead = None

    async def drop_unwanted(self) -> None:
        if self._ahead is not None and not self._ahead.wanted:
            await self._drop_ahead()

    async def _drop_ahead(self) -> None:
        ahead = await self._end_ahead()
        if ahead is not None:
            ahead.drop()

    async def _end_ahead(self) -> CopyAhead | None:
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.stop()
        ahead.task.cancelled() or ahead.task.exception()  # ignored: others that use the disk will see the error
        self._ahead = None
        return ahead.copy


class _Ahead:
    def __init__(self, move: Move, copy: CopyAhead, task: asyncio.Task[None]) -> None:
        self.move = move
        self.copy = copy
        self.task = task

    @property
    def wanted(self) -> bool:
        return self.move.stage is Stage.COPYING and self.move.cut_at is None and not self.move.paused

    async def stop(self) -> None:
        """Stop the task, once its current piece is copied."""
        self.task.cancel()
        await asyncio.wait([self.task])
