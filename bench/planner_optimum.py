"""Finds the true optimum of a small cluster, to measure plans against: the planner's problem, formulated anew.

Nothing of the planner's solver is used: every replica's place is a variable, and HiGHS may take its time; its budget is
counted in nodes, so that other load on the machine does not decide what is proven. Three stages, each holding what the
one before reached: least distance from the band, fewest bytes over the network, fewest bytes between disks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from ballast_planner import ClusterLoad, Plan, PlanOptions
from ballast_planner.balance import movable_replicas
from ballast_planner.levels import Levels, find_levels

STAGE_NODES = 2_000
GAP = 5e-4
DISTANCE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Optimum:
    """`distance`: how far directories are out of the band, as shares of their capacity; `proven`: to HiGHS's gap."""

    distance: float
    network: int
    disk: int
    proven: bool

    def reached_by(self, plan: Plan, distance: float, tolerance: float) -> bool:
        """Whether a plan is as good, within this tolerance."""
        assert plan.quality is not None
        network, disk = plan.quality.bytes_network, plan.quality.bytes_disk
        near = self.is_as_near(distance, tolerance)
        return near and network <= self.network * (1 + tolerance) and network + disk <= self.total * (1 + tolerance)

    def is_as_near(self, distance: float, tolerance: float) -> bool:
        """Whether no placement is nearer to the band, within this tolerance."""
        return distance <= self.distance * (1 + tolerance) + DISTANCE_TOLERANCE

    @property
    def total(self) -> int:
        return self.network + self.disk


def find_optimum(load: ClusterLoad, options: PlanOptions) -> Optimum:
    return _Question(load, options).answer()


def distance_after(load: ClusterLoad, options: PlanOptions, plan: Plan) -> float:
    """How far a plan's outcome lies out of the band, counted from its moves."""
    levels = find_levels(load, options.band, options.high_water, movable_replicas(load, options))
    index, used = load.directory_index(), load.directories.used.astype(np.float64)
    sizes = _sizes(load)
    for move in plan.moves:
        for placement, sign in ((move.from_, -1), (move.to, 1)):
            for place in placement.as_pairs().items():
                used[index[place]] += sign * sizes[move.topic, move.partition]
    over = np.where(levels.counts, np.maximum(used - levels.upper, 0), 0)
    under = np.where(levels.open, np.maximum(levels.lower - used, 0), 0)
    return float(((over + under) / load.directories.total).sum())


def _sizes(load: ClusterLoad) -> dict[tuple[str, int], int]:
    first = load.partitions.first
    return {load.partition_name(p): int(load.replicas.size[first[p]]) for p in range(load.partitions.topic.size)}


class _Question:
    def __init__(self, load: ClusterLoad, options: PlanOptions) -> None:
        assert (load.brokers.rack_numbers() < 0).all(), "clusters with racks are not asked about"
        self.load = load
        movable = movable_replicas(load, options)
        self.levels: Levels = find_levels(load, options.band, options.high_water, movable)
        self.unit = float(load.directories.total.mean())
        self.owner = load.directories.broker
        self.targets = [int(d) for d in np.flatnonzero(self.levels.open)]
        self.movable = [int(r) for r in np.flatnonzero(movable)]
        self.proven = True
        self.solver: Any = None
        self.columns: dict[tuple[int, int], int] = {}

    def answer(self) -> Optimum:
        distance = self._stage(None, None, "distance")
        network = self._stage(distance, None, "network")
        disk = self._stage(distance, network, "disk")
        return Optimum(distance, round(network * self.unit), round(disk * self.unit), self.proven)

    def _stage(self, distance: float | None, network: float | None, goal: str) -> float:
        self._build()
        solver = self.solver
        if distance is not None:
            self._limit(self.slacks, distance + DISTANCE_TOLERANCE / 10)
        if network is not None:
            self._limit(self._bytes(crossing=True), network * (1 + GAP) + 1e-9)
        wanted = {"distance": self.slacks, "network": self._bytes(True), "disk": self._bytes(False)}[goal]
        for column, weight in wanted.items():
            solver.changeColCost(column, weight)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self.proven = False
        return float(solver.getInfo().objective_function_value)

    def _build(self) -> None:
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call] # the library has half of its types
        self.solver = solver
        options = {"output_flag": False, "threads": 1, "mip_max_nodes": STAGE_NODES, "mip_rel_gap": GAP}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        self.columns = {}
        for replica in self.movable:
            for directory in self._allowed(replica):
                column = solver.getNumCol()
                solver.addVar(0.0, 1.0)
                solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
                self.columns[replica, directory] = column
        self._add_slacks()
        self._one_place_each()
        self._one_per_broker()
        self._bands()

    def _allowed(self, replica: int) -> list[int]:
        """Where it is, and every open directory of a broker that has no other replica of its partition.

        Taking the place of one that leaves would gain nothing: replicas of a partition are alike.
        """
        replicas = self.load.replicas
        first = self.load.partitions.first
        partition = int(replicas.partition[replica])
        siblings = {int(replicas.broker[r]) for r in range(int(first[partition]), int(first[partition + 1]))}
        siblings.discard(int(replicas.broker[replica]))
        here = int(replicas.directory[replica])
        return sorted({here, *(d for d in self.targets if int(self.owner[d]) not in siblings)})

    def _add_slacks(self) -> None:
        self.slacks: dict[int, float] = {}
        self.slack_of: dict[tuple[int, int], int] = {}
        for directory in np.flatnonzero(self.levels.counts).tolist():
            for side in (-1, 1):
                column = self.solver.getNumCol()
                self.solver.addVar(0.0, np.inf)
                self.slacks[column] = self.unit / float(self.load.directories.total[directory])
                self.slack_of[int(directory), side] = column

    def _one_place_each(self) -> None:
        for replica in self.movable:
            self._row(1.0, 1.0, {self.columns[replica, d]: 1.0 for d in self._allowed(replica)})

    def _one_per_broker(self) -> None:
        groups: dict[tuple[int, int], dict[int, float]] = {}
        for (replica, directory), column in self.columns.items():
            if self.owner[directory] != self.load.replicas.broker[replica]:
                key = int(self.load.replicas.partition[replica]), int(self.owner[directory])
                groups.setdefault(key, {})[column] = 1.0
        for group in groups.values():
            self._row(-np.inf, 1.0, group)

    def _bands(self) -> None:
        rows: dict[int, dict[int, float]] = {}
        moving = np.zeros(self.owner.size)
        for replica in self.movable:
            moving[self.load.replicas.directory[replica]] += self.load.replicas.size[replica]
        for (replica, directory), column in self.columns.items():
            rows.setdefault(directory, {})[column] = float(self.load.replicas.size[replica]) / self.unit
        for (directory, side), column in self.slack_of.items():
            rows.setdefault(directory, {})[column] = -float(side)
        for directory in np.flatnonzero(self.levels.counts).tolist():
            fixed = float(self.load.directories.used[directory]) - float(moving[directory])
            low = (float(self.levels.lower[directory]) - fixed) / self.unit if self.levels.open[directory] else -np.inf
            high = (float(self.levels.upper[directory]) - fixed) / self.unit
            self._row(low, high, rows[directory])

    def _bytes(self, crossing: bool) -> dict[int, float]:
        found = {}
        for (replica, directory), column in self.columns.items():
            crosses = self.owner[directory] != self.load.replicas.broker[replica]
            if directory != self.load.replicas.directory[replica] and crosses == crossing:
                found[column] = float(self.load.replicas.size[replica]) / self.unit
        return found

    def _limit(self, weights: dict[int, float], at_most: float) -> None:
        self._row(-np.inf, at_most, weights)

    def _row(self, low: float, high: float, weights: dict[int, float]) -> None:
        columns = np.array(list(weights), dtype=np.int32)
        self.solver.addRow(low, high, columns.size, columns, np.array(list(weights.values())))
