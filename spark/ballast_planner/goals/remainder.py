"""Goal: bring into the band the directories for which moves inside their own broker did not suffice.

First by exchanges inside the broker, which cost no network traffic; where its disks are too few or its replicas too
large, bytes go to other brokers after all, by single transfers first and by exchanges last. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.goals.directories import swap_directories
from ballast_planner.model import Ints
from ballast_planner.options import PlanOptions
from ballast_planner.transfers import first_transfer, swap
from ballast_planner.workbench import Workbench

NAME = "remainder"
TRIED_DIRECTORIES = 32
MAX_STEPS = 256


def improve(bench: Workbench, options: PlanOptions) -> None:
    if options.within_brokers:
        for directories in bench.directories_of:
            if _out_of_band(bench, directories).size and directories.size > 1:
                swap_directories(bench, directories)
    if options.across_brokers and bench.load.brokers.ids.size > 1:
        _across(bench, exchange=False)
        _across(bench, exchange=True)


def _out_of_band(bench: Workbench, directories: Ints) -> Ints:
    used, levels = bench.used[directories], bench.levels
    out = levels.counts[directories] & ((used > levels.upper[directories]) | (used < levels.lower[directories]))
    return directories[out]


def _across(bench: Workbench, exchange: bool) -> None:
    for directory in _out_of_band(bench, np.argsort(-bench.fill(), kind="stable")):
        for _ in range(MAX_STEPS):
            if not _step(bench, int(directory), exchange):
                break


def _step(bench: Workbench, directory: int, exchange: bool) -> bool:
    if bench.excess(directory) > 0:
        need, spare = bench.excess(directory), bench.spare(directory)
        targets = _others(bench, directory, lowest=True)
        if not exchange:
            return first_transfer(bench, directory, targets, need)
        return any(swap(bench, directory, int(t), need, min(bench.room(int(t)), spare)) for t in targets)
    need = -bench.spare(directory)
    if need <= 0 or not bench.levels.open[directory]:
        return False
    sources, room = _others(bench, directory, lowest=False), bench.room(directory)
    if not exchange:
        return any(first_transfer(bench, int(source), (directory,), need) for source in sources)
    return any(swap(bench, int(s), directory, need, min(room, bench.spare(int(s)))) for s in sources)


def _others(bench: Workbench, directory: int, lowest: bool) -> Ints:
    others = np.flatnonzero(bench.levels.counts & (np.arange(bench.used.size) != directory))
    fill = bench.fill()[others]
    foreign = bench.owner[others] != bench.owner[directory]
    return others[np.lexsort((fill if lowest else -fill, foreign))[:TRIED_DIRECTORIES]]
