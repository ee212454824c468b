"""The real clock and random generator; disk, threads and sockets are in their own packages."""

from __future__ import annotations

import os
import random
import time


class RealClock:
    def __init__(self) -> None:
        self.monotonic = time.monotonic  # called several times per request, so without a wrapper

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
