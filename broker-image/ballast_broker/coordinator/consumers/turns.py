"""A group of the consumer protocol has one turn at a time, in which what is decided is written.

Only when it is committed does the group change and the next one get its turn. So nobody is told of an assignment that
the next coordinator would not find in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ballast_broker.coordinator.consumers import records
from ballast_broker.coordinator.consumers.group import Change, ConsumerGroup
from ballast_broker.coordinator.consumers.resolving import MayDescribe
from ballast_broker.coordinator.host import Ending, Host
from ballast_broker.coordinator.shard import Shard
from ballast_wire.errors import ApiError, ErrorCode


@dataclass(slots=True)
class Life:
    """What is known of a group beside its records. Times are monotonic milliseconds."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: dict[str, int] = field(default_factory=dict)
    revocations: dict[str, tuple[int, int]] = field(default_factory=dict)  # the epoch that is to be left, until when
    joins: dict[str, int] = field(default_factory=dict)  # until when classic members are to have joined again
    syncs: dict[str, int] = field(default_factory=dict)  # until when those that joined are to ask for what they get
    topics_changed: bool = True
    timer: asyncio.TimerHandle | None = None
    resolving: bool = False
    resolve_again: bool = False
    resolved_ms: int = 0  # when what patterns stand for was looked at last, changed or not
    unresolved: bool = False  # it was to be done, and nobody was there whose rights it takes
    may_describe: MayDescribe | None = None  # of the last member with a pattern that was heard of
    users: int = 0  # who have, or wait for, a turn

    def next_deadline_ms(self) -> int | None:
        deadlines = [*self.sessions.values(), *self.joins.values(), *self.syncs.values()]
        deadlines += [until_ms for _, until_ms in self.revocations.values()]
        return min(deadlines, default=None)

    def end(self) -> None:
        """Nobody is waited for any more."""
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            deadlines.clear()
        self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


Applied = Callable[[Life, Shard, ConsumerGroup, Sequence[Change]], None]
"""What is committed becomes what is known."""


class Turn:
    def __init__(self, applied: Applied, host: Host, life: Life, over: Callable[[], None]) -> None:
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
        ending: Callable[[], Ending | None] | None = None,
        following: Ending | None = None,
    ) -> None:
        """Raises where it is not written; until it is known whether it is, nobody else has a turn. `ending`: of what
        goes with it; asked last, when nothing can go wrong any more but the log. `following`: what comes after it."""
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
