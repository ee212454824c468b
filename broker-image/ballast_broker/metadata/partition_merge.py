"""Builds a partition's registration from its records: creation, and changes on top. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ballast_broker.metadata.image import DIRECTORY_MIGRATING, PartitionRegistration
from ballast_broker.metadata.partition_records import LEADER_UNCHANGED, RECOVERY_STATE_UNCHANGED
from ballast_broker.metadata.records import MalformedRecord


def registration_of(record: Any) -> PartitionRegistration:
    replicas = tuple(record.replicas)
    if record.directories:
        directories = tuple(record.directories)
        if len(directories) != len(replicas):
            raise MalformedRecord(f"partition {record.partition_id}: {len(directories)} directories for {replicas}")
    else:
        directories = (DIRECTORY_MIGRATING,) * len(replicas)
    return PartitionRegistration(
        replicas=replicas,
        directories=directories,
        isr=tuple(record.isr),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=record.leader_recovery_state,
    )


def merge_change(before: PartitionRegistration, change: Any) -> PartitionRegistration:
    """Every change bumps the partition epoch; naming a leader, even the current one, bumps the leader epoch."""
    replicas = _chosen(change.replicas, before.replicas)
    directories = tuple(change.directories) if change.directories else before.directories
    if len(directories) != len(replicas):
        raise MalformedRecord(f"partition {change.partition_id}: {len(directories)} directories for {replicas}")
    new_leader = change.leader != LEADER_UNCHANGED
    recovery = change.leader_recovery_state
    return PartitionRegistration(
        replicas=replicas,
        directories=directories,
        isr=_chosen(change.isr, before.isr),
        removing_replicas=_chosen(change.removing_replicas, before.removing_replicas),
        adding_replicas=_chosen(change.adding_replicas, before.adding_replicas),
        elr=_chosen(change.eligible_leader_replicas, before.elr),
        last_known_elr=_chosen(change.last_known_elr, before.last_known_elr),
        leader=change.leader if new_leader else before.leader,
        leader_epoch=before.leader_epoch + 1 if new_leader else before.leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        leader_recovery_state=before.leader_recovery_state if recovery == RECOVERY_STATE_UNCHANGED else recovery,
    )


def _chosen(new: Iterable[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)
