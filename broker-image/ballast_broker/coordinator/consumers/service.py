"""Runs the consumer-protocol groups this broker coordinates, with members of either protocol and their timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from ballast_broker.coordinator.consumers import classic_members
from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.conversion import downgraded, upgraded
from ballast_broker.coordinator.consumers.deadlines import Deadlines
from ballast_broker.coordinator.consumers.group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    AboutChange,
    Change,
    ConsumerGroup,
    CurrentChange,
    GroupState,
    Member,
)
from ballast_broker.coordinator.consumers.group_writes import VolatileGroupState, WriteTurn
from ballast_broker.coordinator.consumers.heartbeat import (
    Answer,
    Ask,
    heartbeat,
    leave,
    unknown_member,
    without,
)
from ballast_broker.coordinator.consumers.pattern_resolver import PatternResolver
from ballast_broker.coordinator.consumers.resolving import MayDescribe
from ballast_broker.coordinator.effects import JoinResult, SyncResult
from ballast_broker.coordinator.group import CONSUMER, Group
from ballast_broker.coordinator.group import GroupState as ClassicState
from ballast_broker.coordinator.host import ExtraWrite, Host
from ballast_broker.coordinator.rebalance import JoinAsk, SyncAsk
from ballast_broker.coordinator.shard import Shard
from ballast_broker.coordinator.store import CLIENT_ERROR
from ballast_wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

TURN_TIMEOUT_S = 5.0
LET_GO_AT_ONCE = 100  # expired members removed at a time: their changes have to fit into one batch
TOO_LARGE = CLIENT_ERROR[ErrorCode.MESSAGE_TOO_LARGE]


class ConsumerGroups:
    def __init__(self, host: Host, config: ConsumerConfig, classic_max_size: int = 2**31 - 1) -> None:
        self._host = host
        self._config = config
        self._classic_max_size = classic_max_size
        self._lives: dict[str, VolatileGroupState] = {}
        self._deadlines = Deadlines(host, config, self._expire)
        self._patterns = PatternResolver(host, self._turn, takes_rights=config.patterns_take_rights)

    # -- leadership -----------------------------------------------------------------------------------------------
    def loaded(self, shard: Shard) -> None:
        """Start the session of every member afresh."""
        for group in shard.consumer_groups.values():
            self._forget(group.group_id)
            life = self._life(group.group_id)
            for member_id, member in group.members.items():
                self._deadlines.beat(life, group.group_id, member_id, member.about.classic)
                self._deadlines.note_revocation(life, group, member_id)
            self._deadlines.set_timer(life, shard, group)
            self._patterns.resolve(life, shard, group)

    def resigned(self, shard: Shard) -> None:
        for group_id in shard.consumer_groups:
            self._forget(group_id)

    def topics_changed(self, shards: Iterable[Shard], names: frozenset[str]) -> None:
        """Topics were created, deleted or extended: groups that read them react at their next heartbeat.

        A group that is being written may be subscribed to other topics by then, or be unknown yet: it has to check,
        too.
        """
        for life in self._lives.values():
            life.topics_changed = life.topics_changed or life.turn.locked()
        for shard in shards:
            for group in shard.consumer_groups.values():
                life = self._life(group.group_id)
                if life.resolving or group.resolved or not names.isdisjoint(group.subscribed()):
                    life.topics_changed = True
                    self._patterns.resolve(life, shard, group)

    def _life(self, group_id: str) -> VolatileGroupState:
        life = self._lives.get(group_id)
        if life is None:
            life = self._lives[group_id] = VolatileGroupState()
        return life

    def _forget(self, group_id: str) -> None:
        life = self._lives.pop(group_id, None)
        if life is not None:
            life.stop_timer()

    # -- membership -----------------------------------------------------------------------------------------------
    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._config.heartbeat_interval_of(group_id, self._host.image())

    async def heartbeat(self, group_id: str, ask: Ask, may_describe: MayDescribe | None = None) -> Answer:
        """`may_describe`: whether the requester may describe a topic; None: all."""
        shard = self._host.shard_of(group_id)
        known = shard.consumer_groups.get(group_id)
        member = None if known is None else known.members.get(ask.member_id)
        if known is not None and member is not None and member.current.epoch == ask.epoch:
            # It is alive, however long it has to wait for its turn.
            self._deadlines.beat(self._life(group_id), group_id, ask.member_id)
        async with self._turn(shard, group_id) as turn:
            if ask.pattern or (member is not None and member.about.pattern):
                turn.life.may_describe = may_describe
            if ask.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
                group = self._existing(shard, group_id)
                answer = leave(group, ask, self._host.image().topics)
                going = [ask.member_id] if ask.epoch == LEAVING else []
                await self._write_without(turn, shard, group, going, answer.changes)
            else:
                answer = await self._beat_in_turn(turn, shard, group_id, ask)
                self._patterns.look_at_rights(turn.life, shard, group_id)
            return answer

    async def _beat_in_turn(self, turn: WriteTurn, shard: Shard, group_id: str, ask: Ask) -> Answer:
        life = turn.life
        members: list[Change] = []
        if ask.epoch == JOINING and group_id not in shard.consumer_groups:
            group = ConsumerGroup(group_id)
            members = self._of_classic(shard, group_id)
        else:
            self._check_not_gone_back(shard, group_id, ask)
            group = self._existing(shard, group_id, "Consumer group")
        refresh, life.topics_changed = life.topics_changed or bool(members), False
        try:
            limits = self._config.limits
            seen = group.after(members) if members else group
            answer = heartbeat(seen, ask, self._host.image().topics, limits, refresh=refresh)
            is_new = group_id not in shard.consumer_groups
            ending = (lambda: self._host.end_classic(shard, group_id)) if is_new else None
            await turn.write(shard, group, [*members, *answer.changes], ending)
        except BaseException:
            life.topics_changed = True
            raise
        self._deadlines.beat(life, group_id, ask.member_id)
        return answer

    @staticmethod
    def _check_not_gone_back(shard: Shard, group_id: str, ask: Ask) -> None:
        """Make a member that missed the downgrade to the classic protocol rejoin, unless another has its place.

        On GROUP_ID_NOT_FOUND the client would give up.
        """
        group = shard.classic_groups.get(group_id)
        if group is None or group.protocol_type != CONSUMER or not group.members:
            return
        if group.is_fenced(ask.member_id, ask.instance_id):
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        raise unknown_member(group_id, ask.member_id)

    @staticmethod
    def _existing(shard: Shard, group_id: str, kind: str = "Group") -> ConsumerGroup:
        group = shard.consumer_groups.get(group_id)
        if group is None:
            other = shard.group(group_id) is not None
            text = f"Group {group_id} is not a consumer group." if other else f"{kind} {group_id} not found."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group

    def describe(self, group_id: str) -> ConsumerGroup:
        return self._existing(self._host.shard_of(group_id), group_id)

    async def remove(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode] | None:
        """LeaveGroup, by a classic member or an administrator. None: this is no longer a consumer-protocol group."""
        shard = self._host.shard_of(group_id)
        async with self._turn(shard, group_id) as turn:
            group = shard.consumer_groups.get(group_id)
            if group is None:
                return None
            topics, answers, going = self._host.image().topics, [], []
            for member_id, instance_id in members:
                if instance_id is not None and not member_id:
                    member_id = group.static_members.get(instance_id, "")
                try:
                    leave(group, Ask(member_id, LEAVING, "", "", instance_id), topics)
                    going.append(member_id)
                    answers.append(ErrorCode.NONE)
                except ApiError as error:
                    answers.append(error.code)
            if going:
                going = list(dict.fromkeys(going))
                await self._write_without(turn, shard, group, going, without(group, going, topics))
            return answers

    async def end(
        self, shard: Shard, group_id: str, before: Callable[[], Awaitable[None]], offsets: Callable[[], ExtraWrite]
    ) -> None:
        """Delete an empty group with its `offsets`, after `before`; raise NON_EMPTY_GROUP if it is not empty."""
        async with self._turn(shard, group_id) as turn:
            group = self._existing(shard, group_id)
            if group.state is not GroupState.EMPTY:
                raise ApiError(ErrorCode.NON_EMPTY_GROUP)
            await before()
            await turn.write(shard, group, group.farewell(), offsets)

    async def make_way(self, shard: Shard, group_id: str) -> None:
        """Delete an empty group to make way for a classic one, unless that happened already or somebody joined."""
        async with self._turn(shard, group_id) as turn:
            group = shard.consumer_groups.get(group_id)
            if group is not None and group.state is GroupState.EMPTY:
                await turn.write(shard, group, group.farewell())

    # -- from one protocol to the other ---------------------------------------------------------------------------
    def _of_classic(self, shard: Shard, group_id: str) -> list[Change]:
        """The changes that convert a classic group of this name with its members; none if there is no such group."""
        group = shard.group(group_id)
        if group is None or group.is_in(ClassicState.EMPTY, ClassicState.DEAD):
            return []
        problem = self._never_upgrades(group)
        if problem is None:
            try:
                return upgraded(group, self._host.image().topics)
            except ValueError as error:
                problem = str(error)
        text = f"Cannot upgrade classic group {group_id} to consumer group because {problem}."
        log.info("%s", text)
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)

    def _never_upgrades(self, group: Group) -> str | None:
        if not self._config.upgrades:
            return "online upgrade is disabled"
        if group.protocol_type != CONSUMER:
            return "the group does not use the consumer embedded protocol"
        if len(group.members) > self._config.limits.max_size:
            return "the group size exceeds the consumer group maximum size"
        return None

    async def _write_without(
        self, turn: WriteTurn, shard: Shard, group: ConsumerGroup, going: Sequence[str], changes: Sequence[Change]
    ) -> None:
        """Write the removal of members; downgrade the group to the classic protocol if only classic members remain.

        If the downgrade does not fit into one batch, the group stays as it is, and the members go all the same: others
        wait for their partitions.
        """
        if self._downgrades(group, going):
            try:
                return await self._write_classic(turn, shard, group, group, going, rejoins=True)
            except ApiError as refused:
                if refused.code is not TOO_LARGE:
                    raise
                log.warning("group %s is too large to go back to the classic protocol", group.group_id)
        await turn.write(shard, group, changes)

    def _downgrades(self, group: ConsumerGroup, going: Sequence[str]) -> bool:
        size = len(group.members) - len(going)
        return group.is_classic_without(going) and self._config.downgrades and size <= self._classic_max_size

    async def _write_classic(
        self,
        turn: WriteTurn,
        shard: Shard,
        group: ConsumerGroup,
        last: ConsumerGroup,
        going: Sequence[str],
        *,
        rejoins: bool,
    ) -> None:
        """Write the downgrade to a classic group. `last`: the final state the group would have had otherwise."""
        now = self._host.now()
        classic = downgraded(last, going, self._host.image().topics, now.wall_ms)
        log.info("group %s goes back to the classic protocol", group.group_id)
        following = self._host.begin_classic(shard, classic, rejoins)
        await turn.write(shard, group, group.farewell(), following=following)

    # -- members of the classic protocol --------------------------------------------------------------------------
    async def join(self, group_id: str, ask: JoinAsk) -> JoinResult | None:
        """None: there is no longer such a group with members."""
        shard = self._host.shard_of(group_id)
        known = shard.consumer_groups.get(group_id)
        member = None if known is None else known.members.get(ask.member_id)
        if member is not None and member.about.classic is not None:
            self._deadlines.beat(self._life(group_id), group_id, member.member_id, member.about.classic)
        async with self._turn(shard, group_id) as turn:
            group = shard.consumer_groups.get(group_id)
            if group is None or not group.members:
                return None
            try:
                return await self._join_in_turn(turn, shard, group, ask)
            except ApiError as error:
                nameless = error.code is ErrorCode.MEMBER_ID_REQUIRED
                return JoinResult(error=error.code, member_id=ask.fresh_member_id if nameless else "")

    async def _join_in_turn(
        self, turn: WriteTurn, shard: Shard, group: ConsumerGroup, ask: JoinAsk
    ) -> JoinResult | None:
        life, limits = turn.life, self._config.limits
        refresh, life.topics_changed = life.topics_changed, False
        try:
            answer = classic_members.join(group, ask, self._host.image().topics, limits, refresh=refresh)
            gone = [each.member_id for each in answer.changes if isinstance(each, AboutChange) and each.about is None]
            modern = {each.member_id for each in group.members.values() if each.about.classic is None}
            if modern and modern <= {answer.member_id, *gone}:
                last = group.after(answer.changes)
                if self._downgrades(last, []):
                    return await self._replace_last(turn, shard, group, last, _joined(answer, ask))
            await turn.write(shard, group, answer.changes)
        except BaseException:
            life.topics_changed = True
            raise
        member = group.members.get(answer.member_id)
        if member is not None and self._host.is_current(shard):
            self._deadlines.beat(life, group.group_id, member.member_id, member.about.classic)
            self._deadlines.await_sync(life, shard, group, member)
        return _joined(answer, ask)

    async def _replace_last(
        self, turn: WriteTurn, shard: Shard, group: ConsumerGroup, last: ConsumerGroup, joined: JoinResult
    ) -> JoinResult | None:
        """The last consumer-protocol member, a static one, came back as a classic one.

        If nothing else changes, all keep their assignments; otherwise all rejoin, this one at once.
        """
        rejoins = last.state is not GroupState.STABLE or last.epoch != group.epoch
        await self._write_classic(turn, shard, group, last, [], rejoins=rejoins)
        return None if rejoins else joined

    def sync(self, group_id: str, ask: SyncAsk) -> SyncResult:
        shard = self._host.shard_of(group_id)
        group = shard.consumer_groups[group_id]
        try:
            member = classic_members.member_at(group, ask.member_id, ask.group_instance_id, ask.generation)
            classic_members.check_protocol(member, ask)
        except ApiError as error:
            return SyncResult(error.code)
        life = self._life(group_id)
        if classic_members.is_behind(group, member):
            self._deadlines.await_join(life, shard, group, member)
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        life.syncs.pop(member.member_id, None)
        self._deadlines.beat(life, group_id, member.member_id, member.about.classic)
        return classic_members.synced(member, ask, self._host.image().topics)

    def heartbeat_of_classic(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        shard = self._host.shard_of(group_id)
        group = shard.consumer_groups[group_id]
        try:
            member = classic_members.member_at(group, member_id, instance_id, generation)
        except ApiError as error:
            return error.code
        life = self._life(group_id)
        self._deadlines.beat(life, group_id, member.member_id, member.about.classic)
        if not classic_members.has_to_rejoin(group, member, refresh=life.topics_changed):
            return ErrorCode.NONE
        self._deadlines.await_join(life, shard, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    # -- offsets --------------------------------------------------------------------------------------------------
    @staticmethod
    def check_committer(group: ConsumerGroup, member_id: str, epoch: int, *, knows_epochs: bool) -> None:
        """A committer has to be a member at its current epoch, or no member at all while the group is empty."""
        if epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not knows_epochs and member.about.classic is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        _check_epoch(member, epoch)

    @staticmethod
    def check_reader(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = group.members.get(member_id or "")
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        _check_epoch(member, epoch)

    # -- turns ----------------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _turn(self, shard: Shard, group_id: str) -> AsyncIterator[WriteTurn]:
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

        turn = WriteTurn(self._applied, self._host, life, over)
        try:
            if not self._host.is_current(shard):
                raise ApiError(ErrorCode.NOT_COORDINATOR)
            yield turn
        finally:
            turn.end()

    def _left(self, shard: Shard, group_id: str, life: VolatileGroupState) -> None:
        life.users -= 1
        if not life.users and group_id not in shard.consumer_groups and self._lives.get(group_id) is life:
            self._forget(group_id)

    def _applied(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup, changes: Sequence[Change]) -> None:
        """Apply committed changes to the group and its deadlines."""
        for change in changes:
            shard.change(group, change)
        if shard.consumer_groups.get(group.group_id) is not group or not self._host.is_current(shard):
            life.end()
            return
        for change in changes:
            if isinstance(change, CurrentChange):
                self._deadlines.note_revocation(life, group, change.member_id)
            elif isinstance(change, AboutChange):
                classic = None if change.about is None else change.about.classic
                if classic is None:
                    life.joins.pop(change.member_id, None)
                    life.syncs.pop(change.member_id, None)
                if change.about is None:
                    life.sessions.pop(change.member_id, None)
                elif change.member_id not in life.sessions:
                    self._deadlines.beat(life, group.group_id, change.member_id, classic)
        self._deadlines.set_timer(life, shard, group)
        if any(isinstance(each, AboutChange) and each.about is not None and each.about.pattern for each in changes):
            self._patterns.resolve(life, shard, group)

    async def _expire(self, life: VolatileGroupState, shard: Shard, group: ConsumerGroup) -> None:
        """Remove members whose session ended or that did not revoke partitions, rejoin or sync in time."""
        try:
            async with self._turn(shard, group.group_id) as turn:
                while shard.consumer_groups.get(group.group_id) is group:
                    due = self._deadlines.due(life, group)[:LET_GO_AT_ONCE]
                    if not due:
                        break
                    log.info("group %s goes on without %s", group.group_id, ", ".join(due))
                    changes = without(group, due, self._host.image().topics)
                    await self._write_without(turn, shard, group, due, changes)
        except ApiError as error:
            log.warning("members of group %s could not be let go: %s", group.group_id, error.code.name)
        finally:
            self._deadlines.expired(life, shard, group)


def _joined(answer: Answer, ask: JoinAsk) -> JoinResult:
    return JoinResult(
        member_id=answer.member_id,
        generation=answer.epoch,
        protocol_type=CONSUMER,
        protocol_name=ask.protocols[0].name,
    )


def _check_epoch(member: Member, epoch: int) -> None:
    if member.current.epoch != epoch:
        classic = member.about.classic is not None
        raise ApiError(ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH)
