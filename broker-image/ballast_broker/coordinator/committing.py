"""Who may commit offsets of a group within a transaction. PURE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ballast_broker.coordinator.group import Group, GroupState
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

Verified = Callable[[TopicPartition], Awaitable[ErrorCode]]


class Committer(NamedTuple):
    """As which member of the group the producer commits; old clients do not say."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


def check_in_transaction(group: Group | None, committer: Committer) -> None:
    member_id, instance_id, generation = committer
    if group is None:
        if generation >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return
    if group.is_in(GroupState.DEAD):
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    says_nothing = generation < 0 and not member_id and instance_id is None
    if says_nothing or (generation < 0 and group.is_in(GroupState.EMPTY)):
        return
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if known != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
    elif member_id not in group.members:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
