"""The planner's output: moves in waves, the plan's quality, and the bounds that no plan can beat.

A plan's identity is the SHA-256 of its canonical JSON: the `from`, `to` and wave of every move, and nothing that
varies from run to run (sizes, times, throttles). PURE.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

ANY_DIRECTORY = "any"


class PlanFormatError(ValueError):
    """A plan that was handed in is malformed."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a partition's replicas are: brokers in order of preference, and the directory of each (or `any`)."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.replicas) != len(self.log_dirs):
            raise PlanFormatError(f"{len(self.replicas)} replicas but {len(self.log_dirs)} log_dirs")

    def as_pairs(self) -> dict[int, str]:
        return dict(zip(self.replicas, self.log_dirs, strict=True))


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's change of placement. Moves of one wave may run together; waves run one after another."""

    topic: str
    partition: int
    from_: Placement
    to: Placement
    bytes_network: int
    bytes_disk: int
    wave: int = 0

    @property
    def changes_leader(self) -> bool:
        return self.from_.replicas[:1] != self.to.replicas[:1]


class Target(NamedTuple):
    """A requested row; `from_` and `wave` are None unless the row gives them."""

    topic: str
    partition: int
    to: Placement
    from_: Placement | None = None
    wave: int | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill levels of all directories that are levelled, as fractions of their capacity."""

    highest: float
    lowest: float
    spread: float
    coefficient_of_variation: float
    out_of_band: int


@dataclass(frozen=True, slots=True)
class Quality:
    """`on_more_racks`: how many partitions the plan spreads over more racks than before.

    For a plan that was cut off at `max_moves`: how many partitions are left `to_follow` in later plans, and the fill
    levels that all of these plans together `aim` at.
    """

    before: Fill
    after: Fill
    bytes_network: int
    bytes_disk: int
    partitions: int
    replica_moves: int
    leader_changes: int
    highest_transient: float
    waves: int
    expected_seconds: float | None = None
    on_more_racks: int = 0
    to_follow: int = 0
    aim: Fill | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no plan can beat. `bytes_total` holds for plans that send no more over the network than they must."""

    highest_fill: float
    bytes_network: int
    bytes_total: int
    level: float
    band_low: float
    band_high: float


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A replica that could not be moved, or created (then `broker` is None), and why."""

    topic: str
    partition: int
    broker: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    moves: tuple[Move, ...]
    quality: Quality | None = None
    bounds: Bounds | None = None
    unplaced: tuple[Unplaced, ...] = field(default=())

    def inverse(self) -> tuple[Move, ...]:
        """The moves that put everything back, last wave first."""
        last = max((move.wave for move in self.moves), default=0)
        return tuple(
            Move(m.topic, m.partition, m.to, m.from_, m.bytes_network, m.bytes_disk, last - m.wave) for m in self.moves
        )


def canonical_json(moves: Sequence[Move]) -> str:
    """The canonical text of a set of moves and waves, independent of the order they are given in (OPR-32)."""
    rows = [
        {
            "from": _placement_dict(move.from_),
            "partition": move.partition,
            "to": _placement_dict(move.to),
            "topic": move.topic,
            "wave": move.wave,
        }
        for move in sorted(moves, key=lambda move: (move.wave, move.topic, move.partition))
    ]
    return json.dumps({"moves": rows, "version": 1}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def plan_hash(plan: Plan | Sequence[Move]) -> str:
    """The SHA-256 of the canonical JSON, in hexadecimal."""
    moves = plan.moves if isinstance(plan, Plan) else plan
    return hashlib.sha256(canonical_json(moves).encode()).hexdigest()


def to_kafka_json(moves: Sequence[Move]) -> str:
    """Kafka's own reassignment JSON, as kafka-reassign-partitions takes it."""
    return json.dumps(
        {
            "version": 1,
            "partitions": [
                {
                    "topic": move.topic,
                    "partition": move.partition,
                    "replicas": list(move.to.replicas),
                    "log_dirs": list(move.to.log_dirs),
                }
                for move in moves
            ],
        }
    )


def rows_from_kafka_json(text: str) -> tuple[Target, ...]:
    """Kafka's reassignment JSON as rows; without log_dirs all are `any` (DIR-10)."""
    document = _object(text)
    if document.get("version", 1) != 1:
        raise PlanFormatError(f"reassignment JSON of version {document.get('version')} is not known, only 1")
    rows = document.get("partitions")
    if not isinstance(rows, list):
        raise PlanFormatError("reassignment JSON has no list `partitions`")
    return tuple(_target_row(row, "log_dirs") for row in rows)


def spec_rows(moves: Sequence[Move]) -> list[dict[str, Any]]:
    """Moves as rows of a Reassignment's `spec.partitions`, with `from` and `wave`, so that exactly this plan runs."""
    return [
        {"topic": move.topic, "partition": move.partition}
        | _placement_dict(move.to)
        | {"from": _placement_dict(move.from_), "wave": move.wave}
        for move in moves
    ]


def rows_from_spec(partitions: Sequence[Mapping[str, Any]]) -> tuple[Target, ...]:
    """The rows of a Reassignment's `spec.partitions`."""
    return tuple(_target_row(row, "logDirs") for row in partitions)


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """A summary for people and logs: all but the moves themselves."""
    return {
        "hash": plan_hash(plan),
        "partitions": len(plan.moves),
        "quality": asdict(plan.quality) if plan.quality else None,
        "bounds": asdict(plan.bounds) if plan.bounds else None,
        "unplaced": [asdict(item) for item in plan.unplaced],
    }


def _target_row(row: Any, directories_key: str) -> Target:
    if not isinstance(row, Mapping):
        raise PlanFormatError("a row of the plan is not an object")
    try:
        topic, partition = str(row["topic"]), int(row["partition"])
        wave = int(row["wave"]) if row.get("wave") is not None else None
    except (KeyError, TypeError, ValueError) as error:
        raise PlanFormatError(f"a row of the plan lacks or misspells a field: {error}") from error
    label = f"{topic}-{partition}"
    before = row.get("from")
    from_ = _target_placement(before, directories_key, label) if before is not None else None
    return Target(topic, partition, _target_placement(row, directories_key, label), from_, wave)


def _target_placement(row: Any, directories_key: str, label: str) -> Placement:
    try:
        replicas = tuple(int(broker) for broker in row["replicas"])
    except (KeyError, TypeError, ValueError) as error:
        raise PlanFormatError(f"{label}: no list of replicas") from error
    if not replicas or len(set(replicas)) != len(replicas):
        raise PlanFormatError(f"{label}: replicas are empty or name a broker twice")
    log_dirs = tuple(str(path) for path in row.get(directories_key) or [ANY_DIRECTORY] * len(replicas))
    if len(log_dirs) != len(replicas):
        raise PlanFormatError(
            f"{label}: {len(log_dirs)} {directories_key} for {len(replicas)} replicas; they must be as many"
        )
    for path in log_dirs:
        if path != ANY_DIRECTORY and not path.startswith("/"):
            raise PlanFormatError(f"{label}: {path!r} is neither an absolute path nor `any`")
    return Placement(replicas, log_dirs)


def _placement_dict(placement: Placement) -> dict[str, list[Any]]:
    return {"logDirs": list(placement.log_dirs), "replicas": list(placement.replicas)}


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanFormatError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PlanFormatError("the plan is not a JSON object")
    return document
