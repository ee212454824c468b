"""Goal: put giants, which are too large for the band of any directory, where they stick out least.

A directory's band reaches up to what it must hold in any case; so without this goal a giant would stay in a small
directory, which it may nearly fill, beside large ones with room. Only giants that make theirs the fullest of all
directories move. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.goals.large import core_of, find_levels_anew
from ballast_planner.model import Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "giants"
MAX_MOVES = 200


def improve(bench: Workbench, options: PlanOptions) -> None:
    if not options.within_brokers or not options.move_giants:
        return
    for _ in range(MAX_MOVES):
        if not _lower_the_highest(bench, options):
            return


def _lower_the_highest(bench: Workbench, options: PlanOptions) -> bool:
    levels = bench.levels
    height = np.where(levels.counts, levels.upper / bench.total, 0.0)
    directory = int(np.argmax(height))
    residents = bench.movable_in(directory)
    if not residents.size or height[directory] <= (1 + levels.band) * levels.level:
        return False
    giant, sizes = int(residents[-1]), bench.size[residents]
    fixed = int(bench.used[directory] - sizes.sum())
    # Otherwise it is not the giant that sticks out but the unmovable content, or the whole rack.
    if not fixed < (1 - options.band) * levels.upper[directory] <= levels.upper[directory] <= fixed + sizes[-1]:
        return False
    for target in _lower_places(bench, giant, directory, height[directory], options):
        broker = int(bench.owner[target])
        if broker == bench.owner[directory] or bench.may_go(np.array([giant]), broker)[0]:
            bench.move(giant, int(target))
            find_levels_anew(bench, options)
            return True
    return False


def _lower_places(bench: Workbench, giant: int, directory: int, height: float, options: PlanOptions) -> Ints:
    """Directories that would end notably lower with the giant, best first; among equals those of its own broker."""
    size, own = int(bench.size[giant]), bench.owner == bench.owner[directory]
    targets = np.flatnonzero(bench.levels.open & (own | options.across_brokers))
    targets = targets[size / bench.total[targets] < (1 - options.band) * height]
    there = np.array([(core_of(bench, int(target), size) + size) / bench.total[target] for target in targets])
    lower = there < (1 - options.band) * height
    targets, there = targets[lower], there[lower]
    steps = np.floor(np.log(there) / np.log1p(options.band))
    return targets[np.lexsort((there, ~own[targets], steps))]
