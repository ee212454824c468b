"""Runs groups of the classic protocol: their waiting requests, the effects of `rebalance.py`, and their timers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from ballast_broker.coordinator import rebalance, records
from ballast_broker.coordinator.effects import (
    Effect,
    JoinResult,
    Reply,
    StoreAssignment,
    StoreEmpty,
    StoreStaticMember,
    SyncResult,
)
from ballast_broker.coordinator.group import Group, GroupState, Ticket
from ballast_broker.coordinator.host import ExtraWrite, Host
from ballast_broker.coordinator.rebalance import GroupLimits, JoinAsk, SyncAsk
from ballast_broker.coordinator.shard import Shard
from ballast_wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


class _Waiting(Ticket):
    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class ClassicGroups:
    def __init__(self, host: Host, sessions_ms: tuple[int, int], limits: GroupLimits) -> None:
        self._host = host
        self._sessions_ms = sessions_ms
        self._limits = limits
        self._timers: dict[str, tuple[Group, asyncio.TimerHandle]] = {}  # a later group may have the same name

    # -- membership -----------------------------------------------------------------------------------------------
    async def join(self, group_id: str, ask: JoinAsk) -> JoinResult:
        try:
            shard = self._host.shard_of(group_id)
        except ApiError as error:
            return JoinResult(error=error.code, member_id=ask.member_id)
        low, high = self._sessions_ms
        if not low <= ask.session_timeout_ms <= high:
            return JoinResult(error=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=ask.member_id)
        while True:
            try:
                if (joined := await self._join_consumers(group_id, ask)) is not None:
                    return joined
                shard = self._host.shard_of(group_id)  # another broker may be the coordinator by now
            except ApiError as error:
                return JoinResult(error=error.code, member_id=ask.member_id)
            group = shard.group(group_id)
            if group is None:
                if ask.member_id:
                    return JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=ask.member_id)
                group = shard.classic_groups[group_id] = Group(group_id)
            ticket = _Waiting()
            self._carry_out(shard, group, rebalance.join(group, ask, ticket, self._limits, self._host.now()))
            answer: JoinResult = await ticket.future
            shard.forget_if_unused(group_id)
            if answer.error is not ErrorCode.REBALANCE_IN_PROGRESS:
                return answer
            # The group is being converted: retry here, since not every client rejoins when a JoinGroup fails like this.
            ask = replace(ask, member_id=ask.member_id or ask.fresh_member_id)

    async def _join_consumers(self, group_id: str, ask: JoinAsk) -> JoinResult | None:
        """Join a group that is or becomes a consumer-protocol one. None: there is none, or an empty one was removed."""
        waited = False
        while True:
            shard = self._host.shard_of(group_id)
            consumers = shard.consumer_groups.get(group_id)
            if consumers is None and (waited or not self.goes_over(shard, group_id)):
                return None
            if consumers is None or consumers.members:
                if (result := await self._host.join_consumers(group_id, ask)) is not None:
                    return result
                waited = True
            elif ask.member_id:
                return JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=ask.member_id)
            else:
                await self._host.end_consumers(shard, group_id)

    async def sync(self, group_id: str, ask: SyncAsk) -> SyncResult:
        try:
            shard = self._host.shard_of(group_id)
        except ApiError as error:
            # As Kafka does: old clients would give up on COORDINATOR_LOAD_IN_PROGRESS.
            loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS if loading else error.code)
        group = shard.group(group_id)
        if group is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        ticket = _Waiting()
        self._carry_out(shard, group, rebalance.sync(group, ask, ticket, self._host.now()))
        result: SyncResult = await ticket.future
        return result

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        try:
            shard = self._host.shard_of(group_id)
        except ApiError as error:
            # While loading, there is nothing to hold against the member; its next heartbeat will tell.
            return ErrorCode.NONE if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error.code
        group = shard.group(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return rebalance.heartbeat(group, member_id, instance_id, generation, self._host.now())

    def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Return one error code per member; raise ApiError if the whole request fails."""
        shard = self._host.shard_of(group_id)
        group = shard.group(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in members]
        answers, effects, now = [], [], self._host.now()
        for member_id, instance_id in members:
            error, of_member = rebalance.leave(group, member_id, instance_id, self._limits, now)
            answers.append(error)
            effects += of_member
        self._carry_out(shard, group, effects)
        return answers

    def end(self, shard: Shard, group_id: str) -> ExtraWrite:
        """End a classic group in favour of a consumer-protocol group, which inherits its offsets and members; the
        members are told to rejoin. Until the new group is committed, a dead group holds the name, so that nobody joins
        a classic group meanwhile.
        """
        group = shard.group(group_id)
        if group is None:
            shard.classic_groups[group_id] = Group(group_id, state=GroupState.DEAD, goes_over=True)
            return (), lambda committed: self._forget(shard, group_id)
        if group.is_in(GroupState.DEAD):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        before = group.previous_state, group.state, group.state_timestamp_ms

        def settled(committed: bool) -> None:
            group.goes_over = False
            if committed:
                self._forget(shard, group_id)
            elif self._host.is_current(shard):
                group.previous_state, group.state, group.state_timestamp_ms = before
                # Members could not send heartbeats meanwhile, so their sessions start afresh.
                self._carry_out(shard, group, rebalance.loaded(group, self._limits, self._host.now()))

        self.forget_timer(group)
        group.goes_over = True
        self._answer(rebalance.close(group, ErrorCode.REBALANCE_IN_PROGRESS, self._host.now()))
        return [(records.group_key(group_id), None)], settled

    @staticmethod
    def goes_over(shard: Shard, group_id: str) -> bool:
        """Whether a consumer-protocol group is being written under this name."""
        group = shard.classic_groups.get(group_id)
        return group is not None and group.goes_over

    def begin(self, shard: Shard, group: Group, rejoins: bool) -> ExtraWrite:
        """Start a classic group converted from a consumer-protocol group.

        If its members have to rejoin, the record gets a generation that none of them has, so that they also have to
        rejoin if another coordinator loads it.
        """
        stored = replace(group, generation=group.generation + rejoins)

        def settled(committed: bool) -> None:
            if committed:
                limits, now = self._limits, self._host.now()
                shard.classic_groups[group.group_id] = group
                effects = rebalance.loaded(group, limits, now)
                self._carry_out(shard, group, effects + (rebalance.rejoin(group, limits, now) if rejoins else []))

        return [(records.group_key(group.group_id), records.group_value(stored))], settled

    @staticmethod
    def _forget(shard: Shard, group_id: str) -> None:
        shard.classic_groups.pop(group_id, None)

    # -- leadership -----------------------------------------------------------------------------------------------
    def loaded(self, shard: Shard) -> None:
        for group in shard.classic_groups.values():
            self._carry_out(shard, group, rebalance.loaded(group, self._limits, self._host.now()))

    def resigned(self, shard: Shard) -> None:
        for group in shard.classic_groups.values():
            self.forget_timer(group)
            self._answer(rebalance.close(group, ErrorCode.NOT_COORDINATOR, self._host.now()))

    # -- effects and timers ---------------------------------------------------------------------------------------
    def _carry_out(self, shard: Shard, group: Group, effects: list[Effect]) -> None:
        self._answer(effects)
        if not self._host.is_current(shard):
            return  # the timers belong to the groups loaded since
        for effect in effects:
            if not isinstance(effect, Reply):
                assignments = effect.assignments if isinstance(effect, StoreAssignment) else None
                entry = records.group_key(group.group_id), records.group_value(group, assignments)
                # Append now: a tombstone decided on next has to come after it.
                appending = self._host.append(shard, [entry], lambda committed: None)
                self._host.start(self._saved(shard, group, effect, appending))
        self._set_timer(shard, group)

    def _answer(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert isinstance(effect.ticket, _Waiting)
                if not effect.ticket.future.done():
                    effect.ticket.future.set_result(effect.result)

    async def _saved(
        self,
        shard: Shard,
        group: Group,
        effect: StoreAssignment | StoreEmpty | StoreStaticMember,
        appending: Awaitable[ErrorCode],
    ) -> None:
        error = await appending
        if isinstance(effect, StoreAssignment):
            limits, now = self._limits, self._host.now()
            self._carry_out(shard, group, rebalance.assignment_stored(group, effect, error, limits, now))
        elif isinstance(effect, StoreStaticMember):
            self._carry_out(shard, group, rebalance.static_member_stored(group, effect, error))
        elif error is not ErrorCode.NONE:
            log.warning("empty group %s could not be stored: %s", group.group_id, error.name)

    def _set_timer(self, shard: Shard, group: Group) -> None:
        if shard.classic_groups.get(group.group_id) is not group:
            return  # it is gone: the timer is of the next group of that name
        due_ms = None if group.is_in(GroupState.DEAD) else group.next_deadline_ms()
        if due_ms is None:
            self.forget_timer(group)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0, due_ms - self._host.now().monotonic_ms) / 1000
        standing = self._timers.get(group.group_id)
        if standing is not None and standing[0] is group and standing[1].when() <= at:
            return  # it fires early enough; deadlines that moved back are found then
        self.forget_timer(group)
        self._timers[group.group_id] = group, loop.call_at(at, self._wake, shard, group)

    def _wake(self, shard: Shard, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        self._carry_out(shard, group, rebalance.tick(group, self._limits, self._host.now()))

    def forget_timer(self, group: Group) -> None:
        standing = self._timers.pop(group.group_id, None)
        if standing is not None:
            standing[1].cancel()
