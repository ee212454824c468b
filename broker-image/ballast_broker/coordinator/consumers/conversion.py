"""Converts a group with its members from the classic to the consumer protocol and back. PURE."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from ballast_broker.coordinator.consumers.embedded import assignment, assignment_of, by_id, subscription_of
from ballast_broker.coordinator.consumers.group import (
    About,
    AboutChange,
    Change,
    Classic,
    ConsumerGroup,
    Current,
    CurrentChange,
    EpochChange,
    Member,
    MemberState,
    Pair,
    Partitions,
    TargetChange,
    TargetEpochChange,
    pairs,
    without,
)
from ballast_broker.coordinator.consumers.topics_hash import topics_hash
from ballast_broker.coordinator.group import CONSUMER, Group, GroupState
from ballast_broker.coordinator.group import Member as ClassicMember
from ballast_broker.metadata.image import TopicsImage

# The userdata these assignors of librdkafka add merely repeats the assignment: it may be dropped.
OF_ALL_CLIENTS = ("range", "roundrobin", "sticky", "cooperative-sticky")
CUSTOM_ASSIGNOR = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
    "before re-attempting the upgrade"
)


def upgraded(group: Group, topics: TopicsImage) -> list[Change]:
    """The changes that create the same group in the consumer protocol.

    Each member keeps its last assignment, with the generation as its epoch. Partitions that it owned on joining and was
    not assigned again may still be in use, so they are pending revocation. Raises ValueError if a member's bytes are
    malformed, a custom assignor adds userdata, which would be lost, or a partition is assigned twice.
    """
    members = [_upgraded(each, group, topics) for each in group.members.values()]
    owned = [pair for each in members for pair in pairs(each.current.assigned)]
    if len(owned) != len(set(owned)):
        raise ValueError("two members have the same partition")
    members = _with_what_they_give_back(members, set(owned))
    names = frozenset().union(*(each.about.topics for each in members))
    every = {
        (topic.id, number)
        for name in names
        if (topic := topics.by_name(name)) is not None
        for number in topic.partitions
    }
    hashed = topics_hash(names, topics)
    if not group.is_in(GroupState.STABLE) or every != set(owned):
        hashed = ~hashed  # a rebalance is due, or partitions are unassigned: a wrong hash forces an assignment
    return [
        *(AboutChange(each.member_id, each.about) for each in members),
        EpochChange(group.generation, hashed),
        *(TargetChange(each.member_id, each.current.assigned) for each in members),
        TargetEpochChange(group.generation),
        *(CurrentChange(each.member_id, each.current) for each in members),
    ]


def _upgraded(member: ClassicMember, group: Group, topics: TopicsImage) -> Member:
    """Until the owners of all partitions are known, everything it owned on joining is pending revocation."""
    try:
        subscription = subscription_of(member.metadata_for(group.protocol_name) or member.protocols[0].metadata)
        assigned, of_assignor = assignment_of(member.assignment)
    except ValueError:
        raise ValueError("the embedded consumer protocol is malformed") from None
    if of_assignor and group.protocol_name not in OF_ALL_CLIENTS:
        raise ValueError(CUSTOM_ASSIGNOR)
    about = About(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=Classic(member.session_timeout_ms, member.protocols),
    )
    epoch = group.generation
    had = by_id(subscription.owned, topics)
    return Member(member.member_id, about, Current(epoch, epoch, assigned=by_id(assigned, topics), revoking=had))


def _with_what_they_give_back(members: list[Member], taken: set[Pair]) -> list[Member]:
    """Limit what members have to revoke to partitions that nobody else has.

    A cooperative member goes on reading what it owned until it has its new assignment, and a while longer.
    """
    found = []
    for each in members:
        revoking = without(each.current.revoking, taken)
        taken.update(pairs(revoking))
        state = MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE
        found.append(replace(each, current=replace(each.current, state=state, revoking=revoking)))
    return found


def downgraded(group: ConsumerGroup, going: Collection[str], topics: TopicsImage, wall_ms: int) -> Group:
    """The classic group without the members in `going`; all others must be classic.

    A member's assignment includes partitions it has not revoked yet, since it may still read them.
    """
    classic = Group(
        group.group_id,
        state=GroupState.STABLE,
        state_timestamp_ms=wall_ms,
        generation=group.epoch,
        protocol_type=CONSUMER,
    )
    for member in group.members.values():
        if member.member_id not in going:
            classic.add(_downgraded(member, topics))
    classic.protocol_name = classic.select_protocol()
    classic.note_subscriptions()
    return classic


def _downgraded(member: Member, topics: TopicsImage) -> ClassicMember:
    about, terms = member.about, member.about.classic
    assert terms is not None
    version = subscription_of(terms.protocols[0].metadata).version
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=about.instance_id,
        client_id=about.client_id,
        client_host=about.client_host,
        rebalance_timeout_ms=about.rebalance_timeout_ms,
        session_timeout_ms=terms.session_timeout_ms,
        protocols=terms.protocols,
        assignment=assignment(_all_of(member.current), topics, version),
        is_new=False,
    )


def _all_of(current: Current) -> Partitions:
    found: dict[UUID, frozenset[int]] = dict(current.assigned)
    for topic_id, numbers in current.revoking.items():
        found[topic_id] = found.get(topic_id, frozenset()) | numbers
    return found
