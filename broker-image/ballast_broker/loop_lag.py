"""How late the event loop runs what is due: the time for which something else held it. Loop thread only."""

from __future__ import annotations

import asyncio

from ballast_broker.request_metrics import Histogram

INTERVAL_S = 0.1


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Histogram()

    async def watch(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.histogram.note(max(0.0, now() - due))
