"""Rate limiters for quotas, computed as in Kafka. PURE.

`WindowedRate` is the amount in the last windows over the time they cover; `TokenBucket` refills continuously up to a
maximum. Both tell how long to wait; neither rejects anything itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_broker.seams import Clock

SHORTEST_SPAN_S = 0.001


@dataclass(frozen=True, slots=True)
class Window:
    """`quota.window.num` windows of `quota.window.size.seconds` each, including the current one."""

    count: int = 11
    size_s: float = 1.0

    @property
    def all_s(self) -> float:
        return self.count * self.size_s

    @property
    def past_s(self) -> float:
        """All but the current one."""
        return (self.count - 1) * self.size_s


DEFAULT_WINDOW = Window()


class WindowedRate:
    """A wait is at most one window long: a client far over its limit is throttled again and again."""

    def __init__(self, clock: Clock, limit: float, window: Window = DEFAULT_WINDOW) -> None:
        self._clock = clock
        self.limit = limit
        self._window = window
        self._windows: deque[list[float]] = deque()  # start and amount of each; at most one more than `count`
        self._total = 0.0

    def change_limit(self, limit: float) -> None:
        """Change the limit, keeping what was recorded."""
        self.limit = limit

    def record(self, amount: float) -> None:
        now_s = self._clock.monotonic()
        self._forget_before(now_s - self._window.all_s)
        if not self._windows or now_s - self._windows[-1][0] >= self._window.size_s:
            self._windows.append([now_s, 0.0])
        self._windows[-1][1] += amount
        self._total += amount

    def wait_s(self) -> float:
        """How long until the rate is at its limit, if nothing more is recorded."""
        now_s = self._clock.monotonic()
        self._forget_before(now_s - self._window.all_s)
        wait_s = self._total / self.limit - self._span_s(now_s)
        return min(max(0.0, wait_s), self._window.size_s)

    def exceeded(self) -> bool:
        return self.wait_s() > 0

    def _forget_before(self, oldest_s: float) -> None:
        while self._windows and self._windows[0][0] <= oldest_s:
            self._total -= self._windows.popleft()[1]
        if not self._windows:
            self._total = 0.0  # exactly

    def _span_s(self, now_s: float) -> float:
        """The time covered: previous windows count as full, otherwise every newcomer would be over at once."""
        elapsed_s = now_s - self._windows[0][0] if self._windows else 0.0
        missing = self._window.count - 1 - int(elapsed_s / self._window.size_s)
        return max(elapsed_s + max(0, missing) * self._window.size_s, SHORTEST_SPAN_S)


class TokenBucket:
    """A bucket that starts full. It holds `full_s` seconds' worth, at least `least`; taking more makes a debt."""

    def __init__(self, clock: Clock, limit: float, full_s: float, least: float = 0.0) -> None:
        self._clock = clock
        self.limit = limit
        self._full_s = full_s
        self._least = least
        self._tokens = self._most
        self._filled_s = clock.monotonic()

    def change_limit(self, limit: float) -> None:
        if limit != self.limit:
            self._fill()
            self.limit = limit

    def take(self, amount: float) -> None:
        self._fill()
        self._tokens -= amount

    def wait_s(self, amount: float = 0.0) -> float:
        """How long until this amount can be taken without a debt."""
        self._fill()
        return max(0.0, (amount - self._tokens) / self.limit)

    def exceeded(self) -> bool:
        return self.wait_s() > 0

    @property
    def _most(self) -> float:
        return max(self._least, self.limit * self._full_s)

    def _fill(self) -> None:
        now_s = self._clock.monotonic()
        self._tokens = min(self._tokens + (now_s - self._filled_s) * self.limit, self._most)
        self._filled_s = now_s
