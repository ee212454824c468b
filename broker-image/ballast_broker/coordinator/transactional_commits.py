"""Commits offsets within transactions: appended at once, effective when the transaction commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ballast_broker.coordinator.commits import made_ready
from ballast_broker.coordinator.consumers.group import ConsumerGroup
from ballast_broker.coordinator.group import Group, GroupState
from ballast_broker.coordinator.offsets import Offsets
from ballast_broker.coordinator.shard import Shard
from ballast_broker.coordinator.store import OFFSETS_TOPIC, CoordinatorStore, Producer, Settled
from ballast_broker.storage.producers import GOING_ON, Verification
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

Agreed = Callable[[TopicPartition], Awaitable[ErrorCode]]


class Committer(NamedTuple):
    """The group member as which the producer commits; old clients do not say."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


class Append(Protocol):
    def __call__(
        self, shard: Shard, batch: bytearray, settled: Settled, verified: Verification | None
    ) -> Awaitable[ErrorCode]: ...


class TransactionalCommits:
    def __init__(
        self,
        store: CoordinatorStore,
        shards: Mapping[int, Shard],
        shard_of: Callable[[str], Shard],
        append: Append,
        most_metadata: int,
    ) -> None:
        self._store = store
        self._shards = shards
        self._shard_of = shard_of
        self._append = append
        self._most_metadata = most_metadata

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        producer: Producer,
        agreed: Agreed | None,
        *,
        adds: bool = False,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets within the producer's transaction.

        `agreed` asks the transaction coordinator whether this partition is in the transaction (or, with `adds`, adds
        it); None: do not ask. It is not asked if the transaction is already known here. The batch is prepared first,
        yielding to other tasks, so that membership and transaction are checked right at the append.
        """
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._shard_of(group_id)
        accepted, batch = await made_ready(self._store, group_id, offsets, self._most_metadata, producer)
        shard = self._shard_of(group_id)
        verified: Verification | None = None
        if agreed is not None:
            verified = self._store.verification(shard.partition, producer, adds=adds)
            if verified is not GOING_ON and (error := await agreed(TopicPartition(OFFSETS_TOPIC, shard.partition))):
                raise ApiError(error)
            shard = self._shard_of(group_id)  # another broker may have led it meanwhile
        consumers = shard.consumer_groups.get(group_id)
        if consumers is None:
            check_committer(shard.group(group_id), committer)
        else:
            check_consumer(consumers, committer)
        answers = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        if accepted:
            error = await self._write(shard, group_id, accepted, batch, producer, verified)
            answers |= dict.fromkeys(accepted, error)
        shard.forget_if_unused(group_id)
        return answers

    async def _write(
        self,
        shard: Shard,
        group_id: str,
        offsets: Offsets,
        batch: bytearray,
        producer: Producer,
        verified: Verification | None,
    ) -> ErrorCode:
        def settled(committed: bool) -> None:
            shard.end_write(group_id, offsets)
            if committed:
                for partition, offset in offsets.items():
                    shard.add_pending(producer[0], group_id, partition, offset)

        shard.begin_write(group_id, offsets)
        return await self._append(shard, batch, settled, verified)

    def ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker is committed in this partition of the offsets topic: apply or drop what was pending.

        Whoever leads the partition next finds the marker in the log.
        """
        shard = self._shards.get(partition)
        if shard is not None and shard.loaded:
            shard.end_transaction(producer_id, committed)
        elif shard is not None:
            shard.ended_meanwhile.append((producer_id, committed))

    def unstable(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions with an offset in an open transaction or in an uncommitted append: their current offset may be
        stale in a moment.
        """
        shard = self._shard_of(group_id)
        return {*shard.pending.of_group(group_id), *shard.being_written(group_id)}


def check_committer(group: Group | None, committer: Committer) -> None:
    member_id, instance_id, generation = committer
    if group is None:
        if generation >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return
    if group.is_in(GroupState.DEAD):
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if committer == Committer() or (generation < 0 and group.is_in(GroupState.EMPTY)):
        return
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if known != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
    elif member_id not in group.members:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)


def check_consumer(group: ConsumerGroup, committer: Committer) -> None:
    """Consumer-protocol members send their epoch as the generation."""
    if committer == Committer() or (committer.generation < 0 and not group.members):
        return
    member = group.members.get(committer.member_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.current.epoch != committer.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
