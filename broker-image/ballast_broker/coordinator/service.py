"""The group coordinator of this broker: routes requests to groups and keeps their offsets.

One instance, on the event loop. A group belongs to the partition of `__consumer_offsets` that its id hashes to; this
broker serves the partitions it leads once they are loaded. The PURE modules beside this one make the decisions; here
are the waiting requests, the log and the clock.
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
from ballast_broker.coordinator.host import ExtraWrite, Host
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

FIRST_PAUSE_S = 0.1  # after a failed load or deletion of a topic's offsets; doubled each time
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
        """Set the number of partitions of the offsets topic: every broker has to map a group to the same one."""
        self._partitions = partitions

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self._partitions)

    def lead(self, partition: int, has_topic: HasTopic = any_topic) -> None:
        """This broker became leader of a partition of the offsets topic.

        If it led it already, in an earlier epoch, it keeps what it knows: its log is the same. Otherwise it loads the
        log. Offsets of topics deleted meanwhile are dropped: the previous leader may not have got to it.
        """
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
        """Retry until it is loaded or led elsewhere: nobody but this broker can serve these groups."""
        pause_s = FIRST_PAUSE_S
        while self._is_current(shard):
            try:
                count = await read_shard(
                    self._store, shard, lambda: self._now().monotonic_ms, lambda: self._is_current(shard)
                )
                gone = await topics_gone(shard, has_topic)
                break
            except Exception as error:
                # A partial load would report everything missing as never committed.
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
        """False if the partition is led elsewhere, or was meanwhile: the shard may be stale."""
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
        """Members leave or are removed, in either protocol; a conversion in progress is waited for."""
        shard = self._shard_of(group_id, may_be_nameless=False)
        if group_id in shard.consumer_groups or self.classic.goes_over(shard, group_id):
            answers = await self.consumers.remove(group_id, members)
            if answers is not None:
                return answers
        return self.classic.leave(group_id, members)

    def _has_consumers(self, group_id: str) -> bool:
        shard = self._shards.get(self.partition_of(group_id))
        return shard is not None and shard.loaded and group_id in shard.consumer_groups

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
        """Commit offsets outside a transaction. The batch is prepared first, yielding to other tasks, so that the
        committer's membership is checked right at the append."""
        self._shard_of(group_id)
        accepted, batch = await made_ready(self._store, group_id, offsets, self._config.offset_metadata_max_bytes)
        shard = self._shard_of(group_id)  # another broker may have led it meanwhile
        if (consumers := shard.consumer_groups.get(group_id)) is not None:
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
            return  # an administrator, or a standalone committer
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
        """The in-memory state changes when `settled` is called, even if the result was a timeout."""
        if not self._is_current(shard):
            settled(False)
            return later(ErrorCode.NOT_COORDINATOR)
        return self._store.append_batch(shard.partition, batch, settled, verified)

    async def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> ErrorCode:
        self.transactional.ended(partition, producer_id, committed)
        return ErrorCode.NONE

    def fetch_offsets(self, group_id: str, member_id: str | None = None, epoch: int = -1) -> Offsets:
        """All committed offsets of the group; the caller must not modify them."""
        shard = self._shard_of(group_id)
        if (consumers := shard.consumer_groups.get(group_id)) is not None:
            self.consumers.check_reader(consumers, member_id, epoch)
        return shard.offsets.get(group_id, {})

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete offsets in pieces, each based on the group's state at that time, since other tasks may change it in
        between. After a failed piece, the rest is reported as failed, too.
        """
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
        """The topics the members read; None: possibly any. `goes`: the group may have vanished with its last offset."""
        if (consumers := shard.consumer_groups.get(group_id)) is not None:
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
        """Delete each offset independently: if they need more than one batch, only some may be deleted."""

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
        """Delete most offsets of a group first if they do not fit into one batch with the group's tombstone.

        If that tombstone then fails, the group is left empty with fewer offsets and can be deleted again.
        """
        known = list(shard.known_offsets(group_id))
        if len(self._store.pieces(shard.partition, _ends_of(group_id, known))) <= 1:
            return ErrorCode.NONE
        return await self._forget_offsets(shard, group_id, known)

    # -- administration -------------------------------------------------------------------------------------------
    def describe(self, group_id: str) -> Group | ConsumerGroup | None:
        return self._any_group(self._shard_of(group_id), group_id)

    @staticmethod
    def _any_group(shard: Shard, group_id: str) -> Group | ConsumerGroup | None:
        return shard.consumer_groups.get(group_id) or shard.group(group_id)

    def list_groups(self) -> list[Group | ConsumerGroup]:
        """All groups this broker coordinates; raises while any partition is loading."""
        if any(not shard.loaded and not shard.failed for shard in self._shards.values()):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        loaded = [shard for shard in self._shards.values() if shard.loaded]
        found = (self._any_group(shard, group_id) for shard in loaded for group_id in shard.all_group_ids())
        return [group for group in found if group is not None]

    def loaded_groups(self) -> list[tuple[Group | ConsumerGroup, Offsets]]:
        """For metrics: the groups known now, whatever is still loading."""
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
        if group_id in shard.consumer_groups:
            return await self._bury_consumers(shard, group_id)
        group = shard.group(group_id)
        if group is not None and group.goes_over:  # being converted: its outcome is open
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group is None or group.is_in(GroupState.DEAD):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_in(GroupState.EMPTY):
            return ErrorCode.NON_EMPTY_GROUP
        return await self._bury(shard, group)

    async def _bury(self, shard: Shard, group: Group) -> ErrorCode:
        """Delete an empty group. It is dead until the outcome is known: no change to it would last."""
        since_ms = group.state_timestamp_ms

        def settled(committed: bool) -> None:
            if committed:
                shard.forget_offsets(group.group_id)
                shard.classic_groups.pop(group.group_id, None)
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

        def offsets() -> ExtraWrite:
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
        """Topics were created, deleted or extended."""
        self.consumers.topics_changed([shard for shard in self._shards.values() if shard.loaded], topics)

    def forget_topics(self, topics: frozenset[str]) -> Iterator[None]:
        """Drop the offsets of deleted topics, one group per step.

        All steps have to run before a new topic of that name can have offsets.
        """
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
                # Append now: commits for the next topic of that name have to come after it.
                appending = self._forget_offsets(shard, group_id, gone)
                self._tasks.start(self._forget_for_good(shard, group_id, gone, appending))
            yield

    async def _forget_for_good(
        self, shard: Shard, group_id: str, partitions: Sequence[TopicPartition], appending: Awaitable[ErrorCode]
    ) -> None:
        """Retry until the log accepts the tombstones; skip partitions with commits for the next topic of that name."""
        pause_s = FIRST_PAUSE_S
        while await appending is not ErrorCode.NONE and self._is_current(shard):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            known = shard.known_offsets(group_id)
            partitions = [partition for partition in partitions if partition not in known]
            appending = self._forget_offsets(shard, group_id, partitions)

    async def expire_offsets(self) -> int:
        """Remove expired offsets, then groups with nothing left; return the number of offsets removed."""
        gone = 0
        for shard in [s for s in self._shards.values() if s.loaded]:
            for group_id in shard.all_group_ids():
                gone += await self._expire_group(shard, group_id)
                await asyncio.sleep(0)
        return gone

    async def _expire_group(self, shard: Shard, group_id: str) -> int:
        group, consumers = shard.group(group_id), shard.consumer_groups.get(group_id)
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
        """The loaded shard of a group. Old clients commit offsets for the group id ""; members need a real one."""
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
