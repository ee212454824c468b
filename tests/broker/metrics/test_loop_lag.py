"""What holds the loop up is seen."""

from __future__ import annotations

import asyncio
import time

from ballast_broker.loop_lag import INTERVAL_S, LoopLag
from ballast_broker.request_metrics import LATENCY_BOUNDS_S


async def test_a_held_loop_is_noticed() -> None:
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch())
    await asyncio.sleep(0)
    held_until = time.monotonic() + INTERVAL_S + 0.15
    while time.monotonic() < held_until:
        pass
    async with asyncio.timeout(10):
        while not lag.histogram.count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    watching.cancel()
    above = sum(n for n, bound in zip(lag.histogram.buckets, (0.0, *LATENCY_BOUNDS_S), strict=True) if bound >= 0.1)
    assert above == lag.histogram.count == 1
