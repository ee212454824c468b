"""Quotas on creating and deleting partitions: `controller_mutation_rate`. PURE.

From the versions of KIP-599 on, a request that finds the quota exceeded is rejected topic by topic; older versions,
whose clients do not know the error, are executed and throttled. Both may overdraw the quota by any amount.
"""

from __future__ import annotations

from ballast_broker.rates import TokenBucket
from ballast_wire.errors import ApiError, ErrorCode

LONGEST_TOLD_MS = 2**31 - 1  # throttle_time_ms is an int32
STRICT_SINCE = {19: 6, 20: 5, 37: 3}  # CreateTopics, DeleteTopics, CreatePartitions


class MutationQuota:
    """The quota of one request."""

    def __init__(self, bucket: TokenBucket, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._over = False

    def take(self, partitions: int) -> None:
        """Raise ApiError THROTTLING_QUOTA_EXCEEDED if no more may be changed now."""
        if self._strict and self._bucket.exceeded():
            self._over = True
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._bucket.take(partitions)
        self._over = self._over or (not self._strict and self._bucket.exceeded())

    @property
    def throttle_ms(self) -> int:
        """How long a client over its quota should wait."""
        return min(round(self._bucket.wait_s() * 1000), LONGEST_TOLD_MS) if self._over else 0
