"""The groups of the consumer protocol that this broker answers for: their turns, their records and their time.

A group has one turn at a time: what a heartbeat decides is written, and only when it is committed does the group change
and the next one get its turn. So nobody is told of an assignment that the next coordinator would not find in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ballast_broker.coordinator.consumers import records
from ballast_broker.coordinator.consumers.group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    AboutChange,
    Change,
    ConsumerGroup,
    CurrentChange,
    GroupState,
    PatternChange,
)
from ballast_broker.coordinator.consumers.heartbeat import (
    Answer,
    Ask,
    ConsumerLimits,
    heartbeat,
    leave,
    patterns_resolved,
    without,
)
from ballast_broker.coordinator.consumers.resolving import MayDescribe, resolve
from ballast_broker.coordinator.host import Ending, Host
from ballast_broker.coordinator.shard import Shard
from ballast_broker.group_config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from ballast_broker.metadata.image import RESOURCE_GROUP
from ballast_wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

TURN_TIMEOUT_S = 5.0
# After so long a pattern is looked at again where rights may have changed; no record of the group tells when they do.
RIGHTS_HOLD_MS = 600_000


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    session_timeouts_ms: tuple[int, int] = (45_000, 60_000)  # the least and the most that a group may have
    heartbeat_intervals_ms: tuple[int, int] = (5_000, 15_000)
    limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    patterns_take_rights: bool = False


@dataclass(slots=True)
class _Life:
    """What is known of a group beside its records. Times are monotonic milliseconds."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: dict[str, int] = field(default_factory=dict)
    revocations: dict[str, tuple[int, int]] = field(default_factory=dict)  # the epoch that is to be left, until when
    topics_changed: bool = True
    timer: asyncio.TimerHandle | None = None
    resolving: bool = False
    resolve_again: bool = False
    unresolved: bool = False  # it was to be done, and nobody was there whose rights it takes
    may_describe: MayDescribe | None = None  # of the last member with a pattern that was heard of
    users: int = 0  # who have, or wait for, a turn


class ConsumerGroups:
    def __init__(self, host: Host, config: ConsumerConfig) -> None:
        self._host = host
        self._config = config
        self._lives: dict[str, _Life] = {}

    # -- leadership -----------------------------------------------------------------------------------------------
    def loaded(self, shard: Shard) -> None:
        """From now on every member has a whole session to be heard of."""
        for group in shard.consumers.values():
            self._forget(group.group_id)
            life = self._life(group.group_id)
            for member_id in group.members:
                self._beat(life, group.group_id, member_id)
                self._note_revocation(life, group, member_id)
            self._set_timer(life, shard, group)
            self._resolve_patterns(life, shard, group)

    def resigned(self, shard: Shard) -> None:
        for group_id in shard.consumers:
            self._forget(group_id)

    def topics_changed(self, shards: Iterable[Shard], names: frozenset[str]) -> None:
        """Topics were made, deleted or given partitions: at its next heartbeat a group that reads them sees to it. One
        that is being written may read other topics by then than it is known to, or is not known at all."""
        for life in self._lives.values():
            life.topics_changed = life.topics_changed or life.turn.locked()
        for shard in shards:
            for group in shard.consumers.values():
                life = self._life(group.group_id)
                if life.resolving or group.resolved or not names.isdisjoint(group.subscribed()):
                    life.topics_changed = True
                    self._resolve_patterns(life, shard, group)

    def _life(self, group_id: str) -> _Life:
        life = self._lives.get(group_id)
        if life is None:
            life = self._lives[group_id] = _Life()
        return life

    def _forget(self, group_id: str) -> None:
        life = self._lives.pop(group_id, None)
        if life is not None:
            _stop_timer(life)

    # -- membership -----------------------------------------------------------------------------------------------
    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._of_group(
            group_id, HEARTBEAT_INTERVAL, self._config.heartbeat_interval_ms, self._config.heartbeat_intervals_ms
        )

    def _of_group(self, group_id: str, name: str, default: int, allowed: tuple[int, int]) -> int:
        own = self._host.image().configs.of(RESOURCE_GROUP, group_id).get(name)
        return default if own is None else min(max(int(own), allowed[0]), allowed[1])

    async def heartbeat(self, group_id: str, ask: Ask, may_describe: MayDescribe | None = None) -> Answer:
        """`may_describe`: which topics the asker may know of, where that is not all."""
        shard = self._host.shard_of(group_id)
        known = shard.consumers.get(group_id)
        member = None if known is None else known.members.get(ask.member_id)
        if known is not None and member is not None and member.current.epoch == ask.epoch:
            # It is alive, however long it waits for its turn.
            self._beat(self._life(group_id), group_id, ask.member_id)
        async with self._turn(shard, group_id) as turn:
            if ask.pattern or (member is not None and member.about.pattern):
                turn.life.may_describe = may_describe
            if ask.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
                group = self._existing(shard, group_id)
                answer = leave(group, ask, self._host.image().topics)
                await turn.write(shard, group, answer.changes)
            else:
                answer = await self._beat_in_turn(turn, shard, group_id, ask)
                self._look_at_rights(turn.life, shard, group_id)
            return answer

    async def _beat_in_turn(self, turn: _Turn, shard: Shard, group_id: str, ask: Ask) -> Answer:
        life = turn.life
        if ask.epoch == JOINING and group_id not in shard.consumers:
            group = ConsumerGroup(group_id)
        else:
            group = self._existing(shard, group_id, "Consumer group")
        refresh, life.topics_changed = life.topics_changed, False
        try:
            limits = self._config.limits
            answer = heartbeat(group, ask, self._host.image().topics, limits, refresh=refresh)
            is_new = group_id not in shard.consumers
            ending = (lambda: self._host.end_classic(shard, group_id)) if is_new else None
            await turn.write(shard, group, answer.changes, ending)
        except BaseException:
            life.topics_changed = True
            raise
        self._beat(life, group_id, ask.member_id)
        return answer

    @staticmethod
    def _existing(shard: Shard, group_id: str, kind: str = "Group") -> ConsumerGroup:
        group = shard.consumers.get(group_id)
        if group is None:
            other = shard.group(group_id) is not None
            text = f"Group {group_id} is not a consumer group." if other else f"{kind} {group_id} not found."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group

    def describe(self, group_id: str) -> ConsumerGroup:
        return self._existing(self._host.shard_of(group_id), group_id)

    async def remove(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """LeaveGroup of the classic protocol: an administrator takes members out."""
        answers = []
        for member_id, instance_id in members:
            group = self.describe(group_id)
            if instance_id is not None and not member_id:
                member_id = group.static_members.get(instance_id, "")
            try:
                await self.heartbeat(group_id, Ask(member_id, LEAVING, "", "", instance_id))
                answers.append(ErrorCode.NONE)
            except ApiError as error:
                answers.append(error.code)
        return answers

    async def end(self, shard: Shard, group_id: str, offsets: Callable[[], Ending | None] = lambda: None) -> None:
        """An empty group goes, and with it `offsets`; raises NON_EMPTY_GROUP where it is not empty."""
        async with self._turn(shard, group_id) as turn:
            group = self._existing(shard, group_id)
            if group.state is not GroupState.EMPTY:
                raise ApiError(ErrorCode.NON_EMPTY_GROUP)
            await turn.write(shard, group, group.farewell(), offsets)

    # -- offsets --------------------------------------------------------------------------------------------------
    @staticmethod
    def check_committer(group: ConsumerGroup, member_id: str, epoch: int, *, knows_epochs: bool) -> None:
        """Who commits has to be a member at its present epoch, or nobody at all while there are no members."""
        if epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not knows_epochs:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if member.current.epoch != epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    @staticmethod
    def check_reader(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = group.members.get(member_id or "")
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.current.epoch != epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    # -- turns ----------------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _turn(self, shard: Shard, group_id: str) -> AsyncIterator[_Turn]:
        life = self._life(group_id)
        life.users += 1
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await life.turn.acquire()
        except TimeoutError:
            self._left(shard, group_id, life)
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None

        def over() -> None:
            life.turn.release()
            self._left(shard, group_id, life)

        turn = _Turn(self, self._host, life, over)
        try:
            if not self._host.is_current(shard):
                raise ApiError(ErrorCode.NOT_COORDINATOR)
            yield turn
        finally:
            turn.end()

    def _left(self, shard: Shard, group_id: str, life: _Life) -> None:
        life.users -= 1
        if not life.users and group_id not in shard.consumers and self._lives.get(group_id) is life:
            self._forget(group_id)

    def applied(self, life: _Life, shard: Shard, group: ConsumerGroup, changes: Sequence[Change]) -> None:
        """What is committed becomes what is known."""
        for change in changes:
            shard.change(group, change)
        if shard.consumers.get(group.group_id) is not group or not self._host.is_current(shard):
            life.sessions.clear()
            life.revocations.clear()
            _stop_timer(life)
            return
        for change in changes:
            if isinstance(change, CurrentChange):
                self._note_revocation(life, group, change.member_id)
            elif isinstance(change, AboutChange):
                if change.about is None:
                    life.sessions.pop(change.member_id, None)
                elif change.member_id not in life.sessions:
                    self._beat(life, group.group_id, change.member_id)
        self._set_timer(life, shard, group)
        if any(isinstance(each, AboutChange) and each.about is not None and each.about.pattern for each in changes):
            self._resolve_patterns(life, shard, group)

    # -- time -----------------------------------------------------------------------------------------------------
    def _beat(self, life: _Life, group_id: str, member_id: str) -> None:
        config = self._config
        timeout_ms = self._of_group(group_id, SESSION_TIMEOUT, config.session_timeout_ms, config.session_timeouts_ms)
        life.sessions[member_id] = self._host.now().monotonic_ms + timeout_ms

    def _note_revocation(self, life: _Life, group: ConsumerGroup, member_id: str) -> None:
        """Who is to give partitions back has its own rebalance timeout to do it in."""
        member = group.members.get(member_id)
        if member is None or not member.current.revoking:
            life.revocations.pop(member_id, None)
        elif life.revocations.get(member_id, (None,))[0] != member.current.epoch:
            until_ms = self._host.now().monotonic_ms + member.about.rebalance_timeout_ms
            life.revocations[member_id] = member.current.epoch, until_ms

    def _set_timer(self, life: _Life, shard: Shard, group: ConsumerGroup) -> None:
        deadlines = [*life.sessions.values(), *(until_ms for _, until_ms in life.revocations.values())]
        if not deadlines:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0, min(deadlines) - self._host.now().monotonic_ms) / 1000
        if life.timer is not None:
            if life.timer.when() <= at:
                return  # it wakes early enough; deadlines that moved back are found then
            life.timer.cancel()
        life.timer = loop.call_at(at, self._wake, life, shard, group)

    def _wake(self, life: _Life, shard: Shard, group: ConsumerGroup) -> None:
        life.timer = None
        if self._due(life, group):
            self._host.start(self._expire(life, shard, group))
        else:
            self._set_timer(life, shard, group)

    def _due(self, life: _Life, group: ConsumerGroup) -> list[str]:
        now_ms = self._host.now().monotonic_ms
        late = [member_id for member_id, until_ms in life.sessions.items() if until_ms <= now_ms]
        for member_id, (epoch, until_ms) in life.revocations.items():
            member = group.members.get(member_id)
            if until_ms <= now_ms and member is not None and member.current.epoch == epoch:
                late.append(member_id)
        return [member_id for member_id in dict.fromkeys(late) if member_id in group.members]

    async def _expire(self, life: _Life, shard: Shard, group: ConsumerGroup) -> None:
        """Members that were not heard of, or kept what they were to give back, are no members any more."""
        try:
            async with self._turn(shard, group.group_id) as turn:
                if shard.consumers.get(group.group_id) is not group:
                    return
                due = self._due(life, group)
                if due:
                    log.info("group %s goes on without %s", group.group_id, ", ".join(due))
                    await turn.write(shard, group, without(group, due, self._host.image().topics))
        except ApiError as error:
            log.warning("members of group %s could not be let go: %s", group.group_id, error.code.name)
        finally:
            alive = self._host.is_current(shard) and shard.consumers.get(group.group_id) is group
            if alive and life.timer is None:
                delay_s = TURN_TIMEOUT_S if self._due(life, group) else 0.0
                loop = asyncio.get_running_loop()
                life.timer = loop.call_later(delay_s, self._wake, life, shard, group)

    # -- patterns -------------------------------------------------------------------------------------------------
    def _look_at_rights(self, life: _Life, shard: Shard, group_id: str) -> None:
        group = shard.consumers.get(group_id)
        if group is None or life.may_describe is None or life.resolving:
            return
        before_ms = self._host.now().wall_ms - RIGHTS_HOLD_MS
        old = any(each in group.resolved and group.resolved[each].timestamp_ms < before_ms for each in group.patterns())
        if life.unresolved or old:
            self._resolve_patterns(life, shard, group)

    def _resolve_patterns(self, life: _Life, shard: Shard, group: ConsumerGroup) -> None:
        life.unresolved = self._config.patterns_take_rights and life.may_describe is None
        if life.unresolved:
            return
        if life.resolving:
            life.resolve_again = True
        elif group.patterns():
            life.resolving = True
            self._host.start(self._resolve(life, shard, group))

    async def _resolve(self, life: _Life, shard: Shard, group: ConsumerGroup) -> None:
        """What the group's patterns stand for; it is part of the group once it is written."""
        try:
            while self._host.is_current(shard):
                life.resolve_again = False
                image = self._host.image()
                found: list[PatternChange] = []
                for pattern in sorted(group.patterns()):
                    resolved = await resolve(pattern, image, self._host.now().wall_ms, life.may_describe)
                    found.append(PatternChange(pattern, resolved))
                try:
                    async with self._turn(shard, group.group_id) as turn:
                        if shard.consumers.get(group.group_id) is group:
                            await turn.write(shard, group, patterns_resolved(group, found, image.topics))
                except ApiError as error:
                    log.warning("patterns of group %s could not be stored: %s", group.group_id, error.code.name)
                    await asyncio.sleep(TURN_TIMEOUT_S)
                    continue
                if not life.resolve_again:
                    return
        finally:
            life.resolving = False


def _stop_timer(life: _Life) -> None:
    if life.timer is not None:
        life.timer.cancel()
        life.timer = None


class _Turn:
    def __init__(self, groups: ConsumerGroups, host: Host, life: _Life, over: Callable[[], None]) -> None:
        self._groups = groups
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
    ) -> None:
        """Raises where it is not written; until it is known whether it is, nobody else has a turn. `ending`: of what
        goes with it; asked last, when nothing can go wrong any more but the log."""
        entries = [records.encode(group.group_id, change) for change in changes]
        before, also = (ending and ending()) or ((), None)
        if not entries:
            return

        def settled(committed: bool) -> None:
            self._is_writing = False
            if also is not None:
                also(committed)
            if committed:
                self._groups.applied(self.life, shard, group, changes)
            self._over_if_done()

        self._is_writing = True
        error = await self._host.append(shard, [*before, *entries], settled)
        if error is not ErrorCode.NONE:
            raise ApiError(error)

    def end(self) -> None:
        self._is_ended = True
        self._over_if_done()

    def _over_if_done(self) -> None:
        if self._is_ended and not self._is_writing:
            self._over()
