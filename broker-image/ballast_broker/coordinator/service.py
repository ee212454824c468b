"""The group coordinator of this broker: routes requests to groups, carries out their effects, keeps their timers.

One instance, on the event loop. A group lives with the partition of `__consumer_offsets` that its id hashes to; this
broker answers for the partitions that it leads, from the moment they are loaded. What the groups decide is decided in
the PURE modules beside this one; here are the waiting requests, the log and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ballast_broker.coordinator import rebalance, records
from ballast_broker.coordinator.classic import ClassicGroups
from ballast_broker.coordinator.commits import made_ready
from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.group import ConsumerGroup
from ballast_broker.coordinator.consumers.service import ConsumerGroups
from ballast_broker.coordinator.effects import JoinResult, SyncResult
from ballast_broker.coordinator.group import CONSUMER, Group, GroupState
from ballast_broker.coordinator.host import Ending, Host
from ballast_broker.coordinator.loading import HasTopic, any_topic, read_shard, tell_unloaded, topics_gone
from ballast_broker.coordinator.offsets import Offsets, expired, expired_of_consumers
from ballast_broker.coordinator.rebalance import GroupLimits, JoinAsk, Now, SyncAsk
from ballast_broker.coordinator.shard import Shard
from ballast_broker.coordinator.store import CoordinatorStore, KeyValue, Settled, later
from ballast_broker.coordinator.tasks import Tasks
from ballast_broker.coordinator.transactional_commits import TransactionalCommits
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.seams import Clock
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition, java_string_hash

if TYPE_CHECKING:
    from ballast_broker.storage.producers import Verification

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1  # after a load, or the end of a topic's offsets, that failed; doubled each time
LONGEST_PAUSE_S = 30.0
FORGOTTEN_AT_ONCE = 500  # offsets: five milliseconds


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    offsets_topic_num_partitions: int = 50
    offsets_retention_ms: int = 10_080 * 60_000
    offset_metadata_max_bytes: int = 4096
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    limits: GroupLimits = field(default_factory=GroupLimits)
    consumers: ConsumerConfig = field(default_factory=ConsumerConfig)


def partition_for(group_id: str, partitions: int) -> int:
    hashed = java_string_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


def _ends_of(group_id: str, partitions: Iterable[TopicPartition]) -> list[KeyValue]:
    return [(records.offset_key(group_id, partition), None) for partition in partitions]


class GroupCoordinator:
    def __init__(
        self,
        store: CoordinatorStore,
        clock: Clock,
        config: CoordinatorConfig,
        image: Callable[[], MetadataImage] = MetadataImage,
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._partitions = config.offsets_topic_num_partitions
        self._shards: dict[int, Shard] = {}
        self._tasks = Tasks("group coordinator")
        most_metadata = config.offset_metadata_max_bytes
        self.transactional = TransactionalCommits(
            store, self._shards, self._shard_of, self._append_batch, most_metadata
        )
        host = Host(
            shard_of=lambda group_id: self._shard_of(group_id, may_be_nameless=False),
            is_current=self._is_current,
            now=self._now,
            image=image,
            start=self._tasks.start,
            append=self._append,
            end_classic=lambda shard, group_id: self.classic.end(shard, group_id),
            begin_classic=lambda shard, group, rejoins: self.classic.begin(shard, group, rejoins),
            join_consumers=lambda group_id, ask: self.consumers.join(group_id, ask),
            end_consumers=lambda shard, group_id: self.consumers.make_way(shard, group_id),
        )
        sessions_ms = config.min_session_timeout_ms, config.max_session_timeout_ms
        self.classic = ClassicGroups(host, sessions_ms, config.limits)
        self.consumers = ConsumerGroups(host, config.consumers, config.limits.max_size)

    # -- leadership -----------------------------------------------------------------------------------------------
    def divide(self, partitions: int) -> None:
        """The offsets topic has so many partitions: every broker has to look for a group in the same one."""
        self._partitions = partitions

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self._partitions)

    def lead(self, partition: int, has_topic: HasTopic = any_topic) -> None:
        """This broker leads a partition of the offsets topic. Where it led that before, in an earlier epoch, it goes on
        with what it knows: its log is the same. Else it loads it. Of topics that are gone by now nothing is kept:
        whoever led it when they were deleted may not have got to it."""
        if partition not in self._shards:
            shard = self._shards[partition] = Shard(partition)
            self._tasks.start(self._load(shard, has_topic))

    def resign(self, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is None:
            return
        self.classic.resigned(shard)
        self.consumers.resigned(shard)

    async def _load(self, shard: Shard, has_topic: HasTopic) -> None:
        """Until it is loaded, or led by somebody else: nobody but this broker can answer for these groups."""
        pause_s = FIRST_PAUSE_S
        while self._is_current(shard):
            try:
                count = await read_shard(
                    self._store, shard, lambda: self._now().monotonic_ms, lambda: self._is_current(shard)
                )
                gone = await topics_gone(shard, has_topic)
                break
            except Exception as error:
                # Who knows a part only would say of all the rest that it was never committed.
                shard.fail()
                tell_unloaded(f"partition {shard.partition} of the offsets topic", error, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if not self._is_current(shard):
            return
        shard.loaded, shard.failed = True, False
        for producer_id, committed in shard.ended_meanwhile:
            shard.end_transaction(producer_id, committed)
        shard.ended_meanwhile.clear()
        gone |= shard.deleted_meanwhile
        for _ in self._forget_topics_of(shard, gone) if gone else ():
            pass
        self.classic.loaded(shard)
        self.consumers.loaded(shard)
        log.info("loaded partition %d of the offsets topic: %d records", shard.partition, count)

    def _is_current(self, shard: Shard) -> bool:
        """Else the partition is led elsewhere, or was meanwhile: what this shard knows may be old."""
        return self._shards.get(shard.partition) is shard

    def resign_all(self) -> None:
        for partition in list(self._shards):
            self.resign(partition)

    def close(self) -> None:
        self.resign_all()
        self._tasks.cancel()

    # -- members of the classic protocol --------------------------------------------------------------------------
    async def join(self, group_id: str, ask: JoinAsk) -> JoinResult:
        return await self.classic.join(group_id, ask)

    async def sync(self, group_id: str, ask: SyncAsk) -> SyncResult:
        if self._has_consumers(group_id):
            return self.consumers.sync(group_id, ask)
        return await self.classic.sync(group_id, ask)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self._has_consumers(group_id):
            return self.consumers.heartbeat_of_classic(group_id, member_id, instance_id, generation)
        return self.classic.heartbeat(group_id, member_id, instance_id, generation)

    async def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members leave, or are taken out, of a group of either protocol; a group on its way is waited for."""
        shard = self._shard_of(group_id, may_be_nameless=False)
        if group_id in shard.consumers or self.classic.goes_over(shard, group_id):
            answers = await self.consumers.remove(group_id, members)
            if answers is not None:
                return answers
        return self.classic.leave(group_id, members)

    def _has_consumers(self, group_id: str) -> bool:
        shard = self._shards.get(self.partition_of(group_id))
        return shard is not None and shard.loaded and group_id in shard.consumers

    # -- offsets --------------------------------------------------------------------------------------------------
    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Offsets,
        *,
        knows_epochs: bool = True,
    ) -> dict[TopicPartition, ErrorCode]:
        """What is to be written is made first, while others have their turns: what the group says of the committer is
        true when that is appended."""
        self._shard_of(group_id)
        accepted, batch = await made_ready(self._store, group_id, offsets, self._config.offset_metadata_max_bytes)
        shard = self._shard_of(group_id)  # it may have been led by another broker meanwhile
        if (consumers := shard.consumers.get(group_id)) is not None:
            self.consumers.check_committer(consumers, member_id, generation, knows_epochs=knows_epochs)
        else:
            self._check_committer(shard, group_id, member_id, instance_id, generation)
        answers = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        if accepted:
            error = await self._write_offsets(shard, group_id, accepted, batch)
            answers |= dict.fromkeys(accepted, error)
        shard.forget_if_unused(group_id)
        return answers

    def _check_committer(
        self, shard: Shard, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        group = shard.group(group_id)
        if group is None:
            if generation >= 0:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if generation < 0 and group.is_in(GroupState.EMPTY):
            return  # an administrator, or somebody who only commits
        error = rebalance.heartbeat(group, member_id, instance_id, generation, self._now())
        if error not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            raise ApiError(error)
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    async def _write_offsets(self, shard: Shard, group_id: str, offsets: Offsets, batch: bytearray) -> ErrorCode:
        def settled(committed: bool) -> None:
            shard.end_write(group_id, offsets)
            if committed:
                shard.apply_commit(group_id, offsets)

        shard.begin_write(group_id, offsets)
        return await self._store.append_batch(shard.partition, batch, settled)

    def _append(
        self,
        shard: Shard,
        entries: Sequence[KeyValue],
        settled: Settled = lambda committed: None,
    ) -> Awaitable[ErrorCode]:
        return self._append_batch(shard, self._store.batch_of(entries), settled)

    def _append_batch(
        self, shard: Shard, batch: bytearray, settled: Settled, verified: Verification | None = None
    ) -> Awaitable[ErrorCode]:
        """What is known here changes when `settled` is called: also after an answer that it took too long."""
        if not self._is_current(shard):
            settled(False)
            return later(ErrorCode.NOT_COORDINATOR)
        return self._store.append_batch(shard.partition, batch, settled, verified)

    async def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> ErrorCode:
        self.transactional.ended(partition, producer_id, committed)
        return ErrorCode.NONE

    def fetch_offsets(self, group_id: str, member_id: str | None = None, epoch: int = -1) -> Offsets:
        """All offsets that the group has committed; not to be changed by the caller."""
        shard = self._shard_of(group_id)
        if (consumers := shard.consumers.get(group_id)) is not None:
            self.consumers.check_reader(consumers, member_id, epoch)
        return shard.offsets.get(group_id, {})

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """So many at a time, each time of what the group is then: others have their turns, and may change it. Once one
        cannot be taken away, nor can those behind it."""
        answers: dict[TopicPartition, ErrorCode] = {}
        failed = ErrorCode.NONE
        for start in range(0, max(1, len(partitions)), FORGOTTEN_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            shard = self._shard_of(group_id, may_be_nameless=False)
            read, known = self._read_by(shard, group_id, goes=bool(start)), shard.known_offsets(group_id)
            some = {
                p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if read is None or p.topic in read else ErrorCode.NONE
                for p in partitions[start : start + FORGOTTEN_AT_ONCE]
            }
            going = [p for p, error in some.items() if error is ErrorCode.NONE and p in known]
            failed = failed or await self._forget_offsets(shard, group_id, going)
            answers |= some | dict.fromkeys(going, failed)
        return answers

    @staticmethod
    def _read_by(shard: Shard, group_id: str, *, goes: bool) -> frozenset[str] | None:
        """The topics of a group's members; None: it may be any topic. One that `goes` ends with its last offset."""
        if (consumers := shard.consumers.get(group_id)) is not None:
            return consumers.subscribed()
        group = shard.group(group_id)
        if group is not None and group.goes_over:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group is None or group.is_in(GroupState.DEAD):
            if goes:
                return frozenset()
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.is_in(GroupState.EMPTY):
            return frozenset()
        if group.protocol_type != CONSUMER:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return group.subscribed

    def _forget_offsets(
        self, shard: Shard, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Awaitable[ErrorCode]:
        """Each goes for itself: where that is too much for one batch, some may go and others stay."""

        def settled(some: slice, committed: bool) -> None:
            if committed:
                for partition in partitions[some]:
                    shard.apply(group_id, partition, None)

        if not partitions:
            return later(ErrorCode.NONE)
        if not self._is_current(shard):
            return later(ErrorCode.NOT_COORDINATOR)
        return self._store.append_pieces(shard.partition, _ends_of(group_id, partitions), settled)

    async def _forget_offsets_before(self, shard: Shard, group_id: str) -> ErrorCode:
        """Of a group that is to be deleted, and has more of them than one batch takes with its end. A group that only
        that end is missing of is an empty one with fewer offsets, and can be deleted again."""
        known = list(shard.known_offsets(group_id))
        if len(self._store.pieces(shard.partition, _ends_of(group_id, known))) <= 1:
            return ErrorCode.NONE
        return await self._forget_offsets(shard, group_id, known)

    # -- administration -------------------------------------------------------------------------------------------
    def describe(self, group_id: str) -> Group | ConsumerGroup | None:
        return self._any_group(self._shard_of(group_id), group_id)

    @staticmethod
    def _any_group(shard: Shard, group_id: str) -> Group | ConsumerGroup | None:
        return shard.consumers.get(group_id) or shard.group(group_id)

    def list_groups(self) -> list[Group | ConsumerGroup]:
        """The groups of every partition that this broker answers for; raises while one of them is loading."""
        if any(not shard.loaded and not shard.failed for shard in self._shards.values()):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        loaded = [shard for shard in self._shards.values() if shard.loaded]
        found = (self._any_group(shard, group_id) for shard in loaded for group_id in shard.all_group_ids())
        return [group for group in found if group is not None]

    def loaded_groups(self) -> list[tuple[Group | ConsumerGroup, Offsets]]:
        """For metrics: what is known now, whatever is still loading."""
        return [
            (group, shard.offsets.get(group_id, {}))
            for shard in self._shards.values()
            if shard.loaded
            for group_id in shard.all_group_ids()
            if (group := self._any_group(shard, group_id)) is not None
        ]

    async def delete_group(self, group_id: str) -> ErrorCode:
        try:
            shard = self._shard_of(group_id)
        except ApiError as error:
            return error.code
        if group_id in shard.consumers:
            return await self._bury_consumers(shard, group_id)
        group = shard.group(group_id)
        if group is not None and group.goes_over:  # what it will be is not known yet
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group is None or group.is_in(GroupState.DEAD):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_in(GroupState.EMPTY):
            return ErrorCode.NON_EMPTY_GROUP
        return await self._bury(shard, group)

    async def _bury(self, shard: Shard, group: Group) -> ErrorCode:
        """Until it is known whether the group is gone it is dead: what is said of it would not last."""
        since_ms = group.state_timestamp_ms

        def settled(committed: bool) -> None:
            if committed:
                shard.forget_offsets(group.group_id)
                shard.groups.pop(group.group_id, None)
            else:
                group.enter(GroupState.EMPTY, since_ms)

        self.classic.forget_timer(group)
        group.enter(GroupState.DEAD, self._now().wall_ms)
        if (error := await self._forget_offsets_before(shard, group.group_id)) is not ErrorCode.NONE:
            settled(False)
            return error
        entries = _ends_of(group.group_id, shard.known_offsets(group.group_id))
        return await self._append(shard, [*entries, (records.group_key(group.group_id), None)], settled)

    async def _bury_consumers(self, shard: Shard, group_id: str) -> ErrorCode:
        async def before() -> None:
            if (error := await self._forget_offsets_before(shard, group_id)) is not ErrorCode.NONE:
                raise ApiError(error)

        def offsets() -> Ending:
            return _ends_of(group_id, shard.known_offsets(group_id)), settled

        def settled(committed: bool) -> None:
            if committed:
                shard.forget_offsets(group_id)

        try:
            await self.consumers.end(shard, group_id, before, offsets)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def topics_changed(self, topics: frozenset[str]) -> None:
        """Topics were made, deleted or given partitions."""
        self.consumers.topics_changed([shard for shard in self._shards.values() if shard.loaded], topics)

    def forget_topics(self, topics: frozenset[str]) -> Iterator[None]:
        """Topics were deleted: their offsets go too, a group's in a step, and all of them before there may be some of
        the next topic of the name."""
        for shard in [*self._shards.values()]:
            if shard.loaded:
                yield from self._forget_topics_of(shard, topics)
            else:
                shard.deleted_meanwhile |= topics

    def _forget_topics_of(self, shard: Shard, topics: Collection[str]) -> Iterator[None]:
        for group_id in {*shard.offsets, *shard.writes, *shard.pending.producers}:
            if not self._is_current(shard):
                return
            gone = [p for p in shard.known_offsets(group_id) if p.topic in topics]
            for partition in gone:
                shard.apply(group_id, partition, None)
            if gone:
                # Written now: what is committed of the next topic of that name has to lie behind it.
                appending = self._forget_offsets(shard, group_id, gone)
                self._tasks.start(self._forget_for_good(shard, group_id, gone, appending))
            yield

    async def _forget_for_good(
        self, shard: Shard, group_id: str, partitions: Sequence[TopicPartition], appending: Awaitable[ErrorCode]
    ) -> None:
        """However long the log takes nothing; unless something is committed of the next topic of that name."""
        pause_s = FIRST_PAUSE_S
        while await appending is not ErrorCode.NONE and self._is_current(shard):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            known = shard.known_offsets(group_id)
            partitions = [partition for partition in partitions if partition not in known]
            appending = self._forget_offsets(shard, group_id, partitions)

    async def expire_offsets(self) -> int:
        """Offsets whose retention is over, then groups with nothing left; returns how many offsets went."""
        gone = 0
        for shard in [s for s in self._shards.values() if s.loaded]:
            for group_id in shard.all_group_ids():
                gone += await self._expire_group(shard, group_id)
                await asyncio.sleep(0)
        return gone

    async def _expire_group(self, shard: Shard, group_id: str) -> int:
        group, consumers = shard.group(group_id), shard.consumers.get(group_id)
        offsets = shard.offsets.get(group_id, {})
        in_use = {*shard.being_written(group_id), *shard.pending.of_group(group_id)}
        retention_ms, wall_ms = self._config.offsets_retention_ms, self._now().wall_ms
        if consumers is None:
            all_due = expired(group, offsets, retention_ms, wall_ms)
        else:
            all_due = expired_of_consumers(consumers.subscribed(), offsets, retention_ms, wall_ms)
        due = [partition for partition in all_due if partition not in in_use]
        if await self._forget_offsets(shard, group_id, due) is not ErrorCode.NONE:
            return 0
        if group is not None and group.is_in(GroupState.EMPTY) and not group.size and not shard.known_offsets(group_id):
            await self._bury(shard, group)
        elif consumers is not None and not consumers.members and not shard.known_offsets(group_id):
            await self._bury_consumers(shard, group_id)
        return len(due)

    # -- small things ---------------------------------------------------------------------------------------------
    def _shard_of(self, group_id: str, *, may_be_nameless: bool = True) -> Shard:
        """Old clients keep offsets under no name at all; members need one."""
        if not group_id and not may_be_nameless:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        shard = self._shards.get(partition_for(group_id, self._partitions))
        if shard is None or shard.failed:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.wall_ms())
