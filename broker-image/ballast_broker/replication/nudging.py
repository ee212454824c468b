"""Answers followers' waiting fetches early when they should start to follow further partitions.

A fetch that waits at the leader does not name partitions that its follower has just begun to follow. Kafka lets it wait
(up to `replica.fetch.wait.max.ms`), which delays the commit of the first record of a new topic or leader. Here a leader
that expects followers for a partition completes their waiting fetches, so that they fetch again; a few times, since it
cannot know when the followers have seen the new metadata. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.replication.partition import UNKNOWN_OFFSET
from ballast_broker.replication.replica import Replica

DELAYS_S = (0.002, 0.01, 0.03, 0.06, 0.1, 0.2)


class Nudges:
    def __init__(self, answer_follower: Callable[[int], None]) -> None:
        self._answer_follower = answer_follower
        self._expected: list[Replica] = []
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, replica: Replica) -> None:
        """This replica leads in a new epoch and expects the first fetch of its followers."""
        self._expected.append(replica)
        self._round = 0
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expected = []

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DELAYS_S[self._round], self._fire)

    def _fire(self) -> None:
        self._timer = None
        followers: set[int] = set()
        still = []
        for replica in self._expected:
            missing = _not_heard_of(replica)
            if missing:
                followers.update(missing)
                still.append(replica)
        for follower in followers:
            self._answer_follower(follower)
        self._round += 1
        self._expected = still if self._round < len(DELAYS_S) else []
        if self._expected:
            self._schedule()


def _not_heard_of(replica: Replica) -> list[int]:
    state = replica.state
    if not state.is_leader or replica.offline:
        return []
    return [
        follower.broker_id
        for follower in state.followers.values()
        if follower.log_end_offset == UNKNOWN_OFFSET and follower.live_epoch is not None
    ]
