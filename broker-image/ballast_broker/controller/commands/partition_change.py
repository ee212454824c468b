"""Computes a partition's next state: leader, ISR, ELR and the completion of a reassignment. PURE.

The caller sets the intended change on a `PartitionChange`; `build` derives what follows from it (completion of a
reassignment, the eligible leader replicas, the election) and returns one PartitionChangeRecord, or None if nothing
changes.

Candidates are tried in the order of the assigned replicas. The leader comes from the ISR; if that is empty, from the
ELR; then the last known leader if it is back; and finally, only where unclean election is allowed, the first live
replica, which then has to recover and is the whole ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.context import CommandContext
from ballast_broker.metadata.image import NO_LEADER, RECOVERING, PartitionRegistration, TopicImage
from ballast_broker.metadata.partition_records import LEADER_UNCHANGED, PartitionChangeRecord


class Election(Enum):
    ONLINE = "online"
    """Keep the leader if it may lead, otherwise choose one."""
    PREFERRED = "preferred"
    """Make the first assigned replica the leader if it may lead."""
    UNCLEAN = "unclean"
    """As ONLINE, but rather take any live replica than none."""


@dataclass(frozen=True, slots=True)
class Elected:
    node: int
    unclean: bool = False


@dataclass(slots=True)
class PartitionChange:
    topic_id: UUID
    partition_id: int
    before: PartitionRegistration
    acceptable_leader: Callable[[int], bool]
    default_directory: Callable[[int], UUID]
    min_isr: int
    elr_enabled: bool
    election: Election = Election.ONLINE
    unclean_shutdown_replicas: frozenset[int] = frozenset()
    lost_replicas: frozenset[int] = frozenset()
    """Replicas recreated empty: having been eligible, the last leader or in sync does not let them lead."""
    isr: list[int] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    adding: list[int] = field(default_factory=list)
    elr: list[int] = field(default_factory=list)
    recovery_state: int = 0
    directories: dict[int, UUID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = self.before
        self.isr = list(before.isr)
        self.replicas = list(before.replicas)
        self.removing = list(before.removing_replicas)
        self.adding = list(before.adding_replicas)
        self.elr = list(before.elr)
        self.recovery_state = before.leader_recovery_state
        self.directories = dict(zip(before.replicas, before.directories, strict=True))

    def build(self) -> PartitionChangeRecord | None:
        """Return the record, or None if nothing changes."""
        self._complete_reassignment()
        self._update_elr()
        elected = self._elect()
        fields: dict[str, Any] = {}
        self._apply_election(elected, fields)
        self._set_isr_and_elr(fields)
        self._remember_leader(fields)
        self._set_assignment(fields)
        if self.recovery_state != self.before.leader_recovery_state:
            fields.setdefault("leader_recovery_state", self.recovery_state)
        if not fields:
            return None
        return PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.partition_id, **fields)

    # ------------------------------------------------------------------ steps

    def _complete_reassignment(self) -> None:
        if not self.removing and not self.adding:
            return
        target = [replica for replica in self.replicas if replica not in self.removing]
        kept_isr = [replica for replica in self.isr if replica not in self.removing]
        if not target or not kept_isr or not set(self.adding) <= set(kept_isr):
            return
        # The move must not lower redundancy: as many in sync as before it, or as the target can have.
        in_sync_before = sum(replica not in self.adding for replica in self.isr)
        if len(kept_isr) < min(in_sync_before, len(target)):
            return
        self.replicas, self.isr, self.removing, self.adding = target, kept_isr, [], []

    def _update_elr(self) -> None:
        """Replicas leaving an ISR below min ISR join the ELR, unless they lost data or their assignment."""
        if not self._elr_counts or len(self.isr) >= self.min_isr:
            self.elr = []
            return
        unfit = self.unclean_shutdown_replicas | self.lost_replicas
        candidates = {*self.elr, *self.before.isr} - set(self.isr) - unfit
        self.elr = [replica for replica in self.replicas if replica in candidates]

    def _elect(self) -> Elected:
        if self.election is Election.PREFERRED and self.replicas and self._may_lead(self.replicas[0]):
            return Elected(self.replicas[0])
        if self._may_lead(self.before.leader):
            return Elected(self.before.leader)
        for replica in self.replicas:
            if self._may_lead(replica):
                return Elected(replica)
        last_known = self._returned_last_leader()
        if last_known is not None:
            return Elected(last_known, unclean=True)
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self.acceptable_leader(replica):
                    return Elected(replica, unclean=True)
        return Elected(NO_LEADER)

    @property
    def _elr_counts(self) -> bool:
        """Whether the ELR counts: even while ELR is off, if the ISR is empty, or nobody could ever lead again."""
        return self.elr_enabled or not self.before.isr

    def _may_lead(self, replica: int) -> bool:
        from_elr = self._elr_counts and not self.isr and replica in self.elr
        return (replica in self.isr or from_elr) and self.acceptable_leader(replica)

    def _returned_last_leader(self) -> int | None:
        last_known = self.before.last_known_elr
        if not self._elr_counts or self.isr or self.elr:
            return None
        if len(last_known) != 1 or last_known[0] in self.lost_replicas:
            return None
        kept = last_known[0] in self.replicas  # it may have been removed since, by a cancelled reassignment
        return last_known[0] if kept and self.acceptable_leader(last_known[0]) else None

    def _apply_election(self, elected: Elected, fields: dict[str, Any]) -> None:
        if elected.node == self.before.leader:
            # Naming the leader bumps the epoch: a removed replica must not go on with the old one.
            if not set(self.before.replicas) <= set(self.replicas):
                fields["leader"] = self.before.leader
            return
        fields["leader"] = elected.node
        if elected.node in self.elr:
            self.isr = [elected.node]
            self.elr.remove(elected.node)
        elif elected.unclean:
            self.isr = [elected.node]
            fields["isr"] = [elected.node]
            self.recovery_state = RECOVERING

    def _set_isr_and_elr(self, fields: dict[str, Any]) -> None:
        off = not self.elr_enabled and bool(self.isr)
        if "isr" in fields or off or len(self.isr) >= self.min_isr:
            self.elr = []
        if self.elr != list(self.before.elr):
            fields["eligible_leader_replicas"] = self.elr
        # Without ELR the last member stays in the ISR so that it can lead again, unless it is empty.
        recordable = bool(self.isr) or self.elr_enabled or bool(self.lost_replicas)
        if "isr" not in fields and recordable and self.isr != list(self.before.isr):
            fields["isr"] = self.isr

    def _remember_leader(self, fields: dict[str, Any]) -> None:
        leader = fields.get("leader", LEADER_UNCHANGED)
        # If ELR was off when the last leader went, it stayed in the ISR and leaves it only now.
        left_now = self.before.leader == NO_LEADER and fields.get("isr") == [] and len(self.before.isr) == 1
        if self.elr_enabled and not self.before.last_known_elr and (leader == NO_LEADER or left_now):
            fields["last_known_elr"] = list(self.before.isr) if left_now else [self.before.leader]
        elif self.before.last_known_elr and (leader >= 0 or self.lost_replicas & {*self.before.last_known_elr}):
            fields["last_known_elr"] = []

    def _set_assignment(self, fields: dict[str, Any]) -> None:
        before = self.before
        directories = [self.directories.get(each) or self.default_directory(each) for each in self.replicas]
        if tuple(directories) != before.directories:
            fields["directories"] = directories
        if tuple(self.replicas) != before.replicas:
            fields["replicas"] = self.replicas
        if tuple(self.removing) != before.removing_replicas:
            fields["removing_replicas"] = self.removing
        if tuple(self.adding) != before.adding_replicas:
            fields["adding_replicas"] = self.adding


def leader_acceptor(
    context: CommandContext, partition: PartitionRegistration, *, without: int = NO_LEADER
) -> Callable[[int], bool]:
    """Return a predicate: the broker is active (`without` counts as inactive), its replica on an online directory."""
    brokers = context.image.cluster.brokers

    def acceptable(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        if broker is None or broker_id == without or not broker.active:
            return False
        directory = partition.directory_of(broker_id)
        return directory is None or broker.has_directory(directory)

    return acceptable


def change_of(
    context: CommandContext,
    topic: TopicImage,
    partition_id: int,
    *,
    acceptable: Callable[[int], bool] | None = None,
    election: Election | None = None,
) -> PartitionChange:
    """An empty change; `election` defaults to unclean if the topic allows it."""
    before = topic.partitions[partition_id]
    if election is None:
        election = Election.UNCLEAN if context.unclean_election_enabled(topic.name) else Election.ONLINE
    return PartitionChange(
        topic_id=topic.id,
        partition_id=partition_id,
        before=before,
        acceptable_leader=acceptable or leader_acceptor(context, before),
        default_directory=context.default_directory,
        min_isr=context.min_insync_replicas(topic.name, len(before.replicas)),
        elr_enabled=context.elr_enabled,
        election=election,
    )


def without_broker(
    context: CommandContext,
    partitions: Iterable[tuple[TopicImage, int]],
    broker_id: int,
    *,
    unclean_shutdown: bool = False,
) -> list[Any]:
    """The records that remove a broker from the ISRs and leaderships of these partitions."""
    records = []
    for topic, partition_id in partitions:
        before = topic.partitions[partition_id]
        change = change_of(context, topic, partition_id, acceptable=leader_acceptor(context, before, without=broker_id))
        change.isr = [replica for replica in before.isr if replica != broker_id]
        if unclean_shutdown:
            change.unclean_shutdown_replicas = frozenset((broker_id,))
        built = change.build()
        if built is not None:
            records.append(built)
    return records
