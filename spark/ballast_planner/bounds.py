"""Bounds that no plan can beat, from sums alone: the planner is measured against these, never against itself.

A plan that brings every directory into its band must move each one's excess out and each one's deficit in. The excess
or deficit of a broker as a whole must cross the network. PURE.
"""

from __future__ import annotations

import numpy as np

from ballast_planner.levels import Levels
from ballast_planner.model import Bools, ClusterLoad, Ints
from ballast_planner.plan import Bounds


def bounds_of(load: ClusterLoad, levels: Levels, movable: Bools) -> Bounds:
    used = np.where(levels.counts, load.directories.used, 0)
    excess = np.where(levels.counts, np.maximum(load.directories.used - levels.upper, 0), 0)
    deficit = np.where(levels.open, np.maximum(levels.lower - load.directories.used, 0), 0)
    over = _per_broker(load, used) - _per_broker(load, np.where(levels.counts, levels.upper, 0))
    under = _per_broker(load, np.where(levels.open, levels.lower, 0)) - _per_broker(load, used)
    network = max(int(np.maximum(over, 0).sum()), int(np.maximum(under, 0).sum()))
    pairs = np.maximum(_per_broker(load, excess), _per_broker(load, deficit))
    # A byte over the network saves at most one byte between the disks of its source's broker and one at its target's.
    total = max(int(excess.sum()), int(deficit.sum()), int(pairs.sum()) - network, network)
    return Bounds(
        highest_fill=_highest_fill(load, levels, movable),
        bytes_network=network,
        bytes_total=total,
        level=levels.level,
        band_low=(1 - levels.band) * levels.level,
        band_high=(1 + levels.band) * levels.level,
    )


def _per_broker(load: ClusterLoad, values: Ints) -> Ints:
    sums = np.zeros(load.brokers.ids.size, dtype=np.int64)
    np.add.at(sums, load.directories.broker, values)
    return sums


def _highest_fill(load: ClusterLoad, levels: Levels, movable: Bools) -> float:
    """The water level, or more: the highest unmovable content, or the largest replica in the largest directory."""
    counts = levels.counts
    if not counts.any():
        return 0.0
    can_go = movable & (load.replicas.directory >= 0)
    moving = np.zeros(counts.size, dtype=np.int64)
    np.add.at(moving, load.replicas.directory[can_go], load.replicas.size[can_go])
    fixed = np.maximum(load.directories.used - moving, 0) / load.directories.total
    largest = load.replicas.size[movable].max(initial=0) / load.directories.total[counts].max()
    return float(max(levels.level, fixed[counts].max(), largest))
