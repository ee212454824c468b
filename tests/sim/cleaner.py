"""A cleaner that runs in a thread instead of a process of its own, as the simulated disk exists in one process only."""

from __future__ import annotations

import asyncio
import random

from ballast_broker.seams import Disk, Threads
from ballast_broker.storage.cleaner import CleanJob, CleanResult, clean
from ballast_broker.storage.cleaner_process import CleanerFailed
from ballast_broker.storage.errors import CorruptFile

DELAYS_S = (0.0, 0.05, 1.0)


class CleanerInThread:
    def __init__(self, disk: Disk, threads: Threads) -> None:
        self._disk = disk
        self._threads = threads

    async def run(self, job: CleanJob) -> CleanResult:
        try:
            return await self._threads.run(lambda: clean(self._disk, job))
        except OSError as error:
            raise CleanerFailed(str(error), error.errno) from error
        except CorruptFile as error:
            raise CleanerFailed(str(error)) from error

    def change_rate(self, bytes_per_second: float) -> None:
        """The simulated disk has no rate limit."""

    async def close(self) -> None:
        return


class SlowCleaner(CleanerInThread):
    """Waits before it cleans, and again before it returns, so that much may happen to the log meanwhile."""

    def __init__(self, disk: Disk, threads: Threads, rng: random.Random) -> None:
        super().__init__(disk, threads)
        self._rng = rng

    async def run(self, job: CleanJob) -> CleanResult:
        await asyncio.sleep(self._rng.choice(DELAYS_S))
        result = await super().run(job)
        await asyncio.sleep(self._rng.choice(DELAYS_S))
        return result
