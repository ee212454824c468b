"""Keeps the topics matched by a group's patterns up to date, as topics and ACLs change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from ballast_broker.coordinator.consumers.group import ConsumerGroup, PatternChange
from ballast_broker.coordinator.consumers.group_writes import VolatileGroupState, WriteTurn
from ballast_broker.coordinator.consumers.heartbeat import patterns_resolved
from ballast_broker.coordinator.consumers.resolving import resolve
from ballast_broker.coordinator.host import Host
from ballast_broker.coordinator.shard import Shard
from ballast_wire.errors import ApiError

log = logging.getLogger(__name__)

# How long resolved patterns are trusted where ACLs apply: nothing tells the group when those change.
RIGHTS_HOLD_MS = 600_000
RETRY_S = 5.0
TakeTurn = Callable[[Shard, str], AbstractAsyncContextManager[WriteTurn]]


class PatternResolver:
    def __init__(self, host: Host, turn: TakeTurn, *, takes_rights: bool) -> None:
        self._host = host
        self._turn = turn
        self._takes_rights = takes_rights

    def look_at_rights(self, life: VolatileGroupState, shard: Shard, group_id: str) -> None:
        group = shard.consumer_groups.get(group_id)
        if group is None or life.may_describe is None or life.resolving:
            return
        if life.unresolved or self._host.now().monotonic_ms - life.resolved_ms > RIGHTS_HOLD_MS:
            self.resolve(life, shard, group)

    def resolve(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup) -> None:
        life.unresolved = self._takes_rights and life.may_describe is None
        if life.unresolved:
            return
        if life.resolving:
            life.resolve_again = True
        elif group.patterns():
            life.resolving, life.resolved_ms = True, self._host.now().monotonic_ms
            self._host.start(self._resolve(life, shard, group.group_id))

    async def _resolve(self, life: VolatileGroupState, shard: Shard, group_id: str) -> None:
        """Resolve the group's patterns, or then those of the next one of its name; the result takes effect once it is
        committed.
        """
        try:
            while self._host.is_current(shard) and (group := shard.consumer_groups.get(group_id)) is not None:
                life.resolve_again = False
                image = self._host.image()
                found: list[PatternChange] = []
                for pattern in sorted(group.patterns()):
                    resolved = await resolve(pattern, image, self._host.now().wall_ms, life.may_describe)
                    found.append(PatternChange(pattern, resolved))
                try:
                    async with self._turn(shard, group_id) as turn:
                        if shard.consumer_groups.get(group_id) is group:
                            await turn.write(shard, group, patterns_resolved(group, found, image.topics))
                except ApiError as error:
                    log.warning("patterns of group %s could not be stored: %s", group_id, error.code.name)
                    await asyncio.sleep(RETRY_S)
                    continue
                if not life.resolve_again:
                    return
        finally:
            life.resolving = False
