"""Turns a finished workbench into steps: which partitions change, what each copies, and in what order.

PURE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ballast_planner.model import ClusterLoad, Directories, Floats, Ints
from ballast_planner.plan import ANY_DIRECTORY, Move, Placement
from ballast_planner.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica's way from directory to directory.

    `source` is -1 if it is unknown or the replica is new, `target` is -1 if the replica is only removed. Between
    brokers it is the leader's log that is copied: `size` is that of the partition's largest replica, and `own_size`
    what the source gives up, which is less if the replica lags.
    """

    source: int
    target: int
    size: int
    network: bool
    replica: int = -1
    own_size: int | None = None

    @property
    def freed(self) -> int:
        return self.size if self.own_size is None else self.own_size


@dataclass(frozen=True, slots=True)
class Step:
    """One partition's change, with its copies as directory indexes: what waves and the limit on moves work with."""

    topic: str
    partition: int
    before: Placement
    after: Placement
    copies: tuple[Copy, ...]
    removed: tuple[Copy, ...] = ()

    @property
    def size(self) -> int:
        return sum(copy.size for copy in self.copies)

    @property
    def stuck_broker(self) -> int | None:
        """Whose replica stays where it is when this step has no room; None if the step only adds replicas."""
        after = self.after.as_pairs()
        changing = (broker for broker, path in self.before.as_pairs().items() if after.get(broker) != path)
        return next(changing, None)

    def as_move(self, wave: int) -> Move:
        network = sum(copy.size for copy in self.copies if copy.network)
        return Move(self.topic, self.partition, self.before, self.after, network, self.size - network, wave)


def steps_of(bench: Workbench) -> list[Step]:
    """The changes on the workbench, ordered by topic and partition."""
    return [_step(bench, int(partition)) for partition in bench.partitions_touched()]


def with_present(load: ClusterLoad, now: ClusterLoad, steps: Sequence[Step]) -> tuple[ClusterLoad, list[Step]]:
    """Combine a forecast `load` and the cluster as it is `now`, so that what fits the result fits both.

    The directories of `now` are appended as further ones, and every step copies into both.
    """
    ahead, present = load.directories, now.directories
    count = ahead.total.size
    both = Directories(
        broker=np.concatenate([ahead.broker, present.broker]),
        paths=ahead.paths + present.paths,
        total=np.concatenate([ahead.total, present.total]),
        used=np.concatenate([ahead.used, present.used]),
        cordoned=np.concatenate([ahead.cordoned, present.cordoned]),
        online=np.concatenate([ahead.online, present.online]),
    )
    return replace(load, directories=both), [
        replace(step, copies=step.copies + tuple(_as_now(copy, now, count) for copy in step.copies)) for step in steps
    ]


def _as_now(copy: Copy, now: ClusterLoad, count: int) -> Copy:
    source = copy.source + count if copy.source >= 0 else -1
    return copy_of(now, copy.replica, source, copy.target + count, copy.network)


def copy_of(load: ClusterLoad, replica: int, source: int, target: int, network: bool) -> Copy:
    own_size = int(load.replicas.size[replica])
    partition = int(load.replicas.partition[replica])
    all_of_it = slice(int(load.partitions.first[partition]), int(load.partitions.first[partition + 1]))
    size = int(load.replicas.size[all_of_it].max()) if network else own_size
    return Copy(source, target, size, network, replica, own_size)


def by_gain(load: ClusterLoad, upper: Ints, lower: Ints, steps: Sequence[Step]) -> list[Step]:
    """Most levelling per byte first; steps that move no bytes come last: they only change preferred leaders."""
    used, total = load.directories.used.astype(np.float64), load.directories.total.astype(np.float64)
    middle = (upper + lower) / 2

    def key(step: Step) -> tuple[int, float, str, int]:
        if not step.size:
            return 1, 0.0, step.topic, step.partition
        gain = sum(_gain(copy, used, total, middle) for copy in step.copies)
        return 0, -gain / step.size, step.topic, step.partition

    return sorted(steps, key=key)


def _gain(copy: Copy, used: Floats, total: Floats, middle: Floats) -> float:
    """How much this lowers the sum of squared distances from the middle of the band, relative to capacity."""
    gain = 0.0
    for directory, change in ((copy.source, -copy.freed), (copy.target, copy.size)):
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
        copy_of(
            load,
            replica,
            int(load.replicas.directory[replica]),
            int(bench.directory[replica]),
            bool(load.replicas.broker[replica] != bench.broker[replica]),
        )
        for replica in range(begin, end)
        if load.replicas.directory[replica] != bench.directory[replica]
    )
    topic, number = load.partition_name(partition)
    return Step(topic, number, before, after, copies)


def directory_path(load: ClusterLoad, directory: int) -> str:
    return load.directories.paths[directory] if directory >= 0 else ANY_DIRECTORY
