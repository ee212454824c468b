"""Classic-protocol members in a consumer-protocol group, as during a rolling migration of clients. PURE.

To a classic member, its member epoch is the generation and the coordinator is the group leader. It joins with the
partitions it owns, syncs to get its assignment, and learns from a heartbeat that it has to rejoin, to revoke or to
receive partitions.
"""

from __future__ import annotations

from collections import Counter

from ballast_broker.coordinator.consumers.embedded import assignment, by_id, subscription_of
from ballast_broker.coordinator.consumers.group import JOINING, NONE, Classic, ConsumerGroup, Member, MemberState
from ballast_broker.coordinator.consumers.heartbeat import (
    Answer,
    Ask,
    ConsumerLimits,
    check_size,
    heartbeat,
    known_static,
    unknown_member,
)
from ballast_broker.coordinator.effects import SyncResult
from ballast_broker.coordinator.group import CONSUMER
from ballast_broker.coordinator.rebalance import JoinAsk, SyncAsk
from ballast_broker.metadata.image import TopicsImage
from ballast_wire.errors import ApiError, ErrorCode

REJOINING = 1  # a static member rejoining under its member id; it does not tell its epoch


def join(group: ConsumerGroup, ask: JoinAsk, topics: TopicsImage, limits: ConsumerLimits, *, refresh: bool) -> Answer:
    member_id = ask.member_id or ask.fresh_member_id
    check_size(group, member_id, limits)
    if not _supports(group, ask):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")
    if not ask.member_id and ask.requires_known_member_id:
        raise ApiError(ErrorCode.MEMBER_ID_REQUIRED)
    try:
        subscription = subscription_of(ask.protocols[0].metadata)
    except ValueError as error:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The subscription cannot be read: {error}.") from None
    as_beat = Ask(
        member_id=member_id,
        epoch=REJOINING if ask.member_id and ask.group_instance_id is not None else JOINING,
        client_id=ask.client_id,
        client_host=ask.client_host,
        instance_id=ask.group_instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        topics=subscription.topics,
        pattern="",
        owned=by_id(subscription.owned, topics),
        classic=Classic(ask.session_timeout_ms, ask.protocols),
    )
    return heartbeat(group, as_beat, topics, limits, refresh=refresh)


def _supports(group: ConsumerGroup, ask: JoinAsk) -> bool:
    """Whether all current classic members support one of its protocols."""
    classic = [each.about.classic for each in group.members.values() if each.about.classic is not None]
    counted = Counter(name for each in classic for name in {protocol.name for protocol in each.protocols})
    return ask.protocol_type == CONSUMER and any(counted[each.name] == len(classic) for each in ask.protocols)


def member_at(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """Return the classic member at this generation; raise ApiError if there is none."""
    member = group.members.get(member_id) if instance_id is None else known_static(group, instance_id, member_id)
    if member is None or member.about.classic is None:
        raise unknown_member(group.group_id, member_id)
    if member.current.epoch != generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def has_to_rejoin(group: ConsumerGroup, member: Member, *, refresh: bool) -> bool:
    """Whether a classic member has to rejoin: the epoch advanced, it has to revoke, or all it waits for is free.

    `refresh`: topics may have changed; with classic members only, nobody else would trigger the new assignment.
    """
    current = member.current
    if refresh and group.is_classic_without():
        return True
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return current.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member)


def _waits(group: ConsumerGroup, member: Member) -> bool:
    assigned = member.current.assigned
    return any(
        (topic_id, number) in group.owners
        for topic_id, numbers in group.targets.get(member.member_id, NONE).items()
        for number in numbers - assigned.get(topic_id, frozenset())
    )


def is_behind(group: ConsumerGroup, member: Member) -> bool:
    """Whether it must rejoin before it gets an assignment; one that has to revoke first rejoins afterwards anyway."""
    return group.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS


def check_protocol(member: Member, ask: SyncAsk) -> None:
    assert member.about.classic is not None
    name = member.about.classic.protocols[0].name
    if ask.protocol_type not in (None, CONSUMER) or ask.protocol_name not in (None, name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def synced(member: Member, ask: SyncAsk, topics: TopicsImage) -> SyncResult:
    assert member.about.classic is not None
    version = subscription_of(member.about.classic.protocols[0].metadata).version
    has = assignment(member.current.assigned, topics, version)
    return SyncResult(ErrorCode.NONE, ask.protocol_type, ask.protocol_name, has)
