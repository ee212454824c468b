"""The groups and offsets of one partition of `__consumer_offsets`, as its log tells them. PURE.

`replay` takes the log record by record; the service changes groups through `rebalance` and offsets through `apply`
once their records are committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_broker.coordinator import records
from ballast_broker.coordinator.group import Group, GroupState
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.names import TopicPartition


@dataclass(slots=True)
class Shard:
    partition: int
    leader_epoch: int
    loaded: bool = False
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)

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

    def apply(self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        if committed is not None:
            self.offsets.setdefault(group_id, {})[partition] = committed
            return
        of_group = self.offsets.get(group_id)
        if of_group is not None:
            of_group.pop(partition, None)
            if not of_group:
                del self.offsets[group_id]

    def group(self, group_id: str) -> Group | None:
        """The group, or, where somebody only commits offsets, an empty one that stands for it."""
        group = self.groups.get(group_id)
        if group is None and group_id in self.offsets:
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget_if_unused(self, group_id: str) -> None:
        """An empty group that nothing was ever stored of, and that nobody is about to join, leaves no trace."""
        group = self.groups.get(group_id)
        unused = group is not None and group.is_in(GroupState.EMPTY) and group.size == 0 and group.generation == 0
        if unused and group_id not in self.offsets:
            del self.groups[group_id]

    def all_group_ids(self) -> list[str]:
        return sorted(self.groups.keys() | self.offsets.keys())
