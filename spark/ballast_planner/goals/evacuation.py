"""Goal: move everything movable off drained brokers and directories.

The largest go first, each to the directory that is least full once it is there; inside the same broker if that is
allowed and it fits, because the network costs more than a disk. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.model import Bools, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "evacuation"


def improve(bench: Workbench, options: PlanOptions) -> None:
    """Evacuate movable replicas from directories that `levels` neither counts nor opens, and from unknown ones."""
    leaving = np.append(~bench.levels.counts & ~bench.levels.open, True)[bench.directory] & bench.movable
    evacuate(bench, np.flatnonzero(leaving), options)


def evacuate(bench: Workbench, replicas: Ints, options: PlanOptions) -> None:
    """Place these replicas elsewhere; those for which there is no place stay and are reported by the caller."""
    mark = bench.levels.mark
    for replica in replicas[np.argsort(-bench.size[replicas], kind="stable")]:
        own = bench.levels.open & (bench.owner == bench.broker[replica])
        if own.any() and place(bench, int(replica), own, mark):
            continue
        if options.across_brokers:
            place(bench, int(replica), bench.levels.open, mark)


def place(bench: Workbench, replica: int, targets: Bools, mark: Ints) -> bool:
    """Put a replica into the one of these directories that is least full with it; False if none may take it."""
    candidates = np.flatnonzero(targets)
    candidates = candidates[bench.used[candidates] + bench.size[replica] <= mark[candidates]]
    order = np.argsort(bench.standing(candidates, int(bench.size[replica])), kind="stable")
    here, one = int(bench.broker[replica]), np.array([replica])
    for target in candidates[order]:
        broker = int(bench.owner[target])
        if broker == here or bench.may_go(one, broker)[0]:
            bench.move(replica, int(target))
            return True
    return False
