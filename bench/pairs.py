"""Compares two sides by alternating pairs of runs, the only comparison that noisy machines allow.

Both sides run in turns; each pair gives a ratio; the result is the median of the ratios with a 95 % interval. Pairs
are added until that interval is narrow or the limit on pairs is reached.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

NARROW = 0.10


@dataclass(frozen=True, slots=True)
class Ratio:
    median: float
    low: float
    high: float
    pairs: int

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.median if self.median else float("inf")

    def text(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"


def ratio_of(values: list[float]) -> Ratio:
    """Median and its 95 % interval by order statistics (no distribution assumed; the full range below six values)."""
    ordered = sorted(values)
    count = len(ordered)
    reach = 0 if count < 6 else max(0, int((count - 1.96 * count**0.5) / 2))
    return Ratio(statistics.median(ordered), ordered[reach], ordered[count - 1 - reach], count)
