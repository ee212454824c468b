"""The effects a classic group asks the service to carry out: replies to waiting requests, records to store. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_broker.coordinator.group import NO_GENERATION, Ticket
from ballast_wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    ticket: Ticket
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class StoreAssignment:
    """Store the group with these assignments, then call `assignment_stored` for this generation."""

    generation: int
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class StoreEmpty:
    """The group has become empty: store that. Nobody waits for it."""


@dataclass(frozen=True, slots=True)
class StoreStaticMember:
    """A static member returned under a new id without a rebalance: store it, then reply."""

    ticket: Ticket
    result: JoinResult
    old_member_id: str
    new_member_id: str
    group_instance_id: str


Effect = Reply | StoreAssignment | StoreEmpty | StoreStaticMember
