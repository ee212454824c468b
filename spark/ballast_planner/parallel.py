"""Splits the levelling inside brokers into one task per broker, so that the tasks can run in parallel (REB-06).

A `BrokerTask` is all that is needed to level one broker; it is plain arrays and can be sent to another process.
`solve_task` returns moves in cluster-wide indexes. PURE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_planner.exact import score_of, solve_exactly
from ballast_planner.goals import directories
from ballast_planner.levels import Levels
from ballast_planner.model import (
    Bools,
    Brokers,
    ClusterLoad,
    Directories,
    Ints,
    Partitions,
    Replicas,
)
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

Moves = list[tuple[int, int]]
SolveTasks = Callable[[Sequence["BrokerTask"], PlanOptions], Moves]


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """One broker: its replicas and directories, with their cluster-wide indexes."""

    broker: int
    level: float
    band: float
    directory: Ints
    total: Ints
    used: Ints
    upper: Ints
    lower: Ints
    mark: Ints
    counts: Bools
    open: Bools
    replica: Ints
    size: Ints
    home: Ints
    preferred_leader: Bools


def broker_tasks(bench: Workbench) -> list[BrokerTask]:
    """Brokers with a directory out of its band and more than one directory."""
    levels = bench.levels
    out = levels.counts & ((bench.used > levels.upper) | (levels.open & (bench.used < levels.lower)))
    tasks = []
    for broker, own in enumerate(bench.directories_of):
        if own.size > 1 and out[own].any():
            replicas = np.flatnonzero(bench.movable & (bench.broker == broker) & (bench.directory >= 0))
            tasks.append(
                BrokerTask(
                    broker=broker,
                    level=levels.level,
                    band=levels.band,
                    directory=own,
                    total=bench.total[own],
                    used=bench.used[own],
                    upper=levels.upper[own],
                    lower=levels.lower[own],
                    mark=levels.mark[own],
                    counts=levels.counts[own],
                    open=levels.open[own],
                    replica=replicas,
                    size=bench.size[replicas],
                    home=bench.directory[replicas],
                    preferred_leader=bench.preferred_leader[replicas],
                )
            )
    return tasks


def solve_task(task: BrokerTask, options: PlanOptions) -> Moves:
    """(replica, directory) moves that level this broker's disks; exact when the broker is small."""
    bench = _bench(task)
    directories.level_directories(bench, np.arange(task.directory.size))
    directories.swap_directories(bench, np.arange(task.directory.size))
    exact = solve_exactly(_bench(task), score_of(bench, bench.levels), options)
    if exact is not None:
        other = _bench(task)
        for replica, target in exact:
            other.move(replica, target)
        bench = other if score_of(other, other.levels).better_than(score_of(bench, bench.levels)) else bench
    return [(int(task.replica[moved]), int(task.directory[bench.directory[moved]])) for moved in bench.moved]


def _bench(task: BrokerTask) -> Workbench:
    count, size = task.directory.size, task.replica.size
    nothing, home = np.zeros(size), np.searchsorted(task.directory, task.home)
    load = ClusterLoad(
        brokers=Brokers(np.array([task.broker]), (None,), np.ones(1, np.bool_), np.zeros(1, np.bool_)),
        directories=Directories(
            np.zeros(count, np.int64), tuple(map(str, range(count))), task.total, task.used, ~task.open, task.counts
        ),
        topics=("",),
        partitions=Partitions(np.zeros(size, np.int64), np.arange(size), np.arange(size + 1), nothing, nothing),
        replicas=Replicas(np.arange(size), np.zeros(size, np.int64), home, task.size, task.preferred_leader),
    )
    levels = Levels(task.level, task.band, task.counts, task.open, task.upper, task.lower, task.mark)
    bench = Workbench(load, levels, np.ones(size, dtype=np.bool_))
    bench.preferred_leader = task.preferred_leader.copy()
    return bench
