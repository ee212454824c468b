"""Serialises the writes of a consumer-protocol group: one turn at a time.

The group changes and the next turn begins only when the changes are committed. So no member is told an assignment that
the next coordinator would not find in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ballast_broker.coordinator.consumers import records
from ballast_broker.coordinator.consumers.group import Change, ConsumerGroup
from ballast_broker.coordinator.consumers.resolving import MayDescribe
from ballast_broker.coordinator.host import ExtraWrite, Host
from ballast_broker.coordinator.shard import Shard
from ballast_wire.errors import ApiError, ErrorCode


@dataclass(slots=True)
class VolatileGroupState:
    """The volatile state of a group, not in its records. Times are monotonic milliseconds."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: dict[str, int] = field(default_factory=dict)
    revocations: dict[str, tuple[int, int]] = field(default_factory=dict)  # member → epoch to leave, deadline
    joins: dict[str, int] = field(default_factory=dict)  # deadlines for classic members to rejoin
    syncs: dict[str, int] = field(default_factory=dict)  # deadlines for those that joined to sync
    topics_changed: bool = True
    timer: asyncio.TimerHandle | None = None
    resolving: bool = False
    resolve_again: bool = False
    resolved_ms: int = 0  # when patterns were last resolved, changed or not
    unresolved: bool = False  # due, but no member's permissions were known
    may_describe: MayDescribe | None = None  # of the last member with a pattern heard from
    users: int = 0  # tasks that hold or wait for a turn

    def next_deadline_ms(self) -> int | None:
        deadlines = [*self.sessions.values(), *self.joins.values(), *self.syncs.values()]
        deadlines += [until_ms for _, until_ms in self.revocations.values()]
        return min(deadlines, default=None)

    def end(self) -> None:
        """Drop all deadlines."""
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            deadlines.clear()
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


Applied = Callable[[VolatileGroupState, Shard, ConsumerGroup, Sequence[Change]], None]
"""Applies committed changes."""


class WriteTurn:
    def __init__(self, applied: Applied, host: Host, life: VolatileGroupState, over: Callable[[], None]) -> None:
        self._applied = applied
        self._host = host
        self._over = over
        self._is_ended = self._is_writing = False
        self.life = life

    async def write(
        self,
        shard: Shard,
        group: ConsumerGroup,
        changes: Sequence[Change],
        ending: Callable[[], ExtraWrite | None] | None = None,
        following: ExtraWrite | None = None,
    ) -> None:
        """Write the changes; raise ApiError if that fails. The turn lasts until the outcome is known.

        `ending`: returns what else to write, before the changes; called last, when only the append can still fail.
        `following`: what to write after them.
        """
        entries = [records.encode(group.group_id, change) for change in changes]
        before, also = (ending and ending()) or ((), None)
        behind, then = following or ((), None)
        if not entries:
            return

        def settled(committed: bool) -> None:
            self._is_writing = False
            if also is not None:
                also(committed)
            if committed:
                self._applied(self.life, shard, group, changes)
            if then is not None:
                then(committed)
            self._over_if_done()

        self._is_writing = True
        error = await self._host.append(shard, [*before, *entries, *behind], settled)
        if error is not ErrorCode.NONE:
            raise ApiError(error)

    def end(self) -> None:
        self._is_ended = True
        self._over_if_done()

    def _over_if_done(self) -> None:
        if self._is_ended and not self._is_writing:
            self._over()
