"""The deadlines of group members: for heartbeats, for revoking partitions, for rejoining and for syncing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.group import Classic, ConsumerGroup, Member
from ballast_broker.coordinator.consumers.group_writes import VolatileGroupState
from ballast_broker.coordinator.host import Host
from ballast_broker.coordinator.shard import Shard

RETRY_S = 5.0
Expire = Callable[[VolatileGroupState, Shard, ConsumerGroup], Coroutine[Any, Any, None]]
"""Called when members may have missed deadlines: find them and remove them."""


class Deadlines:
    """A group's deadlines live in its `VolatileGroupState`, with one timer for the first of them."""

    def __init__(self, host: Host, config: ConsumerConfig, expire: Expire) -> None:
        self._host = host
        self._config = config
        self._expire = expire

    def beat(self, life: VolatileGroupState, group_id: str, member_id: str, classic: Classic | None = None) -> None:
        """The member was heard from: restart its session timeout."""
        if classic is not None:
            timeout_ms = classic.session_timeout_ms
        else:
            timeout_ms = self._config.session_timeout_of(group_id, self._host.image())
        life.sessions[member_id] = self._host.now().monotonic_ms + timeout_ms

    def note_revocation(self, life: VolatileGroupState, group: ConsumerGroup, member_id: str) -> None:
        """Start the rebalance timeout of a member that has to revoke partitions.

        For a classic member it starts with the heartbeat that tells it to rejoin.
        """
        member = group.members.get(member_id)
        if member is None or not member.current.revoking or member.about.classic is not None:
            life.revocations.pop(member_id, None)
        elif life.revocations.get(member_id, (None,))[0] != member.current.epoch:
            life.revocations[member_id] = member.current.epoch, self._until_ms(member)

    def await_join(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup, member: Member) -> None:
        """A classic member was told to rejoin."""
        life.joins.setdefault(member.member_id, self._until_ms(member))
        self.set_timer(life, shard, group)

    def await_sync(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup, member: Member) -> None:
        """A classic member has joined and has to sync."""
        life.joins.pop(member.member_id, None)
        life.syncs[member.member_id] = self._until_ms(member)
        self.set_timer(life, shard, group)

    def _until_ms(self, member: Member) -> int:
        return self._host.now().monotonic_ms + member.about.rebalance_timeout_ms

    def set_timer(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup) -> None:
        due_ms = life.next_deadline_ms()
        if due_ms is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0, due_ms - self._host.now().monotonic_ms) / 1000
        if life.timer is not None:
            if life.timer.when() <= at:
                return  # it fires early enough; deadlines that moved back are found then
            life.timer.cancel()
        life.timer = loop.call_at(at, self._wake, life, shard, group)

    def _wake(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup) -> None:
        life.timer = None
        if self.due(life, group):
            self._host.start(self._expire(life, shard, group))
        else:
            self.set_timer(life, shard, group)

    def due(self, life: VolatileGroupState, group: ConsumerGroup) -> list[str]:
        now_ms = self._host.now().monotonic_ms
        waited_for = (life.sessions, life.joins, life.syncs)
        late = [member_id for each in waited_for for member_id, until_ms in each.items() if until_ms <= now_ms]
        for member_id, (epoch, until_ms) in life.revocations.items():
            member = group.members.get(member_id)
            if until_ms <= now_ms and member is not None and member.current.epoch == epoch:
                late.append(member_id)
        return [member_id for member_id in dict.fromkeys(late) if member_id in group.members]

    def expired(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup) -> None:
        """Late members were handled as far as possible; check again later for those that remain."""
        alive = self._host.is_current(shard) and shard.consumer_groups.get(group.group_id) is group
        if alive and life.timer is None:
            delay_s = RETRY_S if self.due(life, group) else 0.0
            life.timer = asyncio.get_running_loop().call_later(delay_s, self._wake, life, shard, group)
