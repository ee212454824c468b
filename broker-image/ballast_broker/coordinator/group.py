"""The state of one consumer group of the classic protocol: members, state, selected protocol. PURE.

`rebalance.py` holds the transitions. Times are monotonic milliseconds (`now_ms`) passed in; a ticket is an opaque
handle of a waiting request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

from ballast_broker.coordinator.consumers.hash_order import texts_in_order
from ballast_broker.coordinator.subscription import subscribed_topics

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
NO_GENERATION = -1
CONSUMER = "consumer"  # the only protocol type whose subscriptions are understood


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Ticket:
    """A waiting request. Only its identity matters here; the service knows whom to answer."""

    __slots__ = ()


class Protocol(NamedTuple):
    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    deadline_ms: int = 0
    is_new: bool = True
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    def metadata_for(self, protocol_name: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")

    def protocol_names(self) -> list[str]:
        return [p.name for p in self.protocols]

    @property
    def waits(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    def is_alive(self, now_ms: int) -> bool:
        """A member waiting for a response is alive, but a new one only until its join times out."""
        return now_ms < self.deadline_ms or (self.waits and not self.is_new)


@dataclass(slots=True)
class Group:
    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = -1  # wall clock: it is stored, and offset retention counts from it
    generation: int = 0
    planned: int = NO_GENERATION  # the generation whose assignments are being or have been stored
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: dict[str, int] = field(default_factory=dict)  # ids given out, not yet joined → deadline
    pending_sync: set[str] = field(default_factory=set)
    join_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None
    members_due_ms: float = inf  # no member and no pending one is due earlier
    initial_delay_left_ms: int = 0
    new_member_added: bool = False
    subscribed: frozenset[str] | None = None  # None: not known (not the consumer protocol, or not yet)
    supporting: Counter[str] = field(default_factory=Counter, compare=False, repr=False)  # protocol: how many members
    goes_over: bool = False  # dead: a consumer-protocol group is being written in its place

    def enter(self, state: GroupState, wall_ms: int) -> None:
        self.previous_state, self.state, self.state_timestamp_ms = self.state, state, wall_ms

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    @property
    def size(self) -> int:
        return len(self.members) + len(self.pending_members)

    # -- members --------------------------------------------------------------------------------------------------
    def add(self, member: Member) -> None:
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.expect(member.deadline_ms)
        self._count(member, 1)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        if member.group_instance_id is not None and self.static_members.get(member.group_instance_id) == member_id:
            del self.static_members[member.group_instance_id]
        self.pending_sync.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        member = self.members.pop(old_id)
        member.member_id = new_id
        self.members[new_id] = member
        self.static_members[instance_id] = new_id
        self.pending_sync.discard(old_id)
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        return instance_id is not None and self.static_members.get(instance_id, member_id) != member_id

    def not_yet_rejoined(self) -> list[Member]:
        return [m for m in self.members.values() if m.join_ticket is None]

    def has_all_joined(self) -> bool:
        return not self.pending_members and all(m.join_ticket is not None for m in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # -- protocols ------------------------------------------------------------------------------------------------
    def take_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: Member, change: int) -> None:
        for name in set(member.protocol_names()):
            self.supporting[name] += change
            if not self.supporting[name]:
                del self.supporting[name]

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols may join. As the only member: with at least one protocol."""
        if self.is_in(GroupState.EMPTY) or not self.members:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(self.supporting[n] == len(self.members) for n in names)

    def select_protocol(self) -> str:
        """Each member votes for its first protocol that all support; Kafka breaks ties in Java HashMap order."""
        common = {name for name, count in self.supporting.items() if count == len(self.members)}
        votes = Counter(next(n for n in m.protocol_names() if n in common) for m in self.members.values())
        return max(texts_in_order(votes), key=votes.__getitem__)

    def note_subscriptions(self) -> None:
        if self.protocol_type != CONSUMER or self.protocol_name is None:
            self.subscribed = None if self.members else frozenset()
            return
        topics: set[str] = set()
        for metadata in {member.metadata_for(self.protocol_name) for member in self.members.values()}:
            of_member = subscribed_topics(metadata)
            if of_member is None:
                self.subscribed = None
                return
            topics |= of_member
        self.subscribed = frozenset(topics)

    # -- deadlines ------------------------------------------------------------------------------------------------
    def expect(self, deadline_ms: int) -> None:
        """A member got this deadline. There may be thousands: the first is looked up only once it may have passed."""
        self.members_due_ms = min(self.members_due_ms, deadline_ms)

    def look_up_deadlines(self) -> None:
        deadlines = [m.deadline_ms for m in self.members.values() if m.is_new or not m.waits]
        self.members_due_ms = min([*deadlines, *self.pending_members.values()], default=inf)

    def next_deadline_ms(self) -> int | None:
        """When something may be due, or earlier."""
        deadlines = (self.members_due_ms, self.join_deadline_ms, self.sync_deadline_ms)
        return min((int(each) for each in deadlines if each is not None and each != inf), default=None)
