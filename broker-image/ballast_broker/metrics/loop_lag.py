"""How long the event loop's turns are: for that long nothing else is read, answered or decided. Loop thread only.

The loop tells of each, so no turn is missed and no timer is needed. Only where somebody reads the metrics, since it
costs a little with each turn.
"""

from __future__ import annotations

from time import monotonic, thread_time

from ballast_broker.metrics.requests import SHORT_S, Histogram


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Histogram()
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0  # of a turn's own processor time: the rest is waiting for a disk or for a processor
        self._began_s = monotonic()
        self._cpu_began_s = thread_time()

    def turn_begins(self) -> None:
        self._began_s, self._cpu_began_s = monotonic(), thread_time()

    def turn_ends(self) -> None:
        took_s = monotonic() - self._began_s
        self.histogram.note(took_s)
        if took_s > SHORT_S:
            if took_s > self.longest_s:
                self.longest_s = took_s
            self.longest_cpu_s = max(self.longest_cpu_s, thread_time() - self._cpu_began_s)

    def forget_longest(self) -> None:
        """What a start does before anybody is served counts for nobody."""
        self.longest_s = self.longest_cpu_s = 0.0
