"""From partition records to registrations: creation, and a change on top of what was. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar
from uuid import UUID

from ballast_broker.metadata.image import DIRECTORY_MIGRATING, PartitionRegistration
from ballast_broker.metadata.partition_records import LEADER_UNCHANGED, RECOVERY_STATE_UNCHANGED
from ballast_broker.metadata.records import MalformedRecord, known_id

T = TypeVar("T")


class Sharing:
    """Equal tuples and ids become the same object: 100,000 partitions repeat few replica lists and directories."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}

    def ints(self, values: Iterable[int] | None) -> tuple[int, ...]:
        key = tuple(values) if values else ()
        found: tuple[int, ...] = self._seen.setdefault(key, key)
        return found

    def ids(self, values: Iterable[UUID | None]) -> tuple[UUID, ...]:
        key = tuple(known_id(value) for value in values)
        found: tuple[UUID, ...] = self._seen.setdefault(key, key)
        return found


def registration_of(record: Any, sharing: Sharing) -> PartitionRegistration:
    ints = sharing.ints
    replicas = ints(record.replicas)
    if record.directories:
        directories = sharing.ids(record.directories)
        if len(directories) != len(replicas):
            raise MalformedRecord(f"partition {record.partition_id}: {len(directories)} directories for {replicas}")
    else:
        directories = sharing.ids([DIRECTORY_MIGRATING] * len(replicas))
    return PartitionRegistration(
        replicas=replicas,
        directories=directories,
        isr=ints(record.isr),
        removing_replicas=ints(record.removing_replicas),
        adding_replicas=ints(record.adding_replicas),
        elr=ints(record.eligible_leader_replicas),
        last_known_elr=ints(record.last_known_elr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=record.leader_recovery_state,
    )


def merge_change(before: PartitionRegistration, change: Any, sharing: Sharing) -> PartitionRegistration:
    """Every change raises the partition epoch; naming a leader, even the present one, raises the leader epoch."""

    def chosen(new: Iterable[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
        return old if new is None else sharing.ints(new)

    replicas = chosen(change.replicas, before.replicas)
    directories = sharing.ids(change.directories) if change.directories else before.directories
    if len(directories) != len(replicas):
        raise MalformedRecord(f"partition {change.partition_id}: {len(directories)} directories for {replicas}")
    new_leader = change.leader != LEADER_UNCHANGED
    recovery = change.leader_recovery_state
    return PartitionRegistration(
        replicas=replicas,
        directories=directories,
        isr=chosen(change.isr, before.isr),
        removing_replicas=chosen(change.removing_replicas, before.removing_replicas),
        adding_replicas=chosen(change.adding_replicas, before.adding_replicas),
        elr=chosen(change.eligible_leader_replicas, before.elr),
        last_known_elr=chosen(change.last_known_elr, before.last_known_elr),
        leader=change.leader if new_leader else before.leader,
        leader_epoch=before.leader_epoch + 1 if new_leader else before.leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        leader_recovery_state=before.leader_recovery_state if recovery == RECOVERY_STATE_UNCHANGED else recovery,
    )
