"""Plans for explicit requests: given rows, another replication factor, a set of brokers.

Every plan names directories: `any` becomes the least full directory for a replica that arrives, and the current one for
a replica that stays (OPR-30). PURE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ballast_planner.assemble import Copy, Step, by_gain, directory_path, steps_of
from ballast_planner.balance import PlanError, finish, has_a_source, plan_balance, pursue_goals
from ballast_planner.levels import find_levels, readable_directories, readable_in, receiving_directories
from ballast_planner.model import NO_RACK, ClusterLoad, Floats, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.plan import ANY_DIRECTORY, Placement, Plan, Target, Unplaced
from ballast_planner.workbench import Workbench, standing


class StaleRowsError(PlanError):
    """Rows whose `from` is no longer where the replicas are."""

    def __init__(self, rows: Sequence[str]) -> None:
        super().__init__(f"{len(rows)} rows are stale, the replicas are elsewhere by now: {', '.join(rows[:10])}")
        self.rows = tuple(rows)


def plan_explicit(load: ClusterLoad, targets: Sequence[Target], options: PlanOptions | None = None) -> Plan:
    """Move each row's partition to where the row wants it; rows that are there already are dropped.

    Waves are those of the rows if every row has one; else they are computed.
    """
    chosen = options or PlanOptions()
    rows = load.partition_index()
    stale = [f"{t.topic}-{t.partition}" for t in targets if not _from_holds(load, rows, t)]
    if stale:
        raise StaleRowsError(stale)
    if len({(target.topic, target.partition) for target in targets}) != len(targets):
        raise PlanError("a partition has two rows")
    planner = _TargetPlanner(load, chosen.high_water)
    steps = [planner.step(rows, target) for target in targets]
    waves = {(t.topic, t.partition): t.wave for t in targets if t.wave is not None}
    moving = [step for step in steps if step.before != step.after]
    return _finish(load, moving, chosen, waves=waves if len(waves) == len(targets) else None, asked=True)


def plan_replication_factor(load: ClusterLoad, factors: Mapping[str, int], options: PlanOptions | None = None) -> Plan:
    """Give every partition of these topics that many replicas, on fresh racks first, in the least full directories."""
    chosen = options or PlanOptions()
    unknown = sorted(set(factors) - set(load.topics))
    if unknown:
        raise PlanError(f"topic {unknown[0]} is not known to the cluster")
    planner = _TargetPlanner(load, chosen.high_water)
    steps: list[Step] = []
    unplaced: list[Unplaced] = []
    wanted = np.array([factors.get(topic, 0) for topic in load.topics], dtype=np.int64)[load.partitions.topic]
    sizes = np.maximum.reduceat(load.replicas.size, load.partitions.first[:-1]) if wanted.size else wanted
    for partition in np.lexsort((np.arange(wanted.size), -sizes)):
        factor = int(wanted[partition])
        if factor:
            step = planner.resize(int(partition), factor)
            placed = len(step.after.replicas)
            reason = f"only {placed} of {factor} replicas have a broker with room"
            unplaced += [Unplaced(step.topic, step.partition, None, reason)] * (factor - placed)
            if step.before != step.after:
                steps.append(step)
    return _finish(load, steps, chosen, unplaced=unplaced)


def plan_generate(
    load: ClusterLoad,
    topics: Collection[str] | None,
    to_brokers: Collection[int],
    options: PlanOptions | None = None,
) -> Plan:
    """Bring these topics (all, if None) onto these brokers, levelled by bytes; other topics stay where they are."""
    chosen = options or PlanOptions()
    known = {int(broker) for broker in load.brokers.ids}
    if not to_brokers or set(to_brokers) - known:
        raise PlanError(f"brokers {sorted(set(to_brokers) - known)} are not known to the cluster")
    unknown = sorted(set(topics or ()) - set(load.topics))
    if unknown:
        raise PlanError(f"topic {unknown[0]} is not known to the cluster")
    if known == set(to_brokers):
        # Nothing has to leave any broker: this is ordinary balancing.
        left_alone = chosen.excluded_topics | (set(load.topics) - set(load.topics if topics is None else topics))
        quiet = replace(chosen, excluded_topics=left_alone, level_leaders=False, level_traffic=False)
        return plan_balance(load, quiet)
    others = np.array(sorted(known - set(to_brokers)), dtype=np.int64)
    gone = np.isin(load.brokers.ids, others)[load.directories.broker]
    chosen_topic = np.array([topics is None or topic in topics for topic in load.topics] + [False], dtype=np.bool_)
    readable = readable_in(load, load.replicas.directory)
    leaving = np.isin(load.brokers.ids, others)[load.replicas.broker]
    wanted = chosen_topic[load.partitions.topic[load.replicas.partition]]
    movable = wanted & (readable | leaving & has_a_source(load))
    levels = find_levels(load, chosen.band, chosen.high_water, movable, gone)
    bench = Workbench(load, levels, movable)
    pursue_goals(bench, replace(chosen, level_leaders=False, level_traffic=False))
    stayed = leaving & movable & (bench.broker == load.replicas.broker)
    reason = "no broker of those named may take it: its other replicas, racks and room leave none"
    unplaced = [_left(load, int(replica), reason) for replica in np.flatnonzero(stayed)]
    no_source = "no live replica to copy it from"
    unplaced += [_left(load, int(replica), no_source) for replica in np.flatnonzero(leaving & wanted & ~movable)]
    ordered = by_gain(load, levels.upper, levels.lower, steps_of(bench))
    return finish(load, levels, movable, ordered, chosen, unplaced=unplaced)


class _TargetPlanner:
    """Turns rows into steps one after another, keeping the directories' sums up to date."""

    def __init__(self, load: ClusterLoad, high_water: float) -> None:
        self.load = load
        self.mark = np.floor(load.directories.total * high_water)
        self.used = load.directories.used.copy()
        self.count = load.replica_counts()
        self.open = receiving_directories(load)
        self.readable = readable_directories(load)
        self.index_of = load.directory_index()
        self.broker_index = {int(broker): index for index, broker in enumerate(load.brokers.ids)}
        self.rack = load.brokers.rack_numbers()

    def step(self, rows: Mapping[tuple[str, int], int], target: Target) -> Step:
        label = f"{target.topic}-{target.partition}"
        if (target.topic, target.partition) not in rows:
            raise PlanError(f"{label} is not known to the cluster")
        partition = rows[target.topic, target.partition]
        before = placement_of(self.load, partition)
        here = before.as_pairs()
        directories = []
        for broker, path in zip(target.to.replicas, target.to.log_dirs, strict=True):
            if broker not in self.broker_index:
                raise PlanError(f"{label}: broker {broker} is not known to the cluster")
            if path != ANY_DIRECTORY and (broker, path) not in self.index_of:
                raise PlanError(f"{label}: broker {broker} has no directory {path}")
            stays = path == ANY_DIRECTORY and broker in here
            directories.append(here[broker] if stays else self._named(broker, path, label, self._size(partition)))
        return self._build(partition, before, Placement(target.to.replicas, tuple(directories)))

    def resize(self, partition: int, factor: int) -> Step:
        before = placement_of(self.load, partition)
        pairs = list(before.as_pairs().items())
        needed = min(self._racks(pair for pair in pairs if not self._has_failed(pair)), factor)
        while len(pairs) > factor:
            pairs.pop(self._least_useful(pairs, needed))
        size = self._size(partition)
        while len(pairs) < factor:
            found = self._lowest_outside([broker for broker, _ in pairs], size)
            if found is None:
                break
            pairs.append(self.load.directory_name(found))
        return self._build(partition, before, Placement(tuple(b for b, _ in pairs), tuple(p for _, p in pairs)))

    def _named(self, broker: int, path: str, label: str, size: int) -> str:
        if path != ANY_DIRECTORY:
            return path
        own = np.flatnonzero(self.open & (self.load.directories.broker == self.broker_index[broker]))
        if not own.size:
            raise PlanError(f"{label}: broker {broker} has no directory that takes replicas")
        return self.load.directories.paths[int(own[np.argmin(self._standing(own, size))])]

    def _racks(self, pairs: Iterable[tuple[int, str]]) -> int:
        """On how many racks these are; a dead broker's protects no data."""
        brokers = (self.broker_index[broker] for broker, _ in pairs)
        return len({int(self.rack[broker]) for broker in brokers if self.load.brokers.alive[broker]} - {NO_RACK})

    def _has_failed(self, pair: tuple[int, str]) -> bool:
        return pair in self.index_of and not self.readable[self.index_of[pair]]

    def _least_useful(self, pairs: Sequence[tuple[int, str]], needed: int) -> int:
        """The replica to drop, if at least the `needed` racks are left: on a dead broker, else in a failed directory,
        else in one that takes nothing (its broker or volume is to go); of the others never the first, but one that
        shares its rack, then the fullest."""

        def key(position: int) -> tuple[bool, bool, bool, bool, bool, bool, float]:
            left = self._racks(pair for index, pair in enumerate(pairs) if index != position)
            broker = self.broker_index[pairs[position][0]]
            racks = [int(self.rack[self.broker_index[other]]) for other, _ in pairs]
            doubled = self.rack[broker] != NO_RACK and racks.count(int(self.rack[broker])) > 1
            directory = self.index_of.get(pairs[position], -1)
            fill, closed = 0.0, False
            if directory >= 0:
                fill = float(self.used[directory] / self.load.directories.total[directory])
                closed = not self.open[directory]
            dead, failed = not self.load.brokers.alive[broker], self._has_failed(pairs[position])
            return left >= needed, dead, failed, closed, position > 0, bool(doubled), fill

        return max(range(len(pairs)), key=key)

    def _lowest_outside(self, brokers: Sequence[int], size: int) -> int | None:
        """The least full directory on other brokers that stays below its high-water mark: in a rack that none of these
        has, else in one that only dead ones among them have, else in any."""
        taken = [self.broker_index[broker] for broker in brokers]
        owner = self.load.directories.broker
        outside = self.open & ~np.isin(owner, taken)
        candidates = np.flatnonzero(outside & (self.used + size <= self.mark))
        if not candidates.size:
            return None
        alive = [broker for broker in taken if self.load.brokers.alive[broker]]
        racks = self.rack[owner[candidates]]
        known, of_alive = (np.isin(racks, self.rack[of]) & (racks != NO_RACK) for of in (taken, alive))
        return int(candidates[np.lexsort((self._standing(candidates, size), known, of_alive))[0]])

    def _standing(self, directories: Ints, size: int) -> Floats:
        return standing(size, self.used[directories], self.count[directories], self.load.directories.total[directories])

    def _size(self, partition: int) -> int:
        begin, end = self.load.partitions.first[partition], self.load.partitions.first[partition + 1]
        return int(self.load.replicas.size[begin:end].max())

    def _build(self, partition: int, before: Placement, after: Placement) -> Step:
        topic, number = self.load.partition_name(partition)
        begin = int(self.load.partitions.first[partition])
        size_of = {b: int(self.load.replicas.size[begin + i]) for i, b in enumerate(before.replicas)}
        old, new = before.as_pairs(), after.as_pairs()
        leaving = [broker for broker in before.replicas if broker not in new]
        copies: list[Copy] = []
        size = self._size(partition)
        for broker, path in new.items():
            if broker not in old:
                copies.append(Copy(-1, self.index_of[broker, path], size, True))
            elif old[broker] != path:
                source = self.index_of.get((broker, old[broker]), -1)
                copies.append(Copy(source, self.index_of[broker, path], size_of[broker], False))
        removed = [Copy(self.index_of.get((b, old[b]), -1), -1, size_of[b], False) for b in leaving]
        step = Step(topic, number, before, after, tuple(copies), tuple(removed))
        for copy in step.copies:
            self.used[copy.target] += copy.size
            self.count[copy.target] += 1
        return step


def placement_of(load: ClusterLoad, partition: int) -> Placement:
    """Where a partition's replicas are now."""
    replicas = slice(int(load.partitions.first[partition]), int(load.partitions.first[partition + 1]))
    brokers = load.brokers.ids[load.replicas.broker[replicas]]
    paths = [directory_path(load, int(directory)) for directory in load.replicas.directory[replicas]]
    return Placement(tuple(int(broker) for broker in brokers), tuple(paths))


def _from_holds(load: ClusterLoad, rows: Mapping[tuple[str, int], int], target: Target) -> bool:
    if target.from_ is None or (target.topic, target.partition) not in rows:
        return True
    now = placement_of(load, rows[target.topic, target.partition])
    if now == target.to:
        return True
    same = zip(now.log_dirs, target.from_.log_dirs, strict=False)
    return now.replicas == target.from_.replicas and all(b in (ANY_DIRECTORY, a) for a, b in same)


def _finish(
    load: ClusterLoad,
    steps: Sequence[Step],
    options: PlanOptions,
    unplaced: Sequence[Unplaced] = (),
    waves: Mapping[tuple[str, int], int] | None = None,
    asked: bool = False,
) -> Plan:
    nothing = np.zeros(load.replicas.size.size, dtype=np.bool_)
    levels = find_levels(load, options.band, options.high_water, nothing)
    return finish(load, levels, nothing, steps, options, unplaced=unplaced, waves=waves, asked=asked)


def _left(load: ClusterLoad, replica: int, reason: str) -> Unplaced:
    topic, number = load.partition_name(int(load.replicas.partition[replica]))
    return Unplaced(topic, number, int(load.brokers.ids[load.replicas.broker[replica]]), reason)
