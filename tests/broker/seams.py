"""Deterministic implementations of the broker's seams (clock, randomness) for unit tests."""

from __future__ import annotations

import random


class TurnedClock:
    """A clock that stands still until the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class DrawnRandom:
    """Draws from a generator that may be shared."""

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
