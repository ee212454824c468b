"""Goal: bring bytes out per broker inside a band by leadership, and bytes in by moving small, busy replicas. PURE."""

from __future__ import annotations

import math

import numpy as np

from ballast_planner.goals.leaders import level_leaderships
from ballast_planner.model import Floats, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "traffic"
MAX_MOVES_PER_BROKER = 64


def improve(bench: Workbench, options: PlanOptions) -> None:
    partitions = bench.load.partitions
    if not options.level_traffic:
        return
    if partitions.bytes_in.any() and options.across_brokers:
        _level_bytes_in(bench, options.band)
    out = partitions.bytes_out
    if out.any():
        # A share that is a hundredth of a broker's load is not worth a change of leaders.
        level_leaderships(bench, out, options, least=0.01 * float(out.sum()) / bench.load.brokers.ids.size)


def _level_bytes_in(bench: Workbench, band: float) -> None:
    rate = bench.load.partitions.bytes_in[bench.load.replicas.partition]
    receiving = np.zeros(bench.load.brokers.ids.size, dtype=np.bool_)
    receiving[bench.owner[bench.levels.open]] = True
    load = np.bincount(bench.broker, weights=rate, minlength=receiving.size).astype(np.float64)
    if receiving.sum() < 2:
        return
    upper = float(load[receiving].mean()) * (1 + band)
    budget = np.where(receiving, MAX_MOVES_PER_BROKER, 0)
    while True:
        over = np.where(budget > 0, load - upper, -math.inf)
        broker = int(np.argmax(over))
        if over[broker] <= 0:
            return
        budget[broker] = budget[broker] - 1 if _move_busiest(bench, broker, load, rate, upper) else 0


def _move_busiest(bench: Workbench, broker: int, load: Floats, rate: Floats, upper: float) -> bool:
    """Move the replica with most traffic per byte that fits in the excess to the quietest broker with room."""
    here = np.flatnonzero(bench.movable & (bench.broker == broker) & (rate > 0) & (rate <= 2 * (load[broker] - upper)))
    order = here[np.argsort(-rate[here] / np.maximum(bench.size[here], 1), kind="stable")][:MAX_MOVES_PER_BROKER]
    for replica in order:
        if bench.size[replica] > bench.spare(int(bench.directory[replica])):
            continue
        for target in _quiet_directories(bench, broker, load, float(rate[replica]), upper):
            fits = bench.size[replica] <= bench.room(int(target))
            if fits and bench.may_go(np.array([replica]), int(bench.owner[target]))[0]:
                load[broker] -= rate[replica]
                load[bench.owner[target]] += rate[replica]
                bench.move(int(replica), int(target))
                return True
    return False


def _quiet_directories(bench: Workbench, broker: int, load: Floats, rate: float, upper: float) -> Ints:
    quiet = np.flatnonzero(bench.levels.open & (load[bench.owner] + rate <= upper) & (bench.owner != broker))
    return quiet[np.lexsort((bench.fill()[quiet], load[bench.owner[quiet]]))][:16]
