"""The state of one consumer-protocol group (KIP-848), as its records in `__consumer_offsets` define it. PURE.

Only its records change a group: `apply` takes one, both when the log is loaded and when a record is committed, so that
the next coordinator will load exactly what this one knows. `heartbeat.py` decides which records to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ballast_broker.coordinator.group import Protocol

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2  # a static member that will return

Pair = tuple[UUID, int]
Partitions = Mapping[UUID, frozenset[int]]  # topic id → partitions, never empty
NONE: Partitions = MappingProxyType({})


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """The numbers are those used in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it has to revoke some before it can advance
    UNRELEASED_PARTITIONS = 2  # it waits for some that others have not revoked yet
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class Classic:
    """The additional data of a classic-protocol member; see `classic_members.py`."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class About:
    """What a member reports about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""  # empty: no pattern
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: Classic | None = None  # None: a consumer-protocol member


@dataclass(frozen=True, slots=True)
class Current:
    """A member's epoch and current assignment."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=lambda: NONE)
    revoking: Partitions = field(default_factory=lambda: NONE)

    def is_at(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    about: About = field(default_factory=About)
    current: Current = field(default_factory=Current)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The topics that matched a pattern at a metadata offset."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


# -- what is written of a group; None: it is no more ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class EpochChange:
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class TopicsGoneChange:
    """Tombstone of a record that Apache Kafka wrote until 4.0: the topics a group was subscribed to."""


@dataclass(frozen=True, slots=True)
class AboutChange:
    member_id: str
    about: About | None


@dataclass(frozen=True, slots=True)
class TargetEpochChange:
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetChange:
    member_id: str
    partitions: Partitions | None


@dataclass(frozen=True, slots=True)
class CurrentChange:
    member_id: str
    current: Current | None


@dataclass(frozen=True, slots=True)
class PatternChange:
    pattern: str
    resolved: Resolved | None


Change = EpochChange | TopicsGoneChange | AboutChange | TargetEpochChange | TargetChange | CurrentChange | PatternChange


def is_end(change: Change) -> bool:
    """Whether the change is a tombstone."""
    match change:
        case EpochChange(epoch=None) | TargetEpochChange(epoch=None) | TopicsGoneChange():
            return True
        case AboutChange(about=None) | TargetChange(partitions=None):
            return True
        case CurrentChange(current=None) | PatternChange(resolved=None):
            return True
    return False


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    resolved: dict[str, Resolved] = field(default_factory=dict)
    owners: dict[Pair, str] = field(default_factory=dict)
    """The member that has a partition or has not revoked it yet."""
    _subscribed: frozenset[str] | None = field(default=None, compare=False, repr=False)  # cache; None: recompute

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        settled = all(member.current.is_at(self.assignment_epoch) for member in self.members.values())
        return GroupState.STABLE if settled else GroupState.RECONCILING

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def patterns(self) -> set[str]:
        return {member.about.pattern for member in self.members.values() if member.about.pattern}

    def topics_of(self, about: About) -> frozenset[str]:
        """All topics of a member's subscription; a pattern counts only once it is resolved."""
        resolved = self.resolved.get(about.pattern) if about.pattern else None
        return about.topics if resolved is None else about.topics | resolved.topics

    def subscribed(self) -> frozenset[str]:
        if self._subscribed is None:
            topics = {self.topics_of(member.about) for member in self.members.values()}
            self._subscribed = frozenset().union(*topics)
        return self._subscribed

    def is_classic_without(self, member_ids: Collection[str] = ()) -> bool:
        """Whether, without these members, some are left and all of those are classic."""
        left = [member.about.classic for member in self.members.values() if member.member_id not in member_ids]
        return bool(left) and None not in left

    def after(self, changes: Iterable[Change]) -> ConsumerGroup:
        """A copy of this group with the changes applied."""
        group = replace(
            self,
            members=dict(self.members),
            static_members=dict(self.static_members),
            targets=dict(self.targets),
            resolved=dict(self.resolved),
            owners=dict(self.owners),
        )
        for change in changes:
            group.apply(change)
        return group

    # -- records --------------------------------------------------------------------------------------------------
    def apply(self, change: Change) -> None:
        _APPLY[type(change)](self, change)

    def _epoch(self, change: EpochChange) -> None:
        if change.epoch is not None:
            self.epoch, self.metadata_hash = change.epoch, change.metadata_hash

    def _about(self, change: AboutChange) -> None:
        self._subscribed = None
        known = self.members.get(change.member_id)
        if change.about is not None:
            self._put(replace(known or Member(change.member_id), about=self._sharing_topics(change.about)))
        elif known is not None:
            self._give_up(known)
            del self.members[change.member_id]
            self._forget_instance(known)

    def _current(self, change: CurrentChange) -> None:
        known = self.members.get(change.member_id)
        if change.current is not None:
            self._put(replace(known or Member(change.member_id), current=change.current))
        elif known is not None:
            self._put(replace(known, current=Current(LEAVING, LEAVING)))

    def _target_epoch(self, change: TargetEpochChange) -> None:
        self.assignment_epoch = -1 if change.epoch is None else change.epoch

    def _target(self, change: TargetChange) -> None:
        if change.partitions is None:
            self.targets.pop(change.member_id, None)
        else:
            self.targets[change.member_id] = change.partitions

    def _pattern(self, change: PatternChange) -> None:
        self._subscribed = None
        if change.resolved is None:
            self.resolved.pop(change.pattern, None)
        else:
            self.resolved[change.pattern] = change.resolved

    def _topics_gone(self, _change: TopicsGoneChange) -> None:
        """Nothing is stored for this record."""

    def _put(self, member: Member) -> None:
        old = self.members.get(member.member_id)
        if old is not None:
            self._give_up(old)
            if old.about.instance_id != member.about.instance_id:
                self._forget_instance(old)
        self.members[member.member_id] = member
        if member.about.instance_id is not None:
            self.static_members[member.about.instance_id] = member.member_id
        for partitions in (member.current.assigned, member.current.revoking):
            for each in pairs(partitions):
                self.owners[each] = member.member_id

    def _sharing_topics(self, about: About) -> About:
        """Most members of a large group are subscribed alike: one set for all takes little room, and is equal at a
        glance."""
        other = next(iter(self.members.values()), None)
        if other is None or other.about.topics != about.topics:
            return about
        return replace(about, topics=other.about.topics)

    def _give_up(self, member: Member) -> None:
        for partitions in (member.current.assigned, member.current.revoking):
            for each in pairs(partitions):
                if self.owners.get(each) == member.member_id:
                    del self.owners[each]

    def _forget_instance(self, member: Member) -> None:
        instance_id = member.about.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def farewell(self) -> list[Change]:
        """The tombstones of all records the group may have."""
        changes: list[Change] = [CurrentChange(each, None) for each in self.members]
        changes += [TargetChange(each, None) for each in {**self.members, **self.targets}]
        changes += [TargetEpochChange(None)]
        changes += [AboutChange(each, None) for each in self.members]
        changes += [PatternChange(each, None) for each in self.resolved]
        return [*changes, TopicsGoneChange(), EpochChange(None)]


_APPLY: dict[type, Any] = {
    EpochChange: ConsumerGroup._epoch,
    TopicsGoneChange: ConsumerGroup._topics_gone,
    AboutChange: ConsumerGroup._about,
    TargetEpochChange: ConsumerGroup._target_epoch,
    TargetChange: ConsumerGroup._target,
    CurrentChange: ConsumerGroup._current,
    PatternChange: ConsumerGroup._pattern,
}


def pairs(partitions: Partitions) -> list[Pair]:
    return [(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers]


def without(partitions: Partitions, these: Collection[Pair]) -> Partitions:
    left = {
        topic_id: frozenset(number for number in numbers if (topic_id, number) not in these)
        for topic_id, numbers in partitions.items()
    }
    return {topic_id: numbers for topic_id, numbers in left.items() if numbers}
