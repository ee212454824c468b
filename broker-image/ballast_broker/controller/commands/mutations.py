"""Quotas of partitions that are made and deleted: `controller_mutation_rate`. PURE.

Since the versions of KIP-599 a request that finds a debt is refused, topic by topic; older ones, whose clients know
nothing of that, are carried out, and told to wait. Both may make a debt of any size.
"""

from __future__ import annotations

from ballast_broker.rates import TokenBucket
from ballast_wire.errors import ApiError, ErrorCode

LONGEST_TOLD_MS = 2**31 - 1  # more does not fit into an answer
STRICT_SINCE = {19: 6, 20: 5, 37: 3}  # CreateTopics, DeleteTopics, CreatePartitions


class MutationQuota:
    """Of one request."""

    def __init__(self, bucket: TokenBucket, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._over = False

    def take(self, partitions: int) -> None:
        """ApiError THROTTLING_QUOTA_EXCEEDED where no more may be changed now."""
        if self._strict and self._bucket.exceeded():
            self._over = True
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._bucket.take(partitions)
        self._over = self._over or (not self._strict and self._bucket.exceeded())

    @property
    def throttle_ms(self) -> int:
        """For how long whoever is over should wait."""
        return min(round(self._bucket.wait_s() * 1000), LONGEST_TOLD_MS) if self._over else 0
