"""The state machine of a classic group. PURE: (group, event, now) → effects.

Every function updates the group passed in and returns what the service has to do, in order. As in Kafka: a join barrier
with an initial delay, a generation per rebalance, static members that return without a rebalance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ballast_broker.coordinator.effects import (
    Effect,
    JoinedMember,
    JoinResult,
    Reply,
    StoreAssignment,
    StoreEmpty,
    StoreStaticMember,
    SyncResult,
)
from ballast_broker.coordinator.group import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    NO_GENERATION,
    Group,
    GroupState,
    Member,
    Protocol,
    Ticket,
)
from ballast_wire.errors import ErrorCode

S = GroupState
WAIT_ON_MS = 1000


class Now(NamedTuple):
    monotonic_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """A JoinGroup request as the core needs it. `fresh_member_id` is given to a member without an id."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    fresh_member_id: str
    requires_known_member_id: bool
    supports_skipping_assignment: bool


# -- joining ----------------------------------------------------------------------------------------------------------
def join(group: Group, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now) -> list[Effect]:
    if group.is_in(S.DEAD):  # some clients would give up on COORDINATOR_NOT_AVAILABLE
        return [_join_error(ticket, ErrorCode.NOT_COORDINATOR, ask.member_id)]
    if not _accepts_member(group, ask.member_id, limits):
        return [_join_error(ticket, ErrorCode.GROUP_MAX_SIZE_REACHED, "")]
    if not group.supports(ask.protocol_type, [p.name for p in ask.protocols]):
        return [_join_error(ticket, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ask.member_id)]
    if not ask.member_id:
        return _join_unknown(group, ask, ticket, limits, now)
    return _join_known(group, ask, ticket, limits, now)


def _accepts_member(group: Group, member_id: str, limits: GroupLimits) -> bool:
    """During a join phase, places go to those who join first; otherwise to existing members."""
    if len(group.members) < limits.max_size or group.is_in(S.EMPTY):
        return True
    member = group.members.get(member_id)
    if group.is_in(S.PREPARING_REBALANCE):
        joined = sum(m.join_ticket is not None for m in group.members.values())
        return joined < limits.max_size or (member is not None and member.join_ticket is not None)
    return member is not None


def _join_unknown(group: Group, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now) -> list[Effect]:
    if ask.group_instance_id is not None:
        old_id = group.static_members.get(ask.group_instance_id)
        if old_id is not None:
            return _rejoin_static(group, old_id, ask, ticket, limits, now)
        return _add_and_rebalance(group, ask.fresh_member_id, ask, ticket, limits, now)
    if ask.requires_known_member_id:
        deadline_ms = group.pending_members[ask.fresh_member_id] = now.monotonic_ms + ask.session_timeout_ms
        group.expect(deadline_ms)
        return [_join_error(ticket, ErrorCode.MEMBER_ID_REQUIRED, ask.fresh_member_id)]
    return _add_and_rebalance(group, ask.fresh_member_id, ask, ticket, limits, now)


def _join_known(group: Group, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now) -> list[Effect]:
    if ask.member_id in group.pending_members and ask.group_instance_id is None:
        return _add_and_rebalance(group, ask.member_id, ask, ticket, limits, now)
    error = _member_error(group, ask.member_id, ask.group_instance_id)
    if error is not ErrorCode.NONE:
        return [_join_error(ticket, error, ask.member_id)]
    member = group.members[ask.member_id]
    if group.is_in(S.PREPARING_REBALANCE):
        return _update_and_rebalance(group, member, ask, ticket, limits, now)
    if group.is_in(S.COMPLETING_REBALANCE):
        if member.protocols == ask.protocols:  # its response got lost: repeat it
            return [Reply(ticket, _current_generation(group, member, with_members=True))]
        return _update_and_rebalance(group, member, ask, ticket, limits, now)
    if group.is_in(S.STABLE):
        if group.leader_id == member.member_id or member.protocols != ask.protocols:
            return _update_and_rebalance(group, member, ask, ticket, limits, now)
        return [Reply(ticket, _current_generation(group, member, with_members=False))]
    return [_join_error(ticket, ErrorCode.UNKNOWN_MEMBER_ID, ask.member_id)]


def _member_error(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if known != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _add_and_rebalance(
    group: Group, member_id: str, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now
) -> list[Effect]:
    member = Member(
        member_id=member_id,
        group_instance_id=ask.group_instance_id,
        client_id=ask.client_id,
        client_host=ask.client_host,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        session_timeout_ms=ask.session_timeout_ms,
        protocols=ask.protocols,
        deadline_ms=now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
        join_ticket=ticket,
    )
    if not group.members:
        group.protocol_type = ask.protocol_type
    if group.is_in(S.PREPARING_REBALANCE) and group.previous_state is S.EMPTY:
        group.new_member_added = True
    group.add(member)
    return _prepare_rebalance(group, limits, now)


def _update_and_rebalance(
    group: Group, member: Member, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now
) -> list[Effect]:
    effects = _take_terms(group, member, ask, ticket, now)
    return effects + _prepare_rebalance(group, limits, now)


def _take_terms(group: Group, member: Member, ask: JoinAsk, ticket: Ticket, now: Now) -> list[Effect]:
    """Park the member's join under `ticket`; an older request of it that is still waiting is failed."""
    effects: list[Effect] = []
    if member.join_ticket is not None:
        effects.append(_join_error(member.join_ticket, ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
    group.take_protocols(member, ask.protocols)
    member.rebalance_timeout_ms = ask.rebalance_timeout_ms
    member.session_timeout_ms = ask.session_timeout_ms
    member.join_ticket = ticket
    if not member.is_new:  # new members keep their join timeout
        _beat(group, member, now)
    return effects


def _rejoin_static(
    group: Group, old_id: str, ask: JoinAsk, ticket: Ticket, limits: GroupLimits, now: Now
) -> list[Effect]:
    assert ask.group_instance_id is not None
    old_leader = group.leader_id
    old_protocol = group.protocol_name
    effects = _fence(group.members[old_id])
    member = group.replace_static(ask.group_instance_id, old_id, ask.fresh_member_id)
    effects += _take_terms(group, member, ask, ticket, now)
    if group.is_in(S.PREPARING_REBALANCE):
        return effects + _try_complete_join(group, limits, now)
    if not group.is_in(S.STABLE) or group.select_protocol() != old_protocol:
        return effects + _prepare_rebalance(group, limits, now)
    member.join_ticket = None
    leads = group.leader_id == member.member_id
    if ask.supports_skipping_assignment:
        result = _current_generation(group, member, with_members=leads, skip_assignment=leads)
    else:
        result = _current_generation(group, member, with_members=False, leader=old_leader)
    return [*effects, StoreStaticMember(ticket, result, old_id, member.member_id, ask.group_instance_id)]


def static_member_stored(group: Group, effect: StoreStaticMember, error: ErrorCode) -> list[Effect]:
    """Reply to the returned static member. If it was not stored, restore the old id; the member will retry."""
    if error is ErrorCode.NONE:
        return [Reply(effect.ticket, effect.result)]
    if group.static_members.get(effect.group_instance_id) == effect.new_member_id:
        group.replace_static(effect.group_instance_id, effect.new_member_id, effect.old_member_id)
    return [_join_error(effect.ticket, error, effect.old_member_id)]


def _fence(member: Member) -> list[Effect]:
    effects: list[Effect] = []
    if member.join_ticket is not None:
        effects.append(_join_error(member.join_ticket, ErrorCode.FENCED_INSTANCE_ID, member.member_id))
    if member.sync_ticket is not None:
        effects.append(Reply(member.sync_ticket, SyncResult(ErrorCode.FENCED_INSTANCE_ID)))
    member.join_ticket = member.sync_ticket = None
    return effects


# -- the barrier ------------------------------------------------------------------------------------------------------
def _prepare_rebalance(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    if group.is_in(S.PREPARING_REBALANCE):
        return _try_complete_join(group, limits, now)
    effects: list[Effect] = []
    if group.is_in(S.COMPLETING_REBALANCE):
        effects = _drop_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
    group.sync_deadline_ms = None
    group.pending_sync.clear()
    timeout_ms = group.rebalance_timeout_ms()
    if group.is_in(S.EMPTY):
        delay_ms = limits.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
        group.join_deadline_ms = now.monotonic_ms + delay_ms
        group.new_member_added = False
    else:
        group.join_deadline_ms = now.monotonic_ms + timeout_ms
    group.enter(S.PREPARING_REBALANCE, now.wall_ms)
    return effects + _try_complete_join(group, limits, now)


def _try_complete_join(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    """Complete the join if all have joined. A group's first join always waits for the initial delay, so that members
    started together share a generation."""
    delayed = group.previous_state is S.EMPTY and limits.initial_rebalance_delay_ms > 0
    if not group.is_in(S.PREPARING_REBALANCE) or delayed or not group.has_all_joined():
        return []
    return _complete_join(group, now)


def _join_phase_over(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    if group.previous_state is S.EMPTY and group.new_member_added and group.initial_delay_left_ms > 0:
        delay_ms = min(limits.initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.initial_delay_left_ms -= delay_ms
        group.join_deadline_ms = now.monotonic_ms + delay_ms
        group.new_member_added = False
        return []
    return _complete_join(group, now)


def _complete_join(group: Group, now: Now) -> list[Effect]:
    group.join_deadline_ms = None
    for member in group.not_yet_rejoined():
        if member.group_instance_id is None:
            group.remove(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members, none back yet: keep waiting, without a busy loop if their own timeout is 0.
        group.join_deadline_ms = now.monotonic_ms + max(group.rebalance_timeout_ms(), WAIT_ON_MS)
        return []
    group.generation += 1
    group.pending_sync.clear()
    if not group.members:
        group.protocol_name = None
        group.note_subscriptions()
        group.enter(S.EMPTY, now.wall_ms)
        return [StoreEmpty()]
    group.protocol_name = group.select_protocol()
    group.note_subscriptions()
    group.enter(S.COMPLETING_REBALANCE, now.wall_ms)
    group.sync_deadline_ms = now.monotonic_ms + group.rebalance_timeout_ms()
    return [effect for member in list(group.members.values()) for effect in _answer_join(group, member, now)]


def _answer_join(group: Group, member: Member, now: Now) -> list[Effect]:
    member.is_new = False
    group.pending_sync.add(member.member_id)
    _beat(group, member, now)
    ticket, member.join_ticket = member.join_ticket, None
    if ticket is None:
        return []
    return [Reply(ticket, _current_generation(group, member, with_members=True))]


def _elect_joined_leader(group: Group) -> bool:
    leader = group.members.get(group.leader_id or "")
    if leader is not None and leader.join_ticket is not None:
        return True
    joined = next((m for m in group.members.values() if m.join_ticket is not None), None)
    if joined is None:
        return False
    group.leader_id = joined.member_id
    return True


def _current_generation(
    group: Group, member: Member, *, with_members: bool, skip_assignment: bool = False, leader: str | None = None
) -> JoinResult:
    members: tuple[JoinedMember, ...] = ()
    if with_members and group.leader_id == member.member_id:
        members = tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata_for(group.protocol_name))
            for m in group.members.values()
        )
    return JoinResult(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader or group.leader_id or "",
        skip_assignment=skip_assignment,
        members=members,
    )


# -- syncing ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SyncAsk:
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


def sync(group: Group, ask: SyncAsk, ticket: Ticket, now: Now) -> list[Effect]:
    error = _sync_error(group, ask)
    if error is not ErrorCode.NONE:
        return [Reply(ticket, SyncResult(error))]
    member = group.members[ask.member_id]
    group.pending_sync.discard(ask.member_id)
    if group.is_in(S.STABLE):
        _beat(group, member, now)
        return [Reply(ticket, _assignment_of(group, member))]
    effects: list[Effect] = []
    if member.sync_ticket is not None:
        effects.append(Reply(member.sync_ticket, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)))
    member.sync_ticket = ticket
    if group.leader_id == member.member_id and group.planned != group.generation:
        group.planned = group.generation  # its leader may sync again, with another plan, before this one is stored
        complete = {member_id: ask.assignments.get(member_id, b"") for member_id in group.members}
        effects.append(StoreAssignment(group.generation, complete))
    return effects


def _sync_error(group: Group, ask: SyncAsk) -> ErrorCode:
    if group.is_in(S.DEAD):  # it is being converted: the same answer as to waiting requests
        return ErrorCode.REBALANCE_IN_PROGRESS
    error = _member_error(group, ask.member_id, ask.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if ask.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if ask.protocol_type is not None and ask.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if ask.protocol_name is not None and ask.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.is_in(S.PREPARING_REBALANCE):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.UNKNOWN_MEMBER_ID if group.is_in(S.EMPTY) else ErrorCode.NONE


def assignment_stored(
    group: Group, effect: StoreAssignment, error: ErrorCode, limits: GroupLimits, now: Now
) -> list[Effect]:
    """The leader's assignment is committed, or failed to be. A group that has moved on ignores it."""
    if not group.is_in(S.COMPLETING_REBALANCE) or group.generation != effect.generation:
        return []
    if error is not ErrorCode.NONE:
        return _drop_assignments(group, error, now) + _prepare_rebalance(group, limits, now)
    effects: list[Effect] = []
    for member in group.members.values():
        member.assignment = effect.assignments.get(member.member_id, b"")
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            _beat(group, member, now)
            effects.append(Reply(ticket, _assignment_of(group, member)))
    group.enter(S.STABLE, now.wall_ms)
    return effects


def _assignment_of(group: Group, member: Member) -> SyncResult:
    return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def _drop_assignments(group: Group, error: ErrorCode, now: Now) -> list[Effect]:
    effects: list[Effect] = []
    for member in group.members.values():
        member.assignment = b""
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            _beat(group, member, now)
            effects.append(Reply(ticket, SyncResult(error)))
    return effects


# -- staying and leaving ----------------------------------------------------------------------------------------------
def heartbeat(group: Group, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
    if group.is_in(S.DEAD):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = _member_error(group, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.is_in(S.EMPTY):
        return ErrorCode.UNKNOWN_MEMBER_ID
    _beat(group, group.members[member_id], now)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.is_in(S.PREPARING_REBALANCE) else ErrorCode.NONE


def leave(
    group: Group, member_id: str, instance_id: str | None, limits: GroupLimits, now: Now
) -> tuple[ErrorCode, list[Effect]]:
    if group.is_in(S.DEAD):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
    if instance_id is not None and not member_id:
        known = group.static_members.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        return ErrorCode.NONE, _remove(group, known, limits, now)
    if group.pending_members.pop(member_id, None) is not None:
        return ErrorCode.NONE, _try_complete_join(group, limits, now)
    error = _member_error(group, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error, []
    return ErrorCode.NONE, _remove(group, member_id, limits, now)


def _remove(group: Group, member_id: str, limits: GroupLimits, now: Now) -> list[Effect]:
    member = group.remove(member_id)
    if member is None:
        return []
    effects: list[Effect] = []
    if member.join_ticket is not None:
        effects.append(_join_error(member.join_ticket, ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if member.sync_ticket is not None:
        effects.append(Reply(member.sync_ticket, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)))
    if group.is_in(S.STABLE, S.COMPLETING_REBALANCE, S.PREPARING_REBALANCE):
        effects += _prepare_rebalance(group, limits, now)
    return effects


def tick(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    """Handle whatever is due: expired sessions, unused member ids, join and sync phases that timed out."""
    effects: list[Effect] = []
    for member_id in [m for m, deadline in group.pending_members.items() if deadline <= now.monotonic_ms]:
        del group.pending_members[member_id]
        effects += _try_complete_join(group, limits, now)
    for member_id in [m.member_id for m in group.members.values() if not m.is_alive(now.monotonic_ms)]:
        effects += _remove(group, member_id, limits, now)
    if group.join_deadline_ms is not None and group.join_deadline_ms <= now.monotonic_ms:
        effects += _join_phase_over(group, limits, now)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now.monotonic_ms:
        effects += _sync_phase_over(group, limits, now)
    group.look_up_deadlines()
    return effects


def _sync_phase_over(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    group.sync_deadline_ms = None
    late = [member_id for member_id in group.pending_sync if member_id in group.members]
    group.pending_sync.clear()
    return [effect for member_id in late for effect in _remove(group, member_id, limits, now)]


def rejoin(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    """Make all members rejoin."""
    return _prepare_rebalance(group, limits, now)


def loaded(group: Group, limits: GroupLimits, now: Now) -> list[Effect]:
    """The log is loaded: restart every member's session. A group over the size limit rebalances."""
    for member in group.members.values():
        _beat(group, member, now)
    return _prepare_rebalance(group, limits, now) if len(group.members) > limits.max_size else []


def close(group: Group, error: ErrorCode, now: Now) -> list[Effect]:
    """The group is deleted or led elsewhere now: fail all waiting requests."""
    effects: list[Effect] = []
    for member in group.members.values():
        if member.join_ticket is not None:
            effects.append(_join_error(member.join_ticket, error, ""))
        if member.sync_ticket is not None:
            effects.append(Reply(member.sync_ticket, SyncResult(error)))
        member.join_ticket = member.sync_ticket = None
    group.planned = NO_GENERATION
    group.enter(S.DEAD, now.wall_ms)
    return effects


def _beat(group: Group, member: Member, now: Now) -> None:
    member.deadline_ms = now.monotonic_ms + member.session_timeout_ms
    group.expect(member.deadline_ms)


def _join_error(ticket: Ticket, error: ErrorCode, member_id: str) -> Reply:
    return Reply(ticket, JoinResult(error=error, member_id=member_id))
