"""The timer wheel for waiting requests: nothing expires early, and completed requests leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from ballast_broker.replication.reading import FetchParams
from ballast_broker.replication.waiters import Waiters
from ballast_broker.replication.waiting import TICK_S, Deadlines, ParkedFetch, PendingCommit, Wakeups
from ballast_wire.errors import ErrorCode

LONGEST_MS = 2**31 - 1
PATIENCE_S = 20.0


async def test_long_waits_that_end_otherwise_leave_nothing_behind() -> None:
    """A producer with the longest of timeouts, acknowledged every 10 ms for ten minutes."""
    deadlines = Deadlines()
    for number in range(60_000):
        PendingCommit(deadlines, LONGEST_MS - number * 10, Waiters(), 0).answer(ErrorCode.NONE)
    assert len(deadlines) < 1000
    deadlines.close()


@pytest.mark.parametrize("delay_ms", [1, 100, 700, 1500])
async def test_a_wait_ends_not_early_and_not_much_later(delay_ms: int) -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    began = loop.time()
    waiting = PendingCommit(deadlines, delay_ms, Waiters(), 0)
    latest = loop.time() + delay_ms / 1000 * 1.01 + TICK_S
    assert waiting.slot * TICK_S <= latest
    assert await waiting.future is ErrorCode.REQUEST_TIMED_OUT
    assert loop.time() - began >= delay_ms / 1000 - TICK_S / 2
    assert len(deadlines) == 0


class Broken:
    slot = -1

    def expire(self) -> None:
        raise RuntimeError("a bug")


async def test_a_bug_in_one_does_not_keep_the_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    deadlines = Deadlines()
    deadlines.add(Broken(), 5)
    waits = [PendingCommit(deadlines, delay_ms, Waiters(), 0) for delay_ms in (5, 50)]
    async with asyncio.timeout(PATIENCE_S):
        for waiting in waits:
            assert await waiting.future is ErrorCode.REQUEST_TIMED_OUT
    assert "a bug" in caplog.text


@pytest.mark.spec("REP-06")
@pytest.mark.parametrize("woken", [True, False])
async def test_a_bug_in_the_answer_to_one_fetch_ends_that_one_and_no_other(
    caplog: pytest.LogCaptureFixture, woken: bool
) -> None:
    """Otherwise those woken with it would wait until they expire, and the one itself for ever."""

    def finish(fetch: ParkedFetch) -> None:
        if fetch is fetches[0]:
            raise RuntimeError("a bug")
        fetch.future.set_result([])

    deadlines, wakeups = Deadlines(), Wakeups(finish)
    fetches = [ParkedFetch(FetchParams(), [], deadlines, finish, 1) for _ in range(2)]
    for fetch in fetches:
        fetch.park(60_000 if woken else 5, [])
        if woken:
            wakeups.wake(fetch)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="a bug"):
            await fetches[0].future
        assert await fetches[1].future == []
    deadlines.close()
    assert "a bug" in caplog.text
