"""From a finished workbench to the plan: which partitions change, in what order, in which waves, at what cost.

PURE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ballast_planner.model import ClusterLoad, Floats, Ints
from ballast_planner.plan import ANY_DIRECTORY, Move, Placement
from ballast_planner.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica's way; `source` is -1 where its directory is not known or it is a new replica."""

    source: int
    target: int
    size: int
    network: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One partition's change as directory indexes: what the waves and the limit on moves reason about."""

    topic: str
    partition: int
    before: Placement
    after: Placement
    copies: tuple[Copy, ...]
    removed: tuple[Copy, ...] = ()

    @property
    def size(self) -> int:
        return sum(copy.size for copy in self.copies)

    def as_move(self, wave: int) -> Move:
        network = sum(copy.size for copy in self.copies if copy.network)
        return Move(self.topic, self.partition, self.before, self.after, network, self.size - network, wave)


def steps_of(bench: Workbench) -> list[Step]:
    """The changes on the workbench, ordered by topic and partition."""
    return [_step(bench, int(partition)) for partition in bench.partitions_touched()]


def by_gain(load: ClusterLoad, upper: Ints, lower: Ints, steps: Sequence[Step]) -> list[Step]:
    """Most levelling per byte first; what moves no byte comes last, because it only changes preferences."""
    used, total = load.directories.used.astype(np.float64), load.directories.total.astype(np.float64)
    middle = (upper + lower) / 2

    def key(step: Step) -> tuple[int, float, str, int]:
        if not step.size:
            return 1, 0.0, step.topic, step.partition
        gain = sum(_gain(copy, used, total, middle) for copy in step.copies)
        return 0, -gain / step.size, step.topic, step.partition

    return sorted(steps, key=key)


def _gain(copy: Copy, used: Floats, total: Floats, middle: Floats) -> float:
    """How much the sum of squared distances from the level falls, per capacity."""
    gain = 0.0
    for directory, change in ((copy.source, -copy.size), (copy.target, copy.size)):
        if directory >= 0:
            distance = used[directory] - middle[directory]
            gain += (distance**2 - (distance + change) ** 2) / total[directory]
    return gain


def _step(bench: Workbench, partition: int) -> Step:
    load = bench.load
    begin, end = int(load.partitions.first[partition]), int(load.partitions.first[partition + 1])
    replicas = list(range(begin, end))
    before = Placement(
        tuple(int(load.brokers.ids[load.replicas.broker[replica]]) for replica in replicas),
        tuple(directory_path(load, int(load.replicas.directory[replica])) for replica in replicas),
    )
    front = bench.swapped_order.get(partition, 0)
    replicas[0], replicas[front] = replicas[front], replicas[0]
    after = Placement(
        tuple(int(load.brokers.ids[bench.broker[replica]]) for replica in replicas),
        tuple(directory_path(load, int(bench.directory[replica])) for replica in replicas),
    )
    copies = tuple(
        Copy(
            int(load.replicas.directory[replica]),
            int(bench.directory[replica]),
            int(load.replicas.size[replica]),
            bool(load.replicas.broker[replica] != bench.broker[replica]),
        )
        for replica in range(begin, end)
        if load.replicas.directory[replica] != bench.directory[replica]
    )
    topic, number = load.partition_name(partition)
    return Step(topic, number, before, after, copies)


def directory_path(load: ClusterLoad, directory: int) -> str:
    return load.directories.paths[directory] if directory >= 0 else ANY_DIRECTORY
