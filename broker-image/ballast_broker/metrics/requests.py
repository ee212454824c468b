"""Counts and times requests where they are answered, for the metrics page. Loop thread only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from ballast_wire.errors import ErrorCode

LATENCY_BOUNDS_S: Final[tuple[float, ...]] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
SHORT_S: Final = LATENCY_BOUNDS_S[0]


class Histogram:
    """A latency histogram; the last bucket is for values above all bounds."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def note(self, seconds: float) -> None:
        self.buckets[0 if seconds <= SHORT_S else bisect_left(LATENCY_BOUNDS_S, seconds)] += 1  # nearly all are short
        self.total_s += seconds


class RequestMetrics:
    """`produce` and `fetch` are entries of `latency`, kept at hand for the hot path."""

    def __init__(self) -> None:
        self.produce = Histogram()
        self.fetch = Histogram()
        self.latency: dict[str, Histogram] = {"Produce": self.produce, "Fetch": self.fetch}
        self.errors: Counter[tuple[str, str]] = Counter()

    def answered(self, api: str, seconds: float) -> None:
        entry = self.latency.get(api)
        if entry is None:
            entry = self.latency[api] = Histogram()
        entry.note(seconds)

    def refused(self, api: str, code: int) -> None:
        """A response, or a part of one, contains this error."""
        self.errors[api, ErrorCode(code).name] += 1
