"""Goal: bring every directory inside its band by moves between the directories of one broker.

Brokers are independent of each other here, so this goal can be solved in parallel. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.model import Ints
from ballast_planner.options import PlanOptions
from ballast_planner.transfers import first_transfer, swap
from ballast_planner.workbench import Workbench

NAME = "directories"
MAX_SWAPS = 64


def improve(bench: Workbench, options: PlanOptions) -> None:
    if not options.within_brokers:
        return
    for directories in bench.directories_of:
        level_directories(bench, directories)


def level_directories(bench: Workbench, directories: Ints) -> None:
    """Level these directories of one broker among themselves."""
    if directories.size < 2:
        return
    _lower_the_full(bench, directories)
    _fill_the_empty(bench, directories)


def swap_directories(bench: Workbench, directories: Ints) -> None:
    """Exchange larger replicas for smaller ones, where single transfers no longer help."""
    for directory in directories[np.argsort(-bench.fill()[directories], kind="stable")]:
        _swap_down(bench, int(directory), directories)
    for directory in directories[np.argsort(bench.fill()[directories], kind="stable")]:
        _swap_up(bench, int(directory), directories)


def _lower_the_full(bench: Workbench, directories: Ints) -> None:
    stuck: set[int] = set()
    while True:
        over = [d for d in map(int, directories) if bench.excess(d) > 0 and d not in stuck and bench.levels.counts[d]]
        if not over:
            return
        source = max(over, key=lambda d: (bench.excess(d) / bench.total[d], -d))
        if not first_transfer(bench, source, _by_fill(bench, directories, source), bench.excess(source)):
            stuck.add(source)


def _fill_the_empty(bench: Workbench, directories: Ints) -> None:
    stuck: set[int] = set()
    while True:
        under = [d for d in map(int, directories) if bench.spare(d) < 0 and d not in stuck and bench.levels.open[d]]
        if not under:
            return
        target = min(under, key=lambda d: (bench.spare(d) / bench.total[d], d))
        sources = _by_fill(bench, directories, target)[::-1]
        if not any(first_transfer(bench, int(source), (target,), -bench.spare(target)) for source in sources):
            stuck.add(target)


def _by_fill(bench: Workbench, directories: Ints, without: int) -> Ints:
    others = directories[(directories != without) & bench.levels.counts[directories]]
    ordered: Ints = others[np.argsort(bench.fill()[others], kind="stable")]
    return ordered


def _swap_down(bench: Workbench, source: int, directories: Ints) -> None:
    for _ in range(MAX_SWAPS):
        need = bench.excess(source)
        targets = _by_fill(bench, directories, source)
        if need <= 0 or not any(
            swap(bench, source, int(t), need, min(bench.room(int(t)), bench.spare(source))) for t in targets
        ):
            return


def _swap_up(bench: Workbench, target: int, directories: Ints) -> None:
    for _ in range(MAX_SWAPS):
        need = -bench.spare(target)
        sources = _by_fill(bench, directories, target)[::-1]
        if need <= 0 or not any(
            swap(bench, int(s), target, need, min(bench.room(target), bench.spare(int(s)))) for s in sources
        ):
            return
