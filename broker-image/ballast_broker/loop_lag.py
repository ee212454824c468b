"""How late the event loop runs what is due: the time for which something else held it. Loop thread only."""

from __future__ import annotations

import asyncio

from ballast_broker.request_metrics import Latency

INTERVAL_S = 0.1


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Latency()

    async def watch(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.histogram.observe(max(0.0, now() - due))
