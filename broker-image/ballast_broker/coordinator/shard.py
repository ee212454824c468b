"""The groups and offsets of one partition of `__consumer_offsets`. PURE.

`replay` takes the log record by record; the service changes groups through `rebalance` and offsets through `apply` once
their records are committed. `being_written` tells which commits are appended but not yet committed: whoever deletes
offsets has to know them, or its tombstone would delete a commit acknowledged later. Transactional offsets are `pending`
until `end_transaction`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ballast_broker.coordinator import records
from ballast_broker.coordinator.consumers import records as consumer_records
from ballast_broker.coordinator.consumers.group import Change, ConsumerGroup, EpochChange, is_end
from ballast_broker.coordinator.group import Group, GroupState
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.coordinator.pending_offsets import PendingOffsets
from ballast_wire.names import TopicPartition


@dataclass(slots=True)
class Shard:
    partition: int
    loaded: bool = False
    failed: bool = False  # the last attempt to load it failed; it is retried
    classic_groups: dict[str, Group] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    """Consumer-protocol groups; a group id is either here or in `classic_groups`."""
    offsets: dict[str, Offsets] = field(default_factory=dict)
    writes: dict[str, list[Collection[TopicPartition]]] = field(default_factory=dict)
    """Group → partitions of each commit in flight, as passed in: one may have ten thousand."""
    deleted_meanwhile: set[str] = field(default_factory=set)
    """Topics deleted while this was loading."""
    pending: PendingOffsets = field(default_factory=PendingOffsets)
    ended_meanwhile: list[tuple[int, bool]] = field(default_factory=list)
    """Transactions that ended while this was loading: their markers may come after the part being read."""

    def fail(self) -> None:
        """Loading failed: drop everything."""
        self.failed = True
        self.classic_groups.clear()
        self.consumer_groups.clear()
        self.offsets.clear()
        self.pending.clear()

    def replay(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        decoded = records.decode_key(key)
        if isinstance(decoded, records.OffsetKey):
            committed = None if value is None else records.decode_offset(value)
            self.apply(decoded.group_id, decoded.partition, committed)
        elif isinstance(decoded, records.GroupKey):
            if value is None:
                self.classic_groups.pop(decoded.group_id, None)
            else:
                self.classic_groups[decoded.group_id] = records.decode_group(decoded.group_id, value, now_ms)
        elif decoded is not None:
            group_id, change = consumer_records.decode(decoded, key, value)
            self.change(self.consumer_groups.get(group_id) or ConsumerGroup(group_id), change)

    def change(self, group: ConsumerGroup, change: Change) -> None:
        """Apply a change to a consumer-protocol group; the tombstone of its epoch removes the group."""
        if not is_end(change):
            self.consumer_groups.setdefault(group.group_id, group)
        group.apply(change)
        if isinstance(change, EpochChange) and change.epoch is None:
            self.consumer_groups.pop(group.group_id, None)

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        decoded = records.decode_key(key)
        if isinstance(decoded, records.OffsetKey) and value is not None:
            self.add_pending(producer_id, decoded.group_id, decoded.partition, records.decode_offset(value))

    def add_pending(self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        self.pending.add(producer_id, group_id, partition, offset)
        self.group(group_id)  # the group exists from now on until it expires, however the transaction ends

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for group_id, partition, offset in self.pending.end(producer_id, committed):
            self.offsets.setdefault(group_id, {})[partition] = offset

    def apply_commit(self, group_id: str, offsets: Offsets) -> None:
        if group_id in self.pending.producers:
            for partition in offsets:
                self.pending.supersede(group_id, partition)
        self.offsets.setdefault(group_id, {}).update(offsets)

    def apply(self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        if committed is not None:
            if self.pending.producers:
                self.pending.supersede(group_id, partition)
            self.offsets.setdefault(group_id, {})[partition] = committed
            return
        self.pending.forget(group_id, partition)
        of_group = self.offsets.get(group_id)
        if of_group is not None:
            of_group.pop(partition, None)
            if not of_group:
                del self.offsets[group_id]

    def forget_offsets(self, group_id: str) -> None:
        """Drop all offsets of a deleted group, pending ones included, as its tombstones do in the log."""
        for partition in list(self.pending.of_group(group_id)):
            self.pending.forget(group_id, partition)
        self.offsets.pop(group_id, None)

    def begin_write(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Commits for these partitions are about to be appended; `end_write` when their outcome is known."""
        self.writes.setdefault(group_id, []).append(partitions)

    def end_write(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        of_group = self.writes[group_id]
        of_group.remove(partitions)
        if not of_group:
            del self.writes[group_id]

    def being_written(self, group_id: str) -> set[TopicPartition]:
        return set().union(*self.writes.get(group_id, ()))

    def known_offsets(self, group_id: str) -> set[TopicPartition]:
        """The partitions with an offset in the log, committed or not."""
        of_group = self.offsets.get(group_id, ())
        return {*of_group, *self.being_written(group_id), *self.pending.of_group(group_id)}

    def group(self, group_id: str) -> Group | None:
        """The classic group; an empty one is created for offsets committed without a group."""
        if group_id in self.consumer_groups:
            return None
        group = self.classic_groups.get(group_id)
        if group is None and (group_id in self.offsets or group_id in self.pending.producers):
            group = self.classic_groups[group_id] = Group(group_id)
        return group

    def forget_if_unused(self, group_id: str) -> None:
        """Remove an empty group that was never stored and that nobody is about to join."""
        group = self.classic_groups.get(group_id)
        unused = group is not None and group.is_in(GroupState.EMPTY) and group.size == 0 and group.generation == 0
        if unused and group_id not in self.offsets and group_id not in self.pending.producers:
            del self.classic_groups[group_id]

    def all_group_ids(self) -> list[str]:
        return sorted(
            self.classic_groups.keys()
            | self.consumer_groups.keys()
            | self.offsets.keys()
            | self.pending.producers.keys()
        )
