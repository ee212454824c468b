"""What a broker is given of the world (seams), as tests of its rooms want it: nothing of it happens by itself."""

from __future__ import annotations

import random


class TurnedClock:
    """Stands still until the test turns it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class DrawnRandom:
    """Draws from a generator that others may draw from as well."""

    def __init__(self, drawn_from: random.Random) -> None:
        self._random = drawn_from

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def bytes_of(self, count: int) -> bytes:
        return self._random.randbytes(count)


class SeededRandom(DrawnRandom):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(random.Random(seed))
