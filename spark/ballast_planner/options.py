"""The options of the planner. PURE."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Bounds and preferences of one planning run.

    band: how far a directory's (or broker's) fill may lie from the cluster's level, relative to that level.
    high_water: the fraction of its capacity that a directory must never pass, copies in flight included.
    max_moves: the most partitions that a plan moves; those with the most gain per byte are kept.
    exact_binaries: the most 0/1 variables for which the exact solver is used (0: never).
    exact_nodes: its node budget at that many variables; smaller problems get proportionally more.
    """

    band: float = 0.10
    high_water: float = 0.95
    max_moves: int | None = None
    min_size_bytes: int = 1
    excluded_topics: frozenset[str] = frozenset()
    across_brokers: bool = True
    within_brokers: bool = True
    repair_racks: bool = True
    move_giants: bool = True
    level_leaders: bool = True
    level_traffic: bool = True
    exact_binaries: int = 2_000
    exact_nodes: int = 100
    inter_broker_bytes_per_second: int | None = None
    intra_broker_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.band < 1:
            raise ValueError(f"band must lie between 0 and 1, not {self.band}")
        if not 0 < self.high_water <= 1:
            raise ValueError(f"high_water must lie above 0 and at most at 1, not {self.high_water}")
        if self.max_moves is not None and self.max_moves < 1:
            raise ValueError("max_moves must be at least 1")
