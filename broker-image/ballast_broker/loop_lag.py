"""How long the event loop's turns are: for that long nothing else is read, answered or decided. Loop thread only.

It is the loop's selector: a turn lasts from one `select` that returns to the next that begins, so no turn is missed
and no timer is needed. Only where somebody reads the metrics, since it costs a little with each turn.
"""

from __future__ import annotations

import selectors
from time import monotonic, thread_time

from ballast_broker.request_metrics import SHORT_S, Histogram


class LoopLag(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram()
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0  # of a turn's own processor time: the rest is waiting for a disk or for a processor
        self._began_s = monotonic()
        self._cpu_began_s = thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        took_s = monotonic() - self._began_s
        self.histogram.note(took_s)
        if took_s > SHORT_S:
            if took_s > self.longest_s:
                self.longest_s = took_s
            self.longest_cpu_s = max(self.longest_cpu_s, thread_time() - self._cpu_began_s)
        events: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        self._began_s, self._cpu_began_s = monotonic(), thread_time()
        return events

    def forget_longest(self) -> None:
        """What a start does before anybody is served counts for nobody."""
        self.longest_s = self.longest_cpu_s = 0.0
