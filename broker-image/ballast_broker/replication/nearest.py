"""Chooses the replica that a consumer with a rack id should read from (KIP-392). PURE.

The leader serves consumers of its own rack, and those of racks without an in-sync replica. All others are sent to the
replica in their rack; they come back by themselves when that one no longer serves them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast_broker.replication.partition import Follower, Partition

NOBODY = -1


class Nearest:
    """`racks` has the racks of all live brokers, or is empty if consumers are not to be redirected."""

    def __init__(self) -> None:
        self.racks: Mapping[int, str] = {}

    def choose(self, state: Partition, rack: str, offset: int) -> int:
        """As the leader: the broker to fetch from at `offset` instead, or NOBODY."""
        racks = self.racks
        if racks.get(state.broker_id) == rack:
            return NOBODY
        candidates = [
            follower
            for follower in state.followers.values()
            if racks.get(follower.broker_id) == rack
            and follower.broker_id in state.isr
            and follower.log_start_offset <= offset <= follower.log_end_offset
        ]
        return max(candidates, key=_freshness).broker_id if candidates else NOBODY


def _freshness(follower: Follower) -> tuple[int, int]:
    return follower.log_end_offset, follower.last_caught_up_ms
