"""How long the event loop's turns are: for that long nothing else is read, answered or decided. Loop thread only.

It is the loop's selector: a turn lasts from one `select` that returns to the next that begins, so no turn is missed
and no timer is needed. Only where somebody reads the metrics, since it costs a little with each turn.
"""

from __future__ import annotations

import selectors
from time import monotonic

from ballast_broker.request_metrics import LATENCY_BOUNDS_S, Histogram

SHORT_S = LATENCY_BOUNDS_S[0]


class LoopLag(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram()
        self.longest_s = 0.0
        self._began_s = monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        took_s = monotonic() - self._began_s
        histogram = self.histogram
        if took_s <= SHORT_S:  # nearly all of them
            histogram.buckets[0] += 1
            histogram.total_s += took_s
        else:
            histogram.note(took_s)
            if took_s > self.longest_s:
                self.longest_s = took_s
        events: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        self._began_s = monotonic()
        return events

    def forget_longest(self) -> None:
        """What a start does before anybody is served counts for nobody."""
        self.longest_s = 0.0
