"""Measures the duration of event loop turns, during which nothing else is read, answered or decided. Loop thread only.

The loop reports every turn, so none is missed and no timer is needed. Used only if metrics are enabled, since it costs
a little per turn.
"""

from __future__ import annotations

from time import monotonic, thread_time

from ballast_broker.metrics.requests import SHORT_S, Histogram


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Histogram()
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0  # CPU time of a turn: the rest was waiting for a disk or a processor
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
        """Reset: turns during startup, before clients are served, do not count."""
        self.longest_s = self.longest_cpu_s = 0.0
