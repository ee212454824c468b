"""Checks plans independently: does its own sums, in plain Python, and shares no code with the planner (REB-07).

Faults come as sentences; none means that the plan is valid. PURE.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ballast_planner.model import ClusterLoad
from ballast_planner.plan import ANY_DIRECTORY, Move, Placement, Plan

Name = tuple[int, str]


class Ledger:
    """Bytes per directory, and the current placement of the partitions that a plan names."""

    def __init__(self, load: ClusterLoad, plan: Plan) -> None:
        ids = load.brokers.ids.tolist()
        self.total: dict[Name, int] = {}
        self.used: dict[Name, int] = {}
        self.closed: set[Name] = set()
        self.failed: set[Name] = set()
        columns = load.directories
        for owner, path, total, used, cordoned, online in zip(
            columns.broker.tolist(), columns.paths, columns.total.tolist(), columns.used.tolist(),
            columns.cordoned.tolist(), columns.online.tolist(), strict=True,
        ):  # fmt: skip
            name = (ids[owner], path)
            self.total[name], self.used[name] = total, used
            if not online:
                self.failed.add(name)
            if cordoned or not online or load.brokers.cordoned[owner] or not load.brokers.alive[owner]:
                self.closed.add(name)
        self.rack = dict(zip(ids, load.brokers.racks, strict=True))
        self.alive = dict(zip(ids, load.brokers.alive.tolist(), strict=True))
        self.placement: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}
        self.order: dict[tuple[str, int], tuple[int, ...]] = {}
        self._read_partitions(load, {(move.topic, move.partition) for move in plan.moves})

    def _read_partitions(self, load: ClusterLoad, wanted: set[tuple[str, int]]) -> None:
        ids = load.brokers.ids.tolist()
        topics = {topic for topic, _ in wanted}
        numbers = [index for index, topic in enumerate(load.topics) if topic in topics]
        for topic_index in numbers:
            begin = int(load.partitions.topic.searchsorted(topic_index, side="left"))
            end = int(load.partitions.topic.searchsorted(topic_index, side="right"))
            for row in range(begin, end):
                key = (load.topics[topic_index], int(load.partitions.number[row]))
                if key in wanted:
                    self._read_replicas(load, key, row, ids)

    def _read_replicas(self, load: ClusterLoad, key: tuple[str, int], row: int, ids: list[int]) -> None:
        found: dict[int, tuple[str, int]] = {}
        for replica in range(int(load.partitions.first[row]), int(load.partitions.first[row + 1])):
            directory = int(load.replicas.directory[replica])
            path = load.directories.paths[directory] if directory >= 0 else ANY_DIRECTORY
            found[ids[int(load.replicas.broker[replica])]] = (path, int(load.replicas.size[replica]))
        self.placement[key] = found
        self.order[key] = tuple(found)


def check_plan(
    load: ClusterLoad, plan: Plan, high_water: float, must_not_worsen: bool = False, highest: float = 0.0
) -> list[str]:
    """Everything that is wrong with the plan, in sentences.

    With `must_not_worsen`, no directory that the plan fills may end above the highest fill before, or `highest`.
    """
    ledger = Ledger(load, plan)
    faults: list[str] = []
    seen: set[tuple[str, int]] = set()
    for move in plan.moves:
        key = (move.topic, move.partition)
        if key in seen:
            faults.append(f"{move.topic}-{move.partition} is moved twice")
        seen.add(key)
        faults += _check_move(ledger, move)
    if faults:
        return faults
    worst = max((ledger.used[name] / ledger.total[name] for name in ledger.total), default=0.0)
    worst = max(worst, highest)
    touched = _run_waves(ledger, plan, high_water, faults)
    if must_not_worsen:
        faults += [
            f"{path} on broker {broker} would end at {ledger.used[broker, path] / ledger.total[broker, path]:.4f}, "
            f"above the highest before, {worst:.4f}"
            for broker, path in sorted(touched)
            if ledger.used[broker, path] > worst * ledger.total[broker, path] * (1 + 1e-9)
        ]
    return faults


def _check_move(ledger: Ledger, move: Move) -> list[str]:
    label, key = f"{move.topic}-{move.partition}", (move.topic, move.partition)
    if key not in ledger.placement:
        return [f"{label} is not known"]
    actual = ledger.placement[key]
    faults = []
    if move.from_.replicas != ledger.order[key] or move.from_.log_dirs != tuple(path for path, _ in actual.values()):
        faults.append(f"{label}: its `from` is not where it is")
    if len(set(move.to.replicas)) != len(move.to.replicas) or not move.to.replicas:
        faults.append(f"{label}: two replicas on one broker, or none at all")
    if move.to == move.from_:
        faults.append(f"{label}: moves nothing")
    for broker, path in _arrivals(move.from_, move.to):
        if path == ANY_DIRECTORY:
            continue
        if (broker, path) not in ledger.total:
            faults.append(f"{label}: broker {broker} has no directory {path}")
        elif (broker, path) in ledger.closed:
            faults.append(f"{label}: {path} on broker {broker} takes no replicas")
    # A dead broker's rack protects no data, neither before nor after; nor does what was on a disk that failed.
    before, after = ([broker for broker in one.replicas if ledger.alive.get(broker)] for one in (move.from_, move.to))
    before = [broker for broker in before if (broker, move.from_.as_pairs()[broker]) not in ledger.failed]
    if _racks(ledger, after) < min(_racks(ledger, before), len(move.to.replicas)):
        faults.append(f"{label}: on fewer racks than before")
    return faults


def _racks(ledger: Ledger, brokers: Iterable[int]) -> int:
    if any(rack is None and ledger.alive[broker] for broker, rack in ledger.rack.items()):
        return 0
    return len({ledger.rack.get(broker) for broker in brokers} - {None})


def _arrivals(before: Placement, after: Placement) -> list[tuple[int, str]]:
    old = before.as_pairs()
    return [(broker, path) for broker, path in after.as_pairs().items() if old.get(broker) != path]


def _run_waves(ledger: Ledger, plan: Plan, high_water: float, faults: list[str]) -> set[Name]:
    waves: dict[int, list[Move]] = defaultdict(list)
    for move in plan.moves:
        waves[move.wave].append(move)
    touched: set[Name] = set()
    for wave in sorted(waves):
        filled: set[Name] = set()
        for move in waves[wave]:
            size = max((size for _, size in ledger.placement[move.topic, move.partition].values()), default=0)
            for name in _arrivals(move.from_, move.to):
                if name[1] != ANY_DIRECTORY:
                    own = ledger.placement[move.topic, move.partition].get(name[0])
                    # A replica that stays on its broker keeps its own size; one that arrives is a copy of the leader.
                    ledger.used[name] += size if own is None else own[1]
                    filled.add(name)
        faults += [
            f"wave {wave}: {path} on broker {broker} passes its high-water mark"
            for broker, path in sorted(filled)
            if ledger.used[broker, path] > high_water * ledger.total[broker, path] + 1
        ]
        touched |= filled
        for move in waves[wave]:
            for name in _arrivals(move.to, move.from_):
                if name[1] != ANY_DIRECTORY:
                    ledger.used[name] -= ledger.placement[move.topic, move.partition][name[0]][1]
    return touched
