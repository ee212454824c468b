"""Solves small clusters exactly, by mixed-integer programming (HiGHS).

Variables: x[r, d] = 1 if replica r goes to directory d. Solved in stages, each holding what the one before reached:
least distance from the band, fewest bytes over the network, fewest bytes between disks. The budget is counted in
nodes, with one thread and one seed, so that the same input gives the same plan; where it does not suffice, what the
goals found stands. PURE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ballast_planner.levels import Levels
from ballast_planner.model import Bools, Floats, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

RELATIVE_GAP = 1e-4
# The share of network bytes that may be added because it can save far more between disks.
NETWORK_TOLERANCE = 1e-3
MOVE_COST = 1e-7


@dataclass(frozen=True, slots=True)
class Score:
    """How a placement is judged, most important first; smaller is better."""

    out_of_band: float
    network: int
    disk: int
    moves: int

    def better_than(self, other: Score) -> bool:
        if abs(self.out_of_band - other.out_of_band) > 1e-9:
            return self.out_of_band < other.out_of_band
        if abs(self.network - other.network) > NETWORK_TOLERANCE * max(self.network, other.network):
            return self.network < other.network
        # Equal on the network, within the tolerance that the program may spend there to save more between disks.
        return (self.network + self.disk, self.moves) < (other.network + other.disk, other.moves)


def score_of(bench: Workbench, levels: Levels) -> Score:
    moved = np.array(bench.moved, dtype=np.int64)
    over = np.where(levels.counts, np.maximum(bench.used - levels.upper, 0), 0) / bench.total
    under = np.where(levels.open, np.maximum(levels.lower - bench.used, 0), 0) / bench.total
    crossed = bench.load.replicas.broker[moved] != bench.broker[moved]
    sizes = bench.size[moved]
    return Score(float(over.sum() + under.sum()), int(sizes[crossed].sum()), int(sizes[~crossed].sum()), moved.size)


def solve_exactly(start: Workbench, found: Score, options: PlanOptions) -> list[tuple[int, int]] | None:
    """(replica, directory) moves from `start` that beat `found`, or None; also None where HiGHS is not installed."""
    binaries = int(np.count_nonzero(start.movable)) * int(np.count_nonzero(start.levels.open))
    if not binaries or binaries > options.exact_binaries or (found.network == 0 == found.disk):
        return None
    try:
        import highspy
    except ImportError:
        return None
    local = found.network == 0 or not options.across_brokers
    pairs = _pairs(start, local)
    if not pairs[0].size:
        return None
    return _Program(highspy, start, pairs, options).solve(found)


def _pairs(bench: Workbench, local: bool) -> tuple[Ints, Ints]:
    """All (replica, directory) moves that the rules allow when each is made alone."""
    replicas, directories = [], []
    movable = np.flatnonzero(bench.movable & (bench.directory >= 0))
    for target in np.flatnonzero(bench.levels.open):
        broker = int(bench.owner[target])
        same = bench.broker[movable] == broker
        allowed = same if local else same | bench.may_go(movable, broker)
        chosen = movable[allowed & (bench.directory[movable] != target)]
        replicas.append(chosen)
        directories.append(np.full(chosen.size, target, dtype=np.int64))
    return np.concatenate(replicas), np.concatenate(directories)


class _Program:
    """One mixed-integer program; sizes are scaled to the mean capacity."""

    def __init__(self, highspy: Any, bench: Workbench, pairs: tuple[Ints, Ints], options: PlanOptions) -> None:
        self.highspy, self.bench, self.options = highspy, bench, options
        self.replica, self.target = pairs
        self.scale = float(bench.total.mean())
        self.size: Floats = bench.size[self.replica] / self.scale
        self.source: Ints = bench.directory[self.replica]
        self.crossing: Bools = bench.owner[self.source] != bench.owner[self.target]
        self.count = self.replica.size
        self.directories = np.flatnonzero(bench.levels.counts)

    def solve(self, found: Score) -> list[tuple[int, int]] | None:
        reach = found.out_of_band
        reached: Floats | None = None  # each stage starts from the solution of the one before
        if reach > 1e-9:
            first = self._run(np.zeros(self.count), slack=True)
            if first is None:
                return None
            if first[1] <= reach:
                reached, reach = first
        slack = reach + 1e-9 if reach > 1e-9 else None
        network_limit: float | None = None
        if self.crossing.any():
            cost = np.where(self.crossing, self.size, 0.0)
            answer = self._run(cost, slack=slack is not None, slack_limit=slack, start=reached)
            if answer is None:
                return None
            reached = answer[0]
            network = float(reached[: self.count][self.crossing] @ self.size[self.crossing])
            network_limit = network * (1 + NETWORK_TOLERANCE) + 1e-9
        cost = np.where(self.crossing, 0.0, self.size)
        answer = self._run(cost, slack is not None, slack_limit=slack, network_limit=network_limit, start=reached)
        if answer is None:
            return None
        chosen = np.flatnonzero(answer[0][: self.count] > 0.5)
        return [(int(self.replica[index]), int(self.target[index])) for index in chosen]

    def _run(
        self,
        cost: Floats,
        slack: bool,
        slack_limit: float | None = None,
        network_limit: float | None = None,
        start: Floats | None = None,
    ) -> tuple[Floats, float] | None:
        """The best solution (x, then the slacks) and its distance from the band, or None."""
        solver = self._solver()
        minimise_slack = slack and slack_limit is None
        for index in range(self.count):
            solver.addVar(0.0, 1.0)
            solver.changeColIntegrality(index, self.highspy.HighsVarType.kInteger)
            solver.changeColCost(index, 0.0 if minimise_slack else float(cost[index]) + MOVE_COST)
        slacks = self._add_slacks(solver, minimise_slack) if slack else {}
        self._add_band_rows(solver, slacks)
        self._add_choice_rows(solver)
        if slack_limit is not None:
            columns = np.array(sorted(slacks.values()), dtype=np.int32)
            weights = self._slack_weights(slacks)
            solver.addRow(-np.inf, slack_limit, columns.size, columns, weights)
        if network_limit is not None:
            columns = np.flatnonzero(self.crossing).astype(np.int32)
            solver.addRow(-np.inf, network_limit, columns.size, columns, self.size[columns])
        if start is not None:
            known = self.highspy.HighsSolution()
            known.col_value = list(start[: self.count + len(slacks)])
            solver.setSolution(known)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != int(self.highspy.SolutionStatus.kSolutionStatusFeasible):
            return None
        values = np.array(solver.getSolution().col_value, dtype=np.float64)
        if not slacks:
            return values, 0.0
        columns = np.array(sorted(slacks.values()), dtype=np.int64)
        return values, float(values[columns] @ self._slack_weights(slacks))

    def _solver(self) -> Any:
        solver = self.highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 0),
            ("mip_max_nodes", self.options.exact_nodes * self.options.exact_binaries // self.count),
            ("mip_rel_gap", RELATIVE_GAP),
        ):
            solver.setOptionValue(name, value)
        return solver

    def _add_slacks(self, solver: Any, minimise: bool) -> dict[tuple[int, int], int]:
        """Add a column per directory for its deficit (-1) and its excess (+1); returns their numbers."""
        slacks: dict[tuple[int, int], int] = {}
        for directory in self.directories:
            for side in (-1, 1):
                column = self.count + len(slacks)
                solver.addVar(0.0, np.inf)
                weight = self.scale / float(self.bench.total[directory])
                solver.changeColCost(column, weight if minimise else 0.0)
                slacks[int(directory), side] = column
        return slacks

    def _slack_weights(self, slacks: dict[tuple[int, int], int]) -> Floats:
        ordered = sorted(slacks, key=lambda key: slacks[key])
        return np.array([self.scale / float(self.bench.total[directory]) for directory, _ in ordered])

    def _add_band_rows(self, solver: Any, slacks: dict[tuple[int, int], int]) -> None:
        levels = self.bench.levels
        for directory in self.directories:
            arriving = np.flatnonzero(self.target == directory)
            leaving = np.flatnonzero(self.source == directory)
            columns = np.concatenate([arriving, leaving])
            values = np.concatenate([self.size[arriving], -self.size[leaving]])
            used = self.bench.used[directory]
            low = (float(levels.lower[directory] - used) if levels.open[directory] else -np.inf) / self.scale
            high = float(levels.upper[directory] - used) / self.scale
            if slacks:
                own = [slacks[int(directory), -1], slacks[int(directory), 1]]
                columns, values = np.append(columns, own), np.append(values, [1.0, -1.0])
            elif not columns.size:
                continue
            solver.addRow(low, high, columns.size, columns.astype(np.int32), values.astype(np.float64))

    def _add_choice_rows(self, solver: Any) -> None:
        """Each replica moves at most once; at most one replica of a partition enters a given broker or rack; and of
        several in one rack not all leave, because each was allowed to leave only thanks to the others."""
        load = self.bench.load
        partition = load.replicas.partition[self.replica]
        broker = self.bench.owner[self.target]
        rack_of = load.brokers.rack_numbers()
        rack, racks = rack_of[broker], int(rack_of.max(initial=0)) + 2
        rows: list[tuple[Ints, Ints]] = [(self.replica, np.ones(self.count, dtype=np.int64))]
        if self.crossing.any():
            one = rows[0][1]
            rows.append((np.where(self.crossing, partition * (broker.max() + 1) + broker, -1), one))
            rows.append((np.where(self.crossing & (rack >= 0), partition * racks + rack, -1), one))
            everywhere = load.replicas.partition * racks + rack_of[self.bench.broker]
            here = everywhere[self.replica]
            living = load.brokers.alive[self.bench.broker]
            together = np.bincount(np.maximum(everywhere, 0), living)[np.maximum(here, 0)].astype(np.int64)
            leaving = (rack >= 0) & (rack != rack_of[self.bench.broker[self.replica]]) & (together > 1)
            rows.append((np.where(leaving, here, -1), together - 1))
        for key, most in rows:
            order = np.argsort(key, kind="stable")
            order = order[key[order] >= 0]
            cuts = np.flatnonzero(np.diff(key[order])) + 1
            for group in np.split(order.astype(np.int32), cuts):
                if group.size > 1:
                    solver.addRow(-np.inf, float(most[group[0]]), group.size, group, np.ones(group.size))
