"""Offsets committed in transactions that are still open. PURE.

If a group's partition has several (from two producers, or a non-transactional commit besides), the last one in the log
wins, as if each took effect where it stands: hence `supersede`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_wire.names import TopicPartition

GroupPartition = tuple[str, TopicPartition]


@dataclass(slots=True)
class PendingOffsets:
    by_producer: dict[int, dict[GroupPartition, tuple[int, CommittedOffset | None]]] = field(default_factory=dict)
    """With its position in the log; None if something later already takes precedence."""
    producers: dict[str, dict[TopicPartition, set[int]]] = field(default_factory=dict)
    """Group → partition → producers with open transactions."""
    written: int = 0

    def add(self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset | None) -> None:
        self.written += 1
        self.by_producer.setdefault(producer_id, {})[group_id, partition] = self.written, offset
        self.producers.setdefault(group_id, {}).setdefault(partition, set()).add(producer_id)

    def supersede(self, group_id: str, partition: TopicPartition, place: int | None = None) -> None:
        """A commit at this position (None: the end of the log) overrides earlier pending offsets of the partition."""
        for producer_id in self.producers.get(group_id, {}).get(partition, ()):
            of_producer = self.by_producer[producer_id]
            own_place, _ = of_producer[group_id, partition]
            if place is None or own_place < place:
                of_producer[group_id, partition] = own_place, None

    def forget(self, group_id: str, partition: TopicPartition) -> None:
        """The offset's tombstone comes last: drop what is pending, however the transactions end."""
        of_group = self.producers.get(group_id, {})
        for producer_id in of_group.pop(partition, ()):
            of_producer = self.by_producer[producer_id]
            del of_producer[group_id, partition]
            if not of_producer:
                del self.by_producer[producer_id]
        if not of_group:
            self.producers.pop(group_id, None)

    def end(self, producer_id: int, committed: bool) -> list[tuple[str, TopicPartition, CommittedOffset]]:
        """End a transaction; return the offsets that take effect."""
        counts = []
        for (group_id, partition), (place, offset) in self.by_producer.pop(producer_id, {}).items():
            of_group = self.producers[group_id]
            of_group[partition].discard(producer_id)
            if committed and offset is not None:
                self.supersede(group_id, partition, place)
                counts.append((group_id, partition, offset))
            if not of_group[partition]:
                del of_group[partition]
            if not of_group:
                del self.producers[group_id]
        return counts

    def of_group(self, group_id: str) -> dict[TopicPartition, set[int]]:
        return self.producers.get(group_id, {})

    def clear(self) -> None:
        self.by_producer.clear()
        self.producers.clear()
