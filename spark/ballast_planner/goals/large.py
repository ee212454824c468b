"""Goal: give each replica that is too large for the room in any directory one that can be emptied for it.

Two of them in one directory, or one in a directory too small for it, keep that directory above the band whatever
else moves. One of them goes where there are the fewest bytes in other large replicas, no matter what else is there:
later goals lower that directory again, and the waves let the small replicas leave first. PURE.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ballast_planner.levels import find_levels
from ballast_planner.model import Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "large"
LARGE_SHARE = 0.2
SMALL_SHARE = 0.25
MAX_MOVES = 1_000
MAX_TARGETS = 16


def improve(bench: Workbench, options: PlanOptions) -> None:
    """Move only those for which there is no room on their broker, nor on others if it must give bytes away anyway."""
    _improve(bench, options, anywhere=options.across_brokers)


def improve_at_once(bench: Workbench, options: PlanOptions) -> None:
    """Move all for which there is no room on their own broker: more moves, sometimes a lower peak for fewer bytes."""
    _improve(bench, options, anywhere=False)


def _improve(bench: Workbench, options: PlanOptions, anywhere: bool) -> None:
    if not options.within_brokers:
        return
    before = len(bench.moved)
    for directory in np.argsort(-bench.fill(), kind="stable"):
        while len(bench.moved) - before < MAX_MOVES and _step(bench, int(directory), options, anywhere):
            pass
    if len(bench.moved) > before:
        find_levels_anew(bench, options)


def find_levels_anew(bench: Workbench, options: PlanOptions) -> None:
    """Recompute the levels with large replicas where they are now: their directories stick out, the others sink."""
    levels = find_levels(
        bench.load,
        options.band,
        options.high_water,
        bench.movable,
        evacuated=~bench.levels.counts,
        used=bench.used,
        directory=bench.directory,
    )
    bench.levels = replace(levels, open=bench.levels.open)


def _step(bench: Workbench, directory: int, options: PlanOptions, anywhere: bool) -> bool:
    if bench.excess(directory) <= 0 or not bench.levels.counts[directory]:
        return False
    room = _widest_room(bench, directory, anywhere)
    residents = bench.movable_in(directory)
    threshold = max(room, int(LARGE_SHARE * bench.levels.upper[directory]))
    large = residents[bench.size[residents] > threshold]
    small_bytes = int(bench.size[residents].sum() - bench.size[large].sum())
    core = int(bench.used[directory]) - small_bytes
    if not large.size or core <= bench.levels.upper[directory]:
        return False
    return _place(bench, int(large[0]), directory, core, options)


def _widest_room(bench: Workbench, directory: int, anywhere: bool) -> int:
    """The largest room as things are: on this broker, or anywhere if this broker must give bytes away anyway."""
    own = bench.owner == bench.owner[directory]
    must_give = bench.used[own].sum() > bench.levels.upper[own].sum()
    reachable = bench.levels.open & (own | (anywhere and must_give))
    reachable[directory] = False
    return int((bench.levels.upper - bench.used)[reachable].max(initial=0))


def _place(bench: Workbench, replica: int, directory: int, core: int, options: PlanOptions) -> bool:
    """Move it to the directory with the fewest bytes in large replicas, if that lowers the higher of the two cores."""
    size = int(bench.size[replica])
    candidates = (
        bench.levels.open.copy()
        if options.across_brokers
        else bench.levels.open & (bench.owner == bench.owner[directory])
    )
    candidates[directory] = False
    targets = np.flatnonzero(candidates)
    core_fill = np.array([(core_of(bench, int(target), size) + size) / bench.total[target] for target in targets])
    within = core_fill * bench.total[targets] <= bench.levels.upper[targets]
    foreign = bench.owner[targets] != bench.owner[directory]
    # Of directories with room for it once the small replicas have left, the one that has to give up least is cheapest.
    displaced = np.maximum(bench.used[targets] + size - bench.levels.upper[targets], 0)
    order = np.lexsort((core_fill, np.where(within, displaced, 0), foreign, ~within))
    for index in order[:MAX_TARGETS]:
        target = int(targets[index])
        better = within[index] or core_fill[index] < (1 - 1e-9) * core / bench.total[directory]
        if better and _allowed(bench, replica, target):
            bench.move(replica, target)
            return True
    return False


def core_of(bench: Workbench, target: int, size: int) -> int:
    """Bytes that stay in a directory when all movable replicas that are small compared to `size` leave."""
    residents = bench.movable_in(target)
    sizes = bench.size[residents]
    return int(bench.used[target] - sizes[sizes < SMALL_SHARE * size].sum())


def _allowed(bench: Workbench, replica: int, target: int) -> bool:
    one: Ints = np.array([replica])
    same = bench.owner[target] == bench.broker[replica]
    return bool(same or bench.may_go(one, int(bench.owner[target]))[0])
