"""Goal: spread each partition over as many racks as there are, or as it has replicas. PURE."""

from __future__ import annotations

import numpy as np

from ballast_planner.goals.evacuation import place
from ballast_planner.model import NO_RACK, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "racks"


def improve(bench: Workbench, options: PlanOptions) -> None:
    rack = bench.load.brokers.rack_numbers()
    if not options.repair_racks or not options.across_brokers or (rack == NO_RACK).all():
        return
    usable = np.unique(rack[bench.owner[bench.levels.open]])
    for replica in _redundant_replicas(bench, rack, usable.size):
        _move_to_a_fresh_rack(bench, int(replica), rack, usable)


def _redundant_replicas(bench: Workbench, rack: Ints, racks: int) -> Ints:
    """Replicas that share the rack of an earlier one of their partition, where the partition could use more racks."""
    partition = bench.load.replicas.partition
    key = partition * (rack.max() + 2) + rack[bench.broker] + 1
    _, first_of_rack = np.unique(key, return_index=True)
    redundant = np.ones(partition.size, dtype=np.bool_)
    redundant[first_of_rack] = False
    distinct = np.bincount(partition[~redundant], minlength=bench.load.partitions.topic.size)
    replicas = np.flatnonzero(redundant & bench.movable & (distinct < racks)[partition])
    return replicas[np.argsort(-bench.size[replicas], kind="stable")]


def _move_to_a_fresh_rack(bench: Workbench, replica: int, rack: Ints, usable: Ints) -> None:
    taken = rack[bench.partners(replica)]
    if rack[bench.broker[replica]] not in taken:
        return
    fresh = np.setdiff1d(usable, taken)
    place(bench, replica, bench.levels.open & np.isin(rack, fresh)[bench.owner], bench.levels.mark)
