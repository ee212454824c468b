"""Takes a member one step from its current to its target assignment. PURE.

First it revokes what is no longer in its target and confirms that by a heartbeat; then it gets the target partitions
that nobody else holds. So no partition ever has two readers, and nobody waits for the whole group.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ballast_broker.coordinator.consumers.group import NONE, Current, Member, MemberState, Partitions

IsOwned = Callable[[UUID, int], bool]


class Fenced(Exception):
    """The member has to give up all its partitions and rejoin."""


def next_step(
    member: Member, assignment_epoch: int, target: Partitions, is_owned: IsOwned, owned: Partitions | None
) -> Current:
    """`owned`: what the member reports to own, None if unreported. `is_owned`: by any member."""
    current = member.current
    if current.state is MemberState.STABLE:
        if current.epoch == assignment_epoch:
            return current
        return _towards(current, current.epoch, assignment_epoch, target, is_owned, owned)
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _has_some(owned, current.revoking):
            return current
        return _towards(current, current.epoch + 1, assignment_epoch, target, is_owned, owned)
    if current.state is MemberState.UNRELEASED_PARTITIONS:
        return _towards(current, current.epoch, assignment_epoch, target, is_owned, owned)
    if owned is None or owned:
        raise Fenced(
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )
    return _towards(current, assignment_epoch, assignment_epoch, target, is_owned, owned)


def _has_some(owned: Partitions | None, of: Partitions) -> bool:
    """A member that does not report what it owns may still have them."""
    return owned is None or any(not numbers.isdisjoint(of.get(topic_id, ())) for topic_id, numbers in owned.items())


def _towards(
    current: Current,
    epoch: int,
    assignment_epoch: int,
    target: Partitions,
    is_owned: IsOwned,
    owned: Partitions | None,
) -> Current:
    kept: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    coming: dict[UUID, frozenset[int]] = {}
    waits = False
    for topic_id in {**target, **current.assigned}:
        wanted, has = target.get(topic_id, frozenset()), current.assigned.get(topic_id, frozenset())
        missing = wanted - has
        free = frozenset(number for number in missing if not is_owned(topic_id, number))
        waits = waits or free != missing
        _note(kept, topic_id, wanted & has)
        _note(revoking, topic_id, has - wanted)
        _note(coming, topic_id, free)
    if revoking and _has_some(owned, revoking):
        return Current(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, numbers in coming.items():
        kept[topic_id] = kept.get(topic_id, frozenset()) | numbers
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return Current(assignment_epoch, current.epoch, state, kept, NONE)


def _note(partitions: dict[UUID, frozenset[int]], topic_id: UUID, numbers: frozenset[int]) -> None:
    if numbers:
        partitions[topic_id] = numbers
