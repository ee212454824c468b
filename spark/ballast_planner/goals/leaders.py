"""Goal: bring the preferred leaders per broker inside a band by reordering assignments: no bytes move. PURE."""

from __future__ import annotations

import math

import numpy as np

from ballast_planner.levels import readable_in
from ballast_planner.model import Bools, Floats
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench

NAME = "leaders"


def improve(bench: Workbench, options: PlanOptions) -> None:
    if not options.level_leaders:
        return
    weight = np.ones(bench.load.partitions.topic.size)
    level_leaderships(bench, weight, options, least=1.0)


def level_leaderships(bench: Workbench, weight: Floats, options: PlanOptions, least: float) -> None:
    """Hand leaderships over until each broker's sum of weights is within the band, or nothing helps.

    Those of excluded topics count but stay: whoever chose their brokers has chosen the first of them as well.
    """
    receiving = np.zeros(bench.load.brokers.ids.size, dtype=np.bool_)
    receiving[bench.owner[bench.levels.open]] = True
    leaders = np.flatnonzero(bench.preferred_leader)
    partition = bench.load.replicas.partition[leaders]
    load = np.bincount(bench.broker[leaders], weights=weight[partition], minlength=receiving.size).astype(np.float64)
    if receiving.sum() < 2 or not load.sum():
        return
    mean = float(load[receiving].mean())
    upper = mean + max(options.band * mean, least)
    shares = np.where(bench.load.partitions_of(options.excluded_topics), 0.0, weight)
    # A replica on a failed disk cannot lead, even though its broker can.
    may_lead: Bools = receiving[bench.broker] & readable_in(bench.load, bench.directory)
    stuck = ~receiving
    while True:
        over = np.where(stuck, -math.inf, load - upper)
        broker = int(np.argmax(over))
        if over[broker] <= 1e-9:
            return
        if not _hand_over(bench, broker, load, shares, upper, may_lead):
            stuck[broker] = True


def _hand_over(bench: Workbench, broker: int, load: Floats, weight: Floats, upper: float, may_lead: Bools) -> bool:
    """Hand over leaderships of one broker until its excess is gone; False if none could be handed over."""
    led = np.flatnonzero(bench.preferred_leader & (bench.broker == broker))
    partitions = bench.load.replicas.partition[led]
    given = False
    for partition in partitions[np.argsort(-weight[partitions], kind="stable")]:
        if load[broker] <= upper:
            break
        share = float(weight[partition])
        if share <= 0 or bench.swapped_order.get(int(partition)):
            continue
        first = int(bench.load.partitions.first[partition])
        others = slice(first + 1, int(bench.load.partitions.first[partition + 1]))
        followers = bench.broker[others]
        fitting = followers[may_lead[others]]
        if not fitting.size:
            continue
        target = int(fitting[np.argmin(load[fitting])])
        if load[target] + share > max(upper - 1e-9, 0) or load[target] + share >= load[broker]:
            continue
        bench.reorder(int(partition), 1 + int(np.flatnonzero(followers == target)[0]))
        load[broker] -= share
        load[target] += share
        given = True
    return given
