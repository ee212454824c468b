"""Defines the kind Reassignment. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ballast_operator.model.fields import FieldError, read
from ballast_operator.model.meta import ClusterRef, Condition, Key, Meta, read_meta
from ballast_operator.model.times import is_time

KIND = "Reassignment"
PLURAL = "reassignments"
ANY = "any"


class Approval(StrEnum):
    AUTOMATIC = "Automatic"
    REQUIRED = "Required"


class OnCancel(StrEnum):
    STAY = "Stay"
    ROLLBACK = "Rollback"


class Phase(StrEnum):
    PLANNING = "Planning"
    AWAITING_APPROVAL = "AwaitingApproval"
    WAITING = "Waiting"
    RUNNING = "Running"
    PAUSED = "Paused"
    VERIFYING = "Verifying"
    SUCCEEDED = "Succeeded"
    STALE = "Stale"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    ROLLED_BACK = "RolledBack"


STOPPED = frozenset({Phase.CANCELLED, Phase.ROLLED_BACK})
ENDS = STOPPED | {Phase.SUCCEEDED, Phase.FAILED}


@dataclass(frozen=True, slots=True)
class Placement:
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionRow:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()
    from_: Placement | None = None
    wave: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigMapRef:
    name: str


@dataclass(frozen=True, slots=True)
class PlanSource:
    config_map_ref: ConfigMapRef
    key: str = "partitions.json"


@dataclass(frozen=True, slots=True)
class Generate:
    topics: tuple[str, ...] = ()
    to_brokers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    broker: int
    directory: str


@dataclass(frozen=True, slots=True)
class TopicFactor:
    topic: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Throttle:
    inter_broker: str | None = None
    intra_broker: str | None = None


@dataclass(frozen=True, slots=True)
class MaxConcurrentMoves:
    per_broker: int = 5
    per_directory: int = 2


@dataclass(frozen=True, slots=True)
class ReassignmentSpec:
    cluster_ref: ClusterRef
    partitions: tuple[PartitionRow, ...] = ()
    plan_from: tuple[PlanSource, ...] = ()
    generate: Generate | None = None
    drain_brokers: tuple[int, ...] = ()
    drain_directories: tuple[BrokerDirectory, ...] = ()
    replication_factor: tuple[TopicFactor, ...] = ()
    add_brokers: tuple[int, ...] = ()
    approval: Approval = Approval.AUTOMATIC
    approved_plan: str | None = None
    plan_hash: str | None = None
    input_time: str | None = None
    expires_at: str | None = None
    throttle: Throttle | None = None
    max_concurrent_moves: MaxConcurrentMoves | None = None
    paused: bool = False
    cancel: bool = False
    on_cancel: OnCancel = OnCancel.STAY
    rollback: bool = False
    ttl_seconds_after_finished: int | None = None

    @property
    def explicit(self) -> bool:
        """Whether a person or the job wrote the moves; otherwise the operator computes them."""
        return bool(self.partitions or self.plan_from)


@dataclass(frozen=True, slots=True)
class PlanStatus:
    hash: str | None = None
    moves: int | None = None
    waves: int | None = None
    bytes: int | None = None
    planned_at: str | None = None
    config_maps: tuple[str, ...] = ()
    preview: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remaining:
    topic: str | None = None
    partition: int | None = None
    state: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    percent: int | None = None
    moves_done: int | None = None
    moves_running: int | None = None
    moves_total: int | None = None
    moves_text: str | None = None
    wave: int | None = None
    bytes_done: int | None = None
    bytes_total: int | None = None
    bytes_done_text: str | None = None
    bytes_total_text: str | None = None
    bytes_per_second: int | None = None
    eta: str | None = None
    measured_at: str | None = None
    remaining: tuple[Remaining, ...] = ()


@dataclass(frozen=True, slots=True)
class ThrottleRecord:
    """One configuration of the cluster that a Reassignment changed, with what it was before."""

    resource: str
    name: str
    key: str
    prior: str | None = None
    applied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThrottledLists:
    """Records that topics' lists of throttled replicas may hold entries of a Reassignment; `before` tells which of its
    plan's entries were there before, and so are not its own."""

    topics: int
    before: str | None = None


@dataclass(frozen=True, slots=True)
class RollbackStatus:
    available: bool | None = None
    config_maps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReassignmentStatus:
    observed_generation: int | None = None
    phase: Phase | None = None
    plan: PlanStatus | None = None
    progress: Progress | None = None
    throttle: tuple[ThrottleRecord, ...] = ()
    throttled_lists: ThrottledLists | None = None
    rollback: RollbackStatus | None = None
    waiting_for: tuple[str, ...] = ()
    started_at: str | None = None
    finished_at: str | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def holds_throttles(self) -> bool:
        """Whether there may be throttles to put back."""
        return bool(self.throttle) or self.throttled_lists is not None


@dataclass(frozen=True, slots=True)
class Reassignment:
    """`unread`: its spec cannot be read as a whole. It holds what it holds; nothing is started, stopped or written."""

    meta: Meta
    spec: ReassignmentSpec
    status: ReassignmentStatus = field(default_factory=ReassignmentStatus)
    unread: bool = False

    @property
    def key(self) -> Key:
        return self.meta.key

    @property
    def cluster(self) -> Key:
        return Key(self.meta.namespace, self.spec.cluster_ref.name)

    @property
    def stopped(self) -> bool:
        """Whether a person has ended it, or wants it rolled back: then nobody else starts another one."""
        return self.status.phase in STOPPED or self.spec.rollback

    @property
    def under_way(self) -> bool:
        """Whether it may hold partitions or throttles."""
        status = self.status
        return status.holds_throttles or (status.started_at is not None and status.phase not in (*ENDS, Phase.STALE))


def read_reassignment(body: Mapping[str, Any]) -> Reassignment:
    meta, spec = read_meta(body), read(ReassignmentSpec, body.get("spec"), "spec")
    if spec.expires_at is not None and not is_time(spec.expires_at):
        # The API server accepts a year 0, and offsets of many days. One such object would stop the others.
        if not meta.deleting:
            raise FieldError(f"spec.expiresAt: {spec.expires_at!r} is no time")
        spec = replace(spec, expires_at=None)  # it ends anyway
    return Reassignment(meta, spec, read(ReassignmentStatus, body.get("status") or {}, "status"))


def read_held(body: Mapping[str, Any]) -> Reassignment:
    """One that cannot be read, without the fields that are to blame: what it holds stays its own."""
    given, readable = body.get("spec"), dict[str, Any]()
    spec: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    for name, value in spec.items():
        with suppress(FieldError):
            read(ReassignmentSpec, {"clusterRef": spec.get("clusterRef"), name: value}, "spec")
            readable[name] = value
    found = read(ReassignmentSpec, readable, "spec")
    if found.expires_at is not None and not is_time(found.expires_at):
        found = replace(found, expires_at=None)
    status = read(ReassignmentStatus, body.get("status") or {}, "status")
    return Reassignment(read_meta(body), found, status, unread=True)
