"""Implements replication throttles: a byte rate each for leaders, followers and moves between directories.

Over the limit nothing more is started; what was read is never refused afterwards. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_broker.replication.replica import Replica
    from ballast_broker.seams import Clock

# Kafka's own default for these rates.
UNLIMITED = 2**63 - 1
# Smaller pieces block others at the same disk and CPU for a shorter time, but need more requests.
SMALLEST_PIECE_BYTES = 65_536
FETCH_PIECE_S = 0.004


class ByteRate:
    """A token bucket of a quarter second: what is taken beyond it is a debt to be waited off.

    Over any span the bytes are at most limit x span + one quarter second + one read, so ten seconds come out within
    5 % if reads are no larger than a quarter second of the limit. `burst_s` sets another bucket size; with `full` the
    bucket starts full.
    """

    BURST_S = 0.25

    def __init__(
        self, clock: Clock, bytes_per_second: int = UNLIMITED, *, burst_s: float = BURST_S, full: bool = False
    ) -> None:
        self._clock = clock
        self._limit = bytes_per_second
        self._burst_s = burst_s
        self._available = bytes_per_second * burst_s if full else 0.0
        self._updated_s = clock.monotonic()
        self.total_bytes = 0

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def limited(self) -> bool:
        return self._limit < UNLIMITED

    def change_limit(self, bytes_per_second: int) -> None:
        """Set the limit. A new one starts with an empty bucket, and a debt under the old one is forgotten."""
        if bytes_per_second != self._limit:
            self._limit = bytes_per_second
            self._available = 0.0
            self._updated_s = self._clock.monotonic()

    def exceeded(self) -> bool:
        return self._limit < UNLIMITED and self._refill() <= 0

    def wait_s(self) -> float:
        """Seconds until something may be taken again."""
        if not self.exceeded():
            return 0.0
        return (1.0 - self._available) / self._limit if self._limit > 0 else float("inf")

    def largest_read(self, size: int) -> int:
        """`size`, or the bucket's size if that is less."""
        return size if self._limit >= UNLIMITED else max(1, min(size, int(self._limit * self._burst_s)))

    def piece(self, size: int, seconds: float) -> int:
        """`size`; under a limit what passes in so many seconds, but enough to be worth a request."""
        if self._limit >= UNLIMITED:
            return size
        return min(self.largest_read(size), max(SMALLEST_PIECE_BYTES, int(self._limit * seconds)))

    def record(self, size: int) -> None:
        self.total_bytes += size
        if self._limit < UNLIMITED:
            self._refill()
            self._available -= size

    def record_exempt(self, size: int) -> None:
        """Bytes that are not throttled: they count, but never make the debt larger than one second of the limit."""
        self.total_bytes += size
        if self._limit < UNLIMITED:
            self._available = max(self._refill() - size, min(self._available, -float(self._limit)))

    def _refill(self) -> float:
        now_s = self._clock.monotonic()
        self._available += (now_s - self._updated_s) * self._limit
        self._available = min(self._available, self._limit * self._burst_s)
        self._updated_s = now_s
        return self._available


class LeaderThrottle:
    """`leader.replication.throttled.rate`: above it out-of-sync followers of throttled partitions get no data."""

    def __init__(self, rate: ByteRate) -> None:
        self.rate = rate
        self._left_out = False

    def leaves_out(self, replica: Replica, follower: int) -> bool:
        if self._throttled(replica, follower) and self.rate.exceeded():
            self._left_out = True
            return True
        return False

    def take_wait_ms(self) -> float:
        """How long an empty fetch should wait because of this throttle; infinite if the throttle is not the reason."""
        left_out, self._left_out = self._left_out, False
        return max(self.rate.wait_s() * 1000, 1.0) if left_out else float("inf")

    def piece(self, replica: Replica, follower: int, size: int) -> int:
        return self.rate.piece(size, FETCH_PIECE_S) if self._throttled(replica, follower) else size

    def record(self, replica: Replica, follower: int, size: int) -> None:
        # All bytes of throttled partitions count, even those that in-sync followers take without being throttled.
        if self._throttled(replica, follower):
            self.rate.record(size)
        elif replica.leader_throttled:
            self.rate.record_exempt(size)

    @staticmethod
    def _throttled(replica: Replica, follower: int) -> bool:
        return replica.leader_throttled and follower not in replica.state.isr


def throttles_partition(entries: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether `leader|follower.replication.throttled.replicas` (`*` or `partition:broker` each) names this replica."""
    if not entries:
        return False
    return "*" in entries or f"{partition}:{broker_id}" in entries
