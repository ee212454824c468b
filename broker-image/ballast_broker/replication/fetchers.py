"""Assigns partitions to this broker's fetcher groups, and knows the leaders' addresses. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.replication.fetcher import FetcherGroup, FetchTotals, Followed, Key
from ballast_broker.replication.replica import Replica
from ballast_wire.names import spread

if TYPE_CHECKING:
    from ballast_broker.replication.quotas import ByteRate
    from ballast_broker.replication.settings import ReplicationSettings
    from ballast_broker.seams import Channel, Network

# An unreachable leader is retried this often: the kernel's own SYN retries back off exponentially.
CONNECT_TIMEOUT_S = 4.0


class Fetchers:
    """All groups of this broker; a group starts with its first partition and ends with its last."""

    def __init__(
        self,
        settings: ReplicationSettings,
        network: Network,
        broker_epoch: Callable[[], int],
        rate: ByteRate,
    ) -> None:
        self._settings = settings
        self._network = network
        self._broker_epoch = broker_epoch
        self._rate = rate
        self.totals = FetchTotals()
        self._endpoints: dict[int, tuple[str, int]] = {}
        self._groups: dict[tuple[int, int], FetcherGroup] = {}
        self._group_of: dict[Key, tuple[int, int]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def update_endpoints(self, endpoints: dict[int, tuple[str, int]]) -> None:
        before, self._endpoints = self._endpoints, endpoints
        for (leader, _), group in self._groups.items():
            if before.get(leader) != endpoints.get(leader):
                group.disconnect()

    def follow(self, replica: Replica) -> None:
        """Follow the leader in the replica's state; called with every change of leader or epoch."""
        state = replica.state
        key = (replica.topic_id, replica.topic_partition.partition)
        place = (state.leader_id, spread(*replica.topic_partition, self._settings.num_replica_fetchers))
        before = self._group_of.get(key)
        if before is not None and before != place:
            self._leave(key)
        if state.leader_id < 0:
            return
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = self._open(*place)
        self._group_of[key] = place
        known = group.partitions.get(key)
        if known is None or known.replica is not replica or known.leader_epoch != state.leader_epoch:
            group.follow(key, Followed(replica, state.leader_epoch))

    def unfollow(self, replica: Replica) -> None:
        self._leave((replica.topic_id, replica.topic_partition.partition))

    def _leave(self, key: Key) -> None:
        place = self._group_of.pop(key, None)
        if place is None:
            return
        group = self._groups[place]
        group.unfollow(key)
        if not group.partitions:
            del self._groups[place]
            task = asyncio.get_running_loop().create_task(group.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, leader: int, slot: int) -> FetcherGroup:
        async def connect() -> Channel:
            endpoint = self._endpoints.get(leader)
            if endpoint is None:
                raise ConnectionError(f"broker {leader} has no address")
            timeout_s = min(self._settings.replica_socket_timeout_ms / 1000, CONNECT_TIMEOUT_S)
            return await self._network.connect(*endpoint, timeout_s=timeout_s)

        return FetcherGroup(
            f"{self._settings.broker_id}-from-{leader}-{slot}", connect, self._settings, self._broker_epoch,
            self._rate, self.totals,
        )  # fmt: skip

    async def close(self) -> None:
        groups, self._groups = list(self._groups.values()), {}
        self._group_of.clear()
        for group in groups:
            await group.close()
        await asyncio.gather(*self._closing)
