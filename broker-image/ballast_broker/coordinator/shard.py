"""The groups and offsets of one partition of `__consumer_offsets`, as its log tells them. PURE.

`replay` takes the log record by record; the service changes groups through `rebalance` and offsets through `apply`
once their records are committed. Until then `being_written` says which commits lie in the log already: whoever takes
offsets away has to know, or its tombstone would end a commit that is acknowledged after it. Offsets of transactions are
`pending` until `end_transaction`.
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
    failed: bool = False  # the last attempt to load it, and there will be another one
    groups: dict[str, Group] = field(default_factory=dict)
    consumers: dict[str, ConsumerGroup] = field(default_factory=dict)
    """The groups of the consumer protocol; of a name there is one here or in `groups`."""
    offsets: dict[str, Offsets] = field(default_factory=dict)
    writes: dict[str, list[Collection[TopicPartition]]] = field(default_factory=dict)
    """Per group what each commit is of, as it was given: one may be of ten thousand partitions."""
    deleted_meanwhile: set[str] = field(default_factory=set)
    """Topics that went while this was loaded."""
    pending: PendingOffsets = field(default_factory=PendingOffsets)
    ended_meanwhile: list[tuple[int, bool]] = field(default_factory=list)
    """Transactions that ended while this was loaded: their markers may lie behind what is read."""

    def fail(self) -> None:
        """It could not be loaded: nothing is known of it."""
        self.failed = True
        self.groups.clear()
        self.consumers.clear()
        self.offsets.clear()
        self.pending.clear()

    def replay(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        decoded = records.decode_key(key)
        if isinstance(decoded, records.OffsetKey):
            committed = None if value is None else records.decode_offset(value)
            self.apply(decoded.group_id, decoded.partition, committed)
        elif isinstance(decoded, records.GroupKey):
            if value is None:
                self.groups.pop(decoded.group_id, None)
            else:
                self.groups[decoded.group_id] = records.decode_group(decoded.group_id, value, now_ms)
        elif decoded is not None:
            group_id, change = consumer_records.decode(decoded, key, value)
            self.change(self.consumers.get(group_id) or ConsumerGroup(group_id), change)

    def change(self, group: ConsumerGroup, change: Change) -> None:
        """A record of a group of the consumer protocol; with its last one the group is gone."""
        if not is_end(change):
            self.consumers.setdefault(group.group_id, group)
        group.apply(change)
        if isinstance(change, EpochChange) and change.epoch is None:
            self.consumers.pop(group.group_id, None)

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        decoded = records.decode_key(key)
        if isinstance(decoded, records.OffsetKey) and value is not None:
            self.add_pending(producer_id, decoded.group_id, decoded.partition, records.decode_offset(value))

    def add_pending(self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        self.pending.add(producer_id, group_id, partition, offset)
        self.group(group_id)  # there from now on, until it expires, however the transaction ends

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
        """Of a group that is deleted; what is pending goes with them, as the tombstones in the log say."""
        for partition in list(self.pending.of_group(group_id)):
            self.pending.forget(group_id, partition)
        self.offsets.pop(group_id, None)

    def begin_write(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Commits of these partitions are about to be appended; `end_write` once it is known what came of them."""
        self.writes.setdefault(group_id, []).append(partitions)

    def end_write(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        of_group = self.writes[group_id]
        of_group.remove(partitions)
        if not of_group:
            del self.writes[group_id]

    def being_written(self, group_id: str) -> set[TopicPartition]:
        return set().union(*self.writes.get(group_id, ()))

    def known_offsets(self, group_id: str) -> set[TopicPartition]:
        """Of which partitions the log has an offset, committed or about to be."""
        of_group = self.offsets.get(group_id, ())
        return {*of_group, *self.being_written(group_id), *self.pending.of_group(group_id)}

    def group(self, group_id: str) -> Group | None:
        """The classic group, or, where somebody only commits offsets, an empty one that stands for it."""
        if group_id in self.consumers:
            return None
        group = self.groups.get(group_id)
        if group is None and (group_id in self.offsets or group_id in self.pending.producers):
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget_if_unused(self, group_id: str) -> None:
        """An empty group that nothing was ever stored of, and that nobody is about to join, leaves no trace."""
        group = self.groups.get(group_id)
        unused = group is not None and group.is_in(GroupState.EMPTY) and group.size == 0 and group.generation == 0
        if unused and group_id not in self.offsets and group_id not in self.pending.producers:
            del self.groups[group_id]

    def all_group_ids(self) -> list[str]:
        return sorted(self.groups.keys() | self.consumers.keys() | self.offsets.keys() | self.pending.producers.keys())
