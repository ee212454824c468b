"""Goal: giants, which stand out of the band of every directory, where they stand out least.

What a directory has to hold at least counts as its band; so without this a giant would stay in a small directory, which
it may all but fill, beside large ones that have the room. Only those go that make the fullest directory of all. PURE.
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
    # Else it is what is fixed here that stands out, or the whole rack.
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
    """Directories in which it would stand notably lower, the best first; of those as good the ones of its broker."""
    size, own = int(bench.size[giant]), bench.owner == bench.owner[directory]
    targets = np.flatnonzero(bench.levels.open & (own | options.across_brokers))
    targets = targets[size / bench.total[targets] < (1 - options.band) * height]
    there = np.array([(core_of(bench, int(target), size) + size) / bench.total[target] for target in targets])
    lower = there < (1 - options.band) * height
    targets, there = targets[lower], there[lower]
    steps = np.floor(np.log(there) / np.log1p(options.band))
    return targets[np.lexsort((there, ~own[targets], steps))]
