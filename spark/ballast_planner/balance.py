"""The planner's entry points: balance, racks, drain, new brokers. Each takes a load and returns a checked plan.

The same input gives the same plan: nothing here depends on time, chance or the order of the input. PURE.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ballast_planner.assemble import Step, by_gain, steps_of, with_present
from ballast_planner.bounds import bounds_of
from ballast_planner.check import check_plan
from ballast_planner.exact import score_of, solve_exactly
from ballast_planner.goals import (
    AFTER_LARGE,
    LARGE_AT_ONCE,
    ORDER,
    PREFERENCES,
    PREPARATION,
    SPACE,
    Goal,
    evacuation,
    giants,
    large,
    racks,
)
from ballast_planner.goals import directories as directories_goal
from ballast_planner.levels import Levels, find_levels, readable_in
from ballast_planner.model import Bools, ClusterLoad, Floats, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.parallel import SolveTasks, broker_tasks
from ballast_planner.plan import Plan, Unplaced
from ballast_planner.quality import fill_of, quality_of, used_after
from ballast_planner.waves import follow_waves, order_in_waves
from ballast_planner.workbench import Workbench

NOTABLE_FILL = 0.002
MAX_REPLANS = 8
# The largest group of interdependent steps (as in an exchange) that a truncated plan takes together.
MOST_TOGETHER = 32
MOST_TRIED = 1_000


class PlanError(ValueError):
    """The request cannot be planned; the message says why."""


def plan_balance(
    load: ClusterLoad,
    options: PlanOptions | None = None,
    solve_tasks: SolveTasks | None = None,
    now: ClusterLoad | None = None,
) -> Plan:
    """Level brokers and directories together (REB-05); at most `max_moves` partitions, the most useful ones.

    With `solve_tasks`, that function levels the disks inside brokers, one task per broker (REB-06). If `load` is a
    forecast, `now` is the same cluster as it is: the moves must find room in both.
    """
    chosen = options or PlanOptions()
    if chosen.max_moves is not None and load.partitions.topic.size > chosen.max_moves:
        # A truncated plan would make room for giants without getting as far as moving them.
        plan = _balanced(load, replace(chosen, move_giants=False), solve_tasks, now)
        assert plan.quality is not None
        if plan.quality.aim is not None:
            return plan
    return _balanced(load, chosen, solve_tasks, now)


def _balanced(load: ClusterLoad, chosen: PlanOptions, solve_tasks: SolveTasks | None, now: ClusterLoad | None) -> Plan:
    movable = movable_replicas(load, chosen)
    levels = find_levels(load, chosen.band, chosen.high_water, movable)
    bench = Workbench(load, levels, movable)
    if solve_tasks is not None and chosen.within_brokers:
        _pursue_apart(bench, chosen, solve_tasks)
        return _finish_balance(bench, movable, chosen, now)
    prepared = pursue_goals(bench, chosen, SPACE)
    other = Workbench(load, levels, movable)
    if _large_first(other, chosen) and _outdoes(other, bench):
        bench = other
    exact = None if prepared else _exact(bench, levels, movable, chosen)
    if exact is not None:
        plan, left = _finish_once(exact, movable, chosen, now)
        if not left:
            return plan
    return _finish_balance(bench, movable, chosen, now)


def _large_first(bench: Workbench, options: PlanOptions) -> bool:
    """Pursue the goals in the other order, large replicas at once; False, and no more done, if none of those moved."""
    pursue_goals(bench, options, PREPARATION)
    before = len(bench.moved)
    LARGE_AT_ONCE.improve(bench, options)
    if len(bench.moved) == before:
        return False
    pursue_goals(bench, options, AFTER_LARGE)
    return True


def _outdoes(one: Workbench, other: Workbench) -> bool:
    """Whether `one` is better than `other`: by peak, then by distance from the band, then by bytes moved."""
    peaks = [float(bench.fill()[bench.levels.counts].max(initial=0.0)) for bench in (one, other)]
    if abs(peaks[0] - peaks[1]) > NOTABLE_FILL:
        return peaks[0] < peaks[1]
    scores = [score_of(bench, bench.levels) for bench in (one, other)]
    if abs(scores[0].out_of_band - scores[1].out_of_band) > NOTABLE_FILL:
        return scores[0].out_of_band < scores[1].out_of_band
    return (scores[0].network, scores[0].disk) < (scores[1].network, scores[1].disk)


def _finish_balance(bench: Workbench, movable: Bools, options: PlanOptions, now: ClusterLoad | None) -> Plan:
    """The plan; if some of its moves fit into no wave, the most level one of it and of plans without those moves."""
    best, left = _finish_once(bench, movable, options, now)
    given_up: set[tuple[str, int]] = set()
    for _ in range(MAX_REPLANS):
        if not left:
            break
        given_up |= left
        bench = _without(bench, movable, given_up)
        pursue_goals(bench, options, AFTER_LARGE)
        plan, left = _finish_once(bench, movable, options, now)
        if _more_level(plan, best):
            best = plan
    return best


def _finish_once(
    bench: Workbench, movable: Bools, options: PlanOptions, now: ClusterLoad | None
) -> tuple[Plan, set[tuple[str, int]]]:
    """The plan, and the partitions whose moves fit into no wave, as can happen to exchanges on full disks."""
    pursue_goals(bench, options, PREFERENCES)
    load, levels = bench.load, bench.levels
    ordered = by_gain(load, levels.upper, levels.lower, steps_of(bench))
    steps = _useful(load, levels, ordered, options.max_moves)
    plan = finish(load, levels, movable, steps, options, must_not_worsen=True, now=now)
    if len(steps) < len(ordered):
        plan = _with_aim(plan, finish(load, levels, movable, ordered, options, must_not_worsen=True, now=now))
    left = {(step.topic, step.partition) for step in steps} if len(plan.moves) < len(steps) else set()
    return plan, left - {(move.topic, move.partition) for move in plan.moves}


def _with_aim(plan: Plan, whole: Plan) -> Plan:
    """Add to a truncated plan what the `whole` would reach: in a large cluster the first moves alone may neither lower
    the fullest directory nor raise the emptiest."""
    assert plan.quality is not None
    assert whole.quality is not None
    to_follow = max(len(whole.moves) - len(plan.moves), 0)
    return replace(plan, quality=replace(plan.quality, to_follow=to_follow, aim=whole.quality.after))


def _without(bench: Workbench, movable: Bools, given_up: set[tuple[str, int]]) -> Workbench:
    """The same workbench with these partitions back where they were, and fixed there."""
    rows = bench.load.partition_index()
    partitions = np.array(sorted(rows[name] for name in given_up), dtype=np.int64)
    stays = np.isin(bench.load.replicas.partition, partitions)
    again = Workbench(bench.load, bench.levels, movable & ~stays)
    for replica in bench.moved:
        if not stays[replica]:
            again.move(replica, int(bench.directory[replica]))
    return again


def _more_level(one: Plan, other: Plan) -> bool:
    """Whether a plan leaves the cluster notably more level than the other does."""
    assert one.quality is not None
    assert other.quality is not None
    here, there = one.quality.after, other.quality.after
    if abs(here.highest - there.highest) > NOTABLE_FILL:
        return here.highest < there.highest
    return here.out_of_band < there.out_of_band


def plan_racks(load: ClusterLoad, options: PlanOptions | None = None, now: ClusterLoad | None = None) -> Plan:
    """Spread partitions over as many racks as possible, and nothing else; at most `max_moves` of them."""
    chosen = options or PlanOptions()
    movable = movable_replicas(load, chosen)
    levels = find_levels(load, chosen.band, chosen.high_water, movable)
    bench = Workbench(load, levels, movable)
    racks.improve(bench, chosen)
    ordered = by_gain(load, levels.upper, levels.lower, steps_of(bench))
    steps = ordered[: chosen.max_moves]
    plan = finish(load, levels, movable, steps, chosen, must_not_worsen=True, now=now)
    if len(steps) == len(ordered):
        return plan
    return _with_aim(plan, finish(load, levels, movable, ordered, chosen, must_not_worsen=True, now=now))


def plan_drain(
    load: ClusterLoad,
    brokers: Collection[int] = (),
    directories: Collection[tuple[int, str]] = (),
    options: PlanOptions | None = None,
) -> Plan:
    """Move everything off these brokers and directories; replicas with no place to go are in `unplaced`."""
    chosen = options or PlanOptions()
    _require_known(load, brokers, directories)
    names = [load.directory_name(index) for index in range(load.directories.total.size)]
    gone = np.array([name in set(directories) or name[0] in set(brokers) for name in names], dtype=np.bool_)
    broker_gone = np.isin(load.brokers.ids, np.array(sorted(brokers), dtype=np.int64))
    leaving = broker_gone[load.replicas.broker] | np.append(gone, False)[load.replicas.directory]
    movable = leaving & has_a_source(load)
    levels = find_levels(load, chosen.band, chosen.high_water, movable, gone)
    bench = Workbench(load, levels, movable)
    evacuation.evacuate(bench, np.flatnonzero(movable), chosen)
    stayed = leaving & (bench.directory == load.replicas.directory) & (bench.broker == load.replicas.broker)
    reason = "no directory may take it: brokers of its other replicas, racks and room leave none"
    unplaced = [_unplaced(load, int(replica), reason) for replica in np.flatnonzero(stayed & movable)]
    no_source = "no live replica to copy it from"
    unplaced += [_unplaced(load, int(replica), no_source) for replica in np.flatnonzero(leaving & ~movable)]
    ordered = by_gain(load, levels.upper, levels.lower, steps_of(bench))
    return finish(load, bench.levels, movable, ordered, chosen, unplaced=unplaced)


def plan_add_brokers(load: ClusterLoad, brokers: Collection[int], options: PlanOptions | None = None) -> Plan:
    """Give new brokers their share; replicas move only to them, never between the others."""
    chosen = options or PlanOptions()
    _require_known(load, brokers, ())
    others = [int(broker) for broker in load.brokers.ids if int(broker) not in set(brokers)]
    movable = movable_replicas(load, chosen)
    levels = find_levels(load, chosen.band, chosen.high_water, movable)
    new = np.isin(load.brokers.ids, np.array(sorted(brokers), dtype=np.int64))[load.directories.broker]
    closed = replace(levels, open=levels.open & new)
    bench = Workbench(load.with_cordons(others), closed, movable)
    pursue_goals(bench, replace(chosen, level_leaders=False, level_traffic=False, repair_racks=False))
    steps = _useful(load, levels, by_gain(load, levels.upper, levels.lower, steps_of(bench)), chosen.max_moves)
    return finish(load, levels, movable, steps, chosen, must_not_worsen=True)


def movable_replicas(load: ClusterLoad, options: PlanOptions) -> Bools:
    """Replicas that balancing may touch: readable, not of an excluded topic, of at least `min_size_bytes`."""
    readable = readable_in(load, load.replicas.directory)
    excluded = load.partitions_of(options.excluded_topics)[load.replicas.partition]
    movable: Bools = readable & ~excluded & (load.replicas.size >= options.min_size_bytes)
    return movable


def finish(
    load: ClusterLoad,
    levels: Levels,
    movable: Bools,
    steps: Sequence[Step],
    options: PlanOptions,
    unplaced: Sequence[Unplaced] = (),
    must_not_worsen: bool = False,
    waves: Mapping[tuple[str, int], int] | None = None,
    now: ClusterLoad | None = None,
    asked: bool = False,
) -> Plan:
    """Make a plan of these steps: waves, quality and bounds. Raises if the independent checker finds a fault.

    If the moves were `asked` for by name, that is a PlanError: only the caller can correct it.
    """
    room, wanted = (load, list(steps)) if now is None else with_present(load, now, steps)
    if waves is None:
        placed, stuck, transient = order_in_waves(room, wanted, options.high_water)
    else:
        placed, stuck, transient = follow_waves(room, wanted, options.high_water, waves)
    if must_not_worsen:
        placed, transient = _retract(room, placed, options, levels.counts)
    if now is not None:
        given = {(step.topic, step.partition): step for step in steps}
        placed = [(given[step.topic, step.partition], wave) for step, wave in placed]
    moves = tuple(step.as_move(wave) for step, wave in placed)
    copies = [copy for step, _ in placed for copy in (*step.copies, *step.removed)]
    before = fill_of(load, load.directories.used, levels)
    after = fill_of(load, used_after(load, copies), levels)
    no_room = "no room for the copy while both exist"
    left = () if must_not_worsen else [Unplaced(s.topic, s.partition, s.stuck_broker, no_room) for s in stuck]
    plan = Plan(
        moves=moves,
        quality=quality_of(load, before, after, moves, transient, options),
        bounds=bounds_of(load, levels, movable),
        unplaced=(*unplaced, *left),
    )
    faults = check_plan(load, plan, options.high_water, must_not_worsen=must_not_worsen)
    if now is not None:
        faults += check_plan(now, plan, options.high_water, must_not_worsen, highest=before.highest)
    if faults and asked:
        raise PlanError(faults[0])
    if faults:
        raise AssertionError(f"the planner made a plan that breaks a rule: {faults[0]}")
    return plan


def pursue_goals(bench: Workbench, options: PlanOptions, goals: Sequence[Goal] = ORDER) -> bool:
    """Pursue these goals in order; returns whether `racks` or `giants` moved something, since the exact solution would
    leave those replicas where they are."""
    prepared = False
    for goal in goals:
        before = len(bench.moved)
        goal.improve(bench, options)
        prepared |= goal in (racks, giants) and len(bench.moved) > before
    return prepared


def _pursue_apart(bench: Workbench, options: PlanOptions, solve_tasks: SolveTasks) -> None:
    """Pursue SPACE, but leave the levelling inside brokers to `solve_tasks`."""
    for goal in SPACE:
        if goal is not directories_goal:
            goal.improve(bench, options)
            continue
        for replica, target in sorted(solve_tasks(broker_tasks(bench), options)):
            bench.move(replica, target)


def _exact(bench: Workbench, levels: Levels, movable: Bools, options: PlanOptions) -> Workbench | None:
    """The exact solution if it beats what the goals found, judged by the original `levels`; else None."""
    found = score_of(bench, levels)
    start = Workbench(bench.load, levels, movable)
    moves = solve_exactly(start, found, options)
    for replica, target in moves or ():
        start.move(replica, target)
    score = score_of(start, levels)
    if not moves or not score.better_than(found):
        return None
    if score.out_of_band > 0:
        large.find_levels_anew(start, options)
    return start


def _useful(load: ClusterLoad, levels: Levels, ordered: Sequence[Step], limit: int | None) -> list[Step]:
    """The first `limit` steps that, by themselves, leave every directory within its band or no fuller than before."""
    if limit is None or len(ordered) <= limit:
        return list(ordered)
    used = load.directories.used.copy()
    mark = np.maximum(levels.upper, used)
    kept: list[Step] = []
    waiting = list(ordered)
    while waiting and len(kept) < limit:
        held: list[Step] = []
        for index, step in enumerate(waiting):
            if len(kept) == limit:
                break
            if not _accept(used, mark, step):
                held.append(step)
                continue
            kept.append(waiting[index])
        if len(held) == len(waiting):
            together = _exchanges(used, mark, held, limit - len(kept))
            if not together:
                break
            kept += together
            gone = {id(step) for step in together}
            held = [step for step in held if id(step) not in gone]
        waiting = held
    return kept


def _exchanges(used: Ints, mark: Ints, waiting: Sequence[Step], limit: int) -> list[Step]:
    """Steps that work only together, as in an exchange: one has room for its bytes only once others have left."""
    leaving: dict[int, list[Step]] = {}
    for step in waiting:
        for source in {copy.source for copy in step.copies}:
            leaving.setdefault(source, []).append(step)
    kept: list[Step] = []
    taken: set[int] = set()
    for step in waiting[:MOST_TRIED]:
        if id(step) not in taken and len(kept) < limit:
            group = _group(used.copy(), mark, step, leaving, taken, min(limit - len(kept), MOST_TOGETHER))
            for one in group:
                _carry_out(used, one)
            taken.update(id(one) for one in group)
            kept += group
    return kept


def _group(
    used: Ints, mark: Ints, first: Step, leaving: Mapping[int, Sequence[Step]], taken: Collection[int], most: int
) -> list[Step]:
    """This step and those that make room for it and for each other; empty if `most` of them do not suffice."""
    group, inside = [first], {*taken, id(first)}
    _carry_out(used, first)
    while over := sorted({c.target for step in group for c in step.copies if used[c.target] > mark[c.target]}):
        source = over[0]
        need = int(used[source] - mark[source])
        others = [step for step in leaving.get(source, ()) if id(step) not in inside]
        if not others or len(group) == most:
            return []
        freed = [sum(copy.freed for copy in step.copies if copy.source == source) for step in others]
        best = min(range(len(others)), key=lambda index: (freed[index] < need, abs(freed[index] - need)))
        group.append(others[best])
        inside.add(id(others[best]))
        _carry_out(used, others[best])
    return group


def _accept(used: Ints, mark: Ints, step: Step) -> bool:
    if any(used[copy.target] + copy.size > mark[copy.target] for copy in step.copies):
        return False
    _carry_out(used, step)
    return True


def _carry_out(used: Ints, step: Step) -> None:
    for copy in step.copies:
        used[copy.target] += copy.size
        if copy.source >= 0:
            used[copy.source] -= copy.freed


def _retract(
    load: ClusterLoad, placed: list[tuple[Step, int]], options: PlanOptions, counts: Bools
) -> tuple[list[tuple[Step, int]], float]:
    """Drop steps into directories that would end fuller than the fullest one (of those that count) was before.

    The cause may be moves that were left out, or data that is forecast to shrink. A failed directory does not count: it
    does not say how full others may become. If the present directories follow the forecast ones (`with_present`), the
    higher of both limits holds for them: else, while all are level, nothing could leave one that is about to fill.
    """
    total, before = load.directories.total, load.directories.used
    limit = _highest_of_each(load, counts)
    steps = [step for step, _ in placed]
    while True:
        used = used_after(load, (copy for step in steps for copy in step.copies))
        over = np.flatnonzero((used / total > limit + 1e-12) & (used > before))
        if not over.size:
            break
        guilty = next(i for i in reversed(range(len(steps))) if any(c.target == over[0] for c in steps[i].copies))
        del steps[guilty]
    ordered, stuck, transient = order_in_waves(load, steps, options.high_water)
    if stuck and len(ordered) < len(placed):
        return _retract(load, ordered, options, counts)
    return ordered, transient


def _highest_of_each(load: ClusterLoad, counts: Bools) -> Floats:
    """How full each directory may end, including those of `with_present` that follow the forecast ones."""
    filled = (load.directories.used / load.directories.total).reshape(-1, counts.size)
    return np.maximum.accumulate(filled[:, counts].max(axis=1, initial=0.0)).repeat(counts.size)


def has_a_source(load: ClusterLoad) -> Bools:
    """Replicas whose data can be read: from their own directory, or from another live replica."""
    readable = readable_in(load, load.replicas.directory)
    copies = np.bincount(load.replicas.partition[readable], minlength=load.partitions.topic.size)
    source: Bools = copies[load.replicas.partition] > 0
    return source


def _unplaced(load: ClusterLoad, replica: int, reason: str) -> Unplaced:
    topic, number = load.partition_name(int(load.replicas.partition[replica]))
    return Unplaced(topic, number, int(load.brokers.ids[load.replicas.broker[replica]]), reason)


def _require_known(load: ClusterLoad, brokers: Collection[int], directories: Collection[tuple[int, str]]) -> None:
    known = {int(broker) for broker in load.brokers.ids}
    unknown = sorted(set(brokers) - known)
    if unknown:
        raise PlanError(f"broker {unknown[0]} is not known to the cluster")
    named = load.directory_index()
    for broker, path in directories:
        if (broker, path) not in named:
            raise PlanError(f"broker {broker} has no directory {path}")
