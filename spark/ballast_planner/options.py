"""What a person may ask of the planner. PURE."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Bounds and preferences of one planning.

    band: how far, relative to the cluster's level, a directory's (or broker's) fill may lie from it.
    high_water: the fraction of a directory that must never be passed, copies in flight included.
    max_moves: at most so many partitions; those with the most gain per byte are kept.
    exact_binaries: up to so many 0/1 unknowns the exact solver is asked (0: never).
    exact_nodes: its budget for so many unknowns; with fewer of them it may look at as many more nodes.
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
