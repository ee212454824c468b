"""The real clock and the real dice; disk, threads and sockets come from their own rooms."""

from __future__ import annotations

import os
import random
import time


class RealClock:
    def __init__(self) -> None:
        self.monotonic = time.monotonic  # several times in each request: no call of ours around it

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RealRandom:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def bytes_of(self, count: int) -> bytes:
        return os.urandom(count)
