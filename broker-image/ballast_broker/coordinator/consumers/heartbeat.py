"""Decides what a member's heartbeat, leave or timeout changes in a consumer-protocol group. PURE.

Each function reads the committed group and returns the changes to write; nothing changes before they are committed. The
rules are Kafka's: a new group epoch whenever members, subscriptions or topics change, a new target assignment for all
at the next heartbeat, and each member reconciled with its own target independently (`reconcile.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap

from ballast_broker.coordinator.consumers.assignors import ASSIGNORS, GroupSpec, MemberSpec
from ballast_broker.coordinator.consumers.group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NONE,
    About,
    AboutChange,
    Change,
    Classic,
    ConsumerGroup,
    Current,
    CurrentChange,
    EpochChange,
    Member,
    Partitions,
    PatternChange,
    TargetChange,
    TargetEpochChange,
)
from ballast_broker.coordinator.consumers.hash_order import texts_in_order
from ballast_broker.coordinator.consumers.patterns import BadPattern, compiled
from ballast_broker.coordinator.consumers.reconcile import Fenced, next_step
from ballast_broker.coordinator.consumers.topics_hash import topics_hash
from ballast_broker.metadata.image import TopicsImage
from ballast_wire.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")


@dataclass(frozen=True, slots=True)
class Ask:
    """A ConsumerGroupHeartbeat as the core needs it; None: unchanged."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    classic: Classic | None = None  # set: it is a JoinGroup (`classic_members.py`)

    @property
    def is_whole(self) -> bool:
        """A full request, with all fields set: the response contains the full assignment."""
        says = self.topics is not None or self.pattern is not None
        return self.epoch == JOINING or (self.rebalance_timeout_ms != -1 and says and self.owned is not None)


@dataclass(frozen=True, slots=True)
class Answer:
    member_id: str
    epoch: int
    assigned: Partitions | None = None
    changes: Sequence[Change] = field(default_factory=list)


def heartbeat(group: ConsumerGroup, ask: Ask, topics: TopicsImage, limits: ConsumerLimits, *, refresh: bool) -> Answer:
    """`refresh`: subscribed topics may have changed since the last check."""
    check_size(group, ask.member_id, limits)
    return _Heartbeat(group, ask, topics, limits).beat(refresh)


def check_size(group: ConsumerGroup, member_id: str, limits: ConsumerLimits) -> None:
    if len(group.members) >= limits.max_size and member_id not in group.members:
        text = f"The consumer group has reached its maximum capacity of {limits.max_size} members."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


class _Heartbeat:
    def __init__(self, group: ConsumerGroup, ask: Ask, topics: TopicsImage, limits: ConsumerLimits) -> None:
        self._group = group
        self._ask = ask
        self._topics = topics
        self._limits = limits
        self._changes: list[Change] = []
        self._former: str | None = None  # the member id a returning static member replaces

    def beat(self, refresh: bool) -> Answer:
        group, ask = self._group, self._ask
        member = self._member()
        about = _updated(member.about, ask)
        bump = group.epoch == 0
        if about != member.about:
            self._changes.append(AboutChange(ask.member_id, about))
            bump = bump or about.topics != member.about.topics
        bump = self._new_pattern(member.about.pattern, about.pattern) or bump
        epoch = group.epoch
        if bump or refresh:
            hashed = _hash_of(group, self._all(about).values(), self._topics)
            if bump or hashed != group.metadata_hash:
                epoch += 1
                self._changes.append(EpochChange(epoch, hashed))
        if epoch > group.assignment_epoch:
            target, assignment_epoch = self._assign(self._all(about), epoch), epoch
        else:
            assignment_epoch = group.assignment_epoch
            target = group.targets.get(self._former or ask.member_id, NONE)
        current = self._step(member.current, assignment_epoch, target)
        changed = ask.is_whole or current.assigned != member.current.assigned
        return Answer(ask.member_id, current.epoch, current.assigned if changed else None, self._changes)

    def _all(self, about: About) -> dict[str, About]:
        """The members as they will be after this heartbeat."""
        members = {each.member_id: each.about for each in self._group.members.values()}
        members.pop(self._former or "", None)
        return {**members, self._ask.member_id: about}

    # -- who it is ------------------------------------------------------------------------------------------------
    def _member(self) -> Member:
        group, ask = self._group, self._ask
        if ask.instance_id is None:
            member = group.members.get(ask.member_id)
            if member is None:
                if ask.epoch != JOINING:
                    raise unknown_member(group.group_id, ask.member_id)
                return Member(ask.member_id)
            _check_epoch(member, ask)
            return member
        known = group.static_member(ask.instance_id)
        if ask.epoch == JOINING:
            if known is None or known.member_id == ask.member_id:
                return known or Member(ask.member_id)
            return self._in_place_of(known)
        known = known_static(group, ask.instance_id, ask.member_id)
        _check_epoch(known, ask)
        return known

    def _in_place_of(self, known: Member) -> Member:
        """Replace a static member that returned under a new id. A protocol switch needs no leave before."""
        ask = self._ask
        goes_over = ask.classic is not None or known.about.classic is not None
        if known.current.epoch != LEAVING_FOR_A_WHILE and not goes_over:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {ask.member_id} with instance id {ask.instance_id} cannot join the group because the "
                f"instance id is owned by {known.member_id} member.",
            )
        current = replace(known.current, epoch=0, previous_epoch=0)
        target = self._group.targets.get(known.member_id, NONE)
        self._changes += _farewell_of(known.member_id)
        self._changes += [
            AboutChange(ask.member_id, known.about),
            TargetChange(ask.member_id, target),
            CurrentChange(ask.member_id, current),
        ]
        self._former = known.member_id
        return Member(ask.member_id, known.about, current)

    # -- what it wants --------------------------------------------------------------------------------------------
    def _new_pattern(self, old: str, new: str) -> bool:
        """Record a change of pattern; return whether it needs a new epoch. A new pattern is resolved first."""
        if old == new:
            return False
        others = [
            each.about.pattern
            for each in self._group.members.values()
            if each.member_id not in (self._ask.member_id, self._former)
        ]
        if old and old not in others:
            self._changes.append(PatternChange(old, None))
        if not new:  # another subscription to topics by name needs one anyway
            return old in self._group.resolved and bool(self._group.resolved[old].topics)
        if new not in others:
            _check_pattern(new)
        return new in self._group.resolved

    # -- what it gets ---------------------------------------------------------------------------------------------
    def _assign(self, members: Mapping[str, About], epoch: int) -> Partitions:
        group = self._group
        targets = dict(group.targets)
        if self._former is not None:
            targets[self._ask.member_id] = targets.pop(self._former, NONE)
        assigned = new_targets(group, members, targets, self._topics, self._limits, self._ask.member_id)
        for member_id in members:
            target = assigned.get(member_id, NONE)
            if target != targets.get(member_id) or member_id not in targets:
                self._changes.append(TargetChange(member_id, target))
        self._changes.append(TargetEpochChange(epoch))
        return assigned.get(self._ask.member_id, NONE)

    def _step(self, current: Current, assignment_epoch: int, target: Partitions) -> Current:
        if current.is_at(assignment_epoch):
            return current
        ask, owners = self._ask, self._group.owners
        try:
            following = next_step(
                Member(ask.member_id, current=current),
                assignment_epoch,
                target,
                lambda topic_id, number: (topic_id, number) in owners,
                ask.owned,
            )
        except Fenced as fenced:
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, str(fenced)) from None
        if following != current:
            self._changes.append(CurrentChange(ask.member_id, following))
        return following


def _updated(about: About, ask: Ask) -> About:
    return About(
        instance_id=about.instance_id if ask.instance_id is None else ask.instance_id,
        rack_id=about.rack_id if ask.rack_id is None else ask.rack_id,
        client_id=ask.client_id,
        client_host=ask.client_host,
        topics=about.topics if ask.topics is None else ask.topics,
        pattern=about.pattern if ask.pattern is None else ask.pattern,
        rebalance_timeout_ms=about.rebalance_timeout_ms if ask.rebalance_timeout_ms == -1 else ask.rebalance_timeout_ms,
        assignor=about.assignor if ask.assignor is None else ask.assignor,
        classic=ask.classic,
    )


def _check_pattern(pattern: str) -> None:
    try:
        compiled(pattern)
    except BadPattern as error:
        text = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from None


def _check_epoch(member: Member, ask: Ask) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member is at its epoch.

    The previous epoch is accepted if the member owns no more than it is assigned: the last response may have been lost.
    A rejoining member has given up everything, as has a classic one: rejected, it would have to wait for its own
    session to expire.
    """
    known, current = member.current.epoch, member.current
    if ask.epoch in (known, JOINING) or ask.classic is not None:
        return
    if ask.epoch < known and ask.epoch == current.previous_epoch and _is_within(ask.owned, current.assigned):
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if ask.epoch > known else 'smaller'} member epoch ({ask.epoch}) "
        f"than the one known by the group coordinator ({known}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _is_within(owned: Partitions | None, assigned: Partitions) -> bool:
    return owned is not None and all(
        numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items()
    )


def unknown_member(group_id: str, member_id: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def known_static(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    known = group.static_member(instance_id)
    if known is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}."
        raise ApiError(ErrorCode.FENCED_INSTANCE_ID, text)
    return known


# -- leaving ----------------------------------------------------------------------------------------------------------
def leave(group: ConsumerGroup, ask: Ask, topics: TopicsImage) -> Answer:
    if ask.instance_id is None:
        if ask.member_id not in group.members:
            raise unknown_member(group.group_id, ask.member_id)
    else:
        known = known_static(group, ask.instance_id, ask.member_id)
        if ask.epoch == LEAVING_FOR_A_WHILE:
            away = replace(known.current, epoch=LEAVING_FOR_A_WHILE, revoking=NONE)
            return Answer(ask.member_id, ask.epoch, changes=[CurrentChange(ask.member_id, away)])
    return Answer(ask.member_id, LEAVING, changes=without(group, [ask.member_id], topics))


def without(group: ConsumerGroup, member_ids: Sequence[str], topics: TopicsImage) -> list[Change]:
    """The changes that remove these members."""
    changes: list[Change] = []
    for member_id in member_ids:
        changes += _farewell_of(member_id)
    going = frozenset(member_ids)
    left = [each.about for each in group.members.values() if each.member_id not in going]
    gone = group.patterns() - {about.pattern for about in left}
    changes += [PatternChange(pattern, None) for pattern in sorted(gone) if pattern in group.resolved]
    return [*changes, EpochChange(group.epoch + 1, _hash_of(group, left, topics))]


def _farewell_of(member_id: str) -> list[Change]:
    return [CurrentChange(member_id, None), TargetChange(member_id, None), AboutChange(member_id, None)]


# -- the topics -------------------------------------------------------------------------------------------------------
def patterns_resolved(group: ConsumerGroup, found: Sequence[PatternChange], topics: TopicsImage) -> list[Change]:
    """Record resolved patterns, with a new epoch if their topics changed.

    A new pattern that matches nothing is only recorded, unless its members still have what they read before.
    """
    wanted = group.patterns()
    fresh = {each.pattern: each.resolved for each in found if each.pattern in wanted and each.resolved is not None}
    before = {pattern: resolved.topics for pattern, resolved in group.resolved.items()}
    new = fresh.keys() - before.keys()
    after = ConsumerGroup(group.group_id, resolved={**group.resolved, **fresh})
    if all(resolved.topics == before.get(pattern, frozenset()) for pattern, resolved in fresh.items()) and not any(
        _has_other_topics(group.targets.get(each.member_id, NONE), after.topics_of(each.about), topics)
        for each in group.members.values()
        if each.about.pattern in new
    ):
        return [PatternChange(pattern, fresh[pattern]) for pattern in fresh if pattern in new]
    hashed = _hash_of(after, [each.about for each in group.members.values()], topics)
    return [*starmap(PatternChange, fresh.items()), EpochChange(group.epoch + 1, hashed)]


def _has_other_topics(target: Partitions, names: Collection[str], topics: TopicsImage) -> bool:
    """Whether the target has partitions of topics, other than deleted ones, that are not among these."""
    return any((topic := topics.by_id(topic_id)) is not None and topic.name not in names for topic_id in target)


def _hash_of(group: ConsumerGroup, abouts: Iterable[About], topics: TopicsImage) -> int:
    names = frozenset().union(*{group.topics_of(each) for each in abouts})
    return topics_hash(names, topics)


def new_targets(
    group: ConsumerGroup,
    members: Mapping[str, About],
    targets: Mapping[str, Partitions],
    topics: TopicsImage,
    limits: ConsumerLimits,
    asking: str,
) -> dict[str, Partitions]:
    wanted = {member_id: group.topics_of(about) for member_id, about in members.items()}
    subscriptions = frozenset(wanted.values())  # few, however many members there are
    known = {name: topic for name in frozenset().union(*subscriptions) if (topic := topics.by_name(name)) is not None}
    ids = {names: frozenset(known[name].id for name in names if name in known) for names in subscriptions}
    specs = {
        member_id: MemberSpec(ids[names], members[member_id].instance_id, targets.get(member_id, NONE))
        for member_id, names in wanted.items()
    }
    alike = len({(about.topics, about.pattern) for about in members.values()}) <= 1
    partitions = {topic.id: len(topic.partitions) for topic in known.values()}
    before = [about for member_id, about in members.items() if member_id != asking]
    return ASSIGNORS[preferred_assignor(members.values(), limits, before)](GroupSpec(specs, alike, partitions))


def preferred_assignor(abouts: Iterable[About], limits: ConsumerLimits, before: Iterable[About] | None = None) -> str:
    """The assignor that most members name; the broker's first if none is named.

    Ties go to one not named by `before`, the members without the requesting one: in Kafka's Java HashMap, newly
    computed entries come first.
    """
    named = _named(abouts, limits)
    known = texts_in_order(dict.fromkeys(named if before is None else _named(before, limits)))
    new = [each for each in dict.fromkeys(named) if each not in known]
    return max((each for each in (*new, *known) if each in named), key=named.count, default=limits.assignors[0])


def _named(abouts: Iterable[About], limits: ConsumerLimits) -> list[str]:
    return [each.assignor for each in abouts if each.assignor is not None and each.assignor in limits.assignors]
