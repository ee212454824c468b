"""The event loop's lag metric notices every long turn, whenever it happens."""

from __future__ import annotations

import asyncio
import time

import pytest

from ballast_broker.metrics.loop_lag import LoopLag
from ballast_broker.net.event_loop import EventLoop


@pytest.mark.spec("LOG-32")
def test_a_turn_that_is_long_is_seen() -> None:
    lag = LoopLag()

    async def story() -> None:
        await asyncio.sleep(0)
        lag.forget_longest()
        before = lag.histogram.count
        await asyncio.sleep(0)
        assert lag.histogram.count == before + 1
        time.sleep(0.06)  # noqa: ASYNC251 - this is what is to be seen
        await asyncio.sleep(0)
        assert lag.longest_s >= 0.06
        assert sum(lag.histogram.buckets[7:]) >= 1
        await asyncio.sleep(0.2)  # waiting is not lag
        assert lag.longest_s < 0.2
        assert lag.longest_cpu_s < 0.05

    with asyncio.Runner(loop_factory=lambda: EventLoop(lag)) as runner:
        runner.run(story())
