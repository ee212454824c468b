"""Goal: bring every broker's bytes inside the sum of its directories' bands, with the least network traffic.

Bytes leave the directory that is furthest above its band and arrive in the least full one, so that a move between
brokers also levels the disks at both ends. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.model import Bools, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.transfers import transfer
from ballast_planner.workbench import Workbench

NAME = "brokers"
TRIED_DIRECTORIES = 24
PACKING_SLACK = 0.003


def improve(bench: Workbench, options: PlanOptions) -> None:
    if not options.across_brokers or bench.load.brokers.ids.size < 2:
        return
    upper, lower = bench.per_broker(bench.levels.upper), bench.per_broker(bench.levels.lower)
    capacity = np.maximum(bench.per_broker(np.where(bench.levels.counts, bench.total, 0)), 1)
    # Only a perfect packing could level the disks of a broker that is filled to the last byte of its band.
    slack = ((upper - lower) * PACKING_SLACK).astype(np.int64)
    several = np.array([own.size > 1 for own in bench.directories_of], dtype=np.bool_)
    _lower_the_full(bench, upper - np.where(several, slack, 0), capacity)
    _fill_the_empty(bench, lower + np.where(several, slack, 0), capacity)


def _lower_the_full(bench: Workbench, upper: Ints, capacity: Ints) -> None:
    stuck = np.zeros(upper.size, dtype=np.bool_)
    while True:
        used = bench.per_broker(bench.used)
        over = np.where(stuck, 0, used - upper)
        broker = int(np.argmax(over / capacity))
        if over[broker] <= 0:
            return
        stuck[broker] = not _shed(bench, broker, int(over[broker]), used, upper, capacity)


def _shed(bench: Workbench, broker: int, over: int, used: Ints, upper: Ints, capacity: Ints) -> bool:
    targets = _lowest_targets(bench, broker, used < upper, used, capacity)
    sources = bench.directories_of[broker]
    for source in sources[np.argsort((bench.levels.upper - bench.used)[sources], kind="stable")]:
        excess = bench.excess(int(source))
        need = min(over, excess) if excess > 0 else over
        for target in targets:
            room = min(bench.room(int(target)), int((upper - used)[bench.owner[target]]))
            if transfer(bench, int(source), int(target), need, bench.spare(int(source)), room):
                return True
    return False


def _lowest_targets(bench: Workbench, broker: int, roomy: Bools, used: Ints, capacity: Ints) -> Ints:
    open_ = bench.levels.open & (bench.used < bench.levels.upper) & roomy[bench.owner] & (bench.owner != broker)
    targets = np.flatnonzero(open_)
    saving = (_inner_need(bench) < 0)[bench.owner[targets]] & (bench.used < bench.levels.lower)[targets]
    order = np.lexsort((bench.fill()[targets], (used / capacity)[bench.owner[targets]], ~saving))
    return targets[order[:TRIED_DIRECTORIES]]


def _fill_the_empty(bench: Workbench, lower: Ints, capacity: Ints) -> None:
    stuck = np.zeros(lower.size, dtype=np.bool_)
    while True:
        used = bench.per_broker(bench.used)
        under = np.where(stuck, 0, lower - used)
        broker = int(np.argmax(under / capacity))
        if under[broker] <= 0:
            return
        stuck[broker] = not _receive(bench, broker, used, lower, capacity)


def _receive(bench: Workbench, broker: int, used: Ints, lower: Ints, capacity: Ints) -> bool:
    sources = _highest_sources(bench, broker, used > lower, used, capacity)
    targets = bench.directories_of[broker]
    for target in targets[np.argsort((bench.used - bench.levels.lower)[targets], kind="stable")]:
        need = int(bench.levels.lower[target] - bench.used[target])
        if need <= 0:
            return False
        for source in sources:
            spare = min(bench.spare(int(source)), int((used - lower)[bench.owner[source]]))
            if transfer(bench, int(source), int(target), need, spare, bench.room(int(target))):
                return True
    return False


def _highest_sources(bench: Workbench, broker: int, rich: Bools, used: Ints, capacity: Ints) -> Ints:
    giving = bench.levels.counts & (bench.used > bench.levels.lower) & rich[bench.owner] & (bench.owner != broker)
    sources = np.flatnonzero(giving)
    saving = (_inner_need(bench) > 0)[bench.owner[sources]] & (bench.used > bench.levels.upper)[sources]
    order = np.lexsort((-bench.fill()[sources], -(used / capacity)[bench.owner[sources]], ~saving))
    return sources[order[:TRIED_DIRECTORIES]]


def _inner_need(bench: Workbench) -> Ints:
    """Per broker: bytes over its directories' bands minus bytes under them.

    If negative, a byte that arrives saves one that would have moved between the broker's disks; if positive, a byte
    that leaves does.
    """
    levels = bench.levels
    excess = np.where(levels.counts, np.maximum(bench.used - levels.upper, 0), 0)
    deficit = np.where(levels.open, np.maximum(levels.lower - bench.used, 0), 0)
    return bench.per_broker(excess - deficit)
