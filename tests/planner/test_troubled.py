"""Plans for clusters that are not well: dead brokers, replicas of which no directory is known or that lag, disks that
take nothing, forecasts that shrink. Counted from rows, apart from planner and checker."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planner.clusters import apply_moves

from ballast_planner import (
    Broker,
    ClusterLoad,
    Directory,
    Move,
    Placement,
    Plan,
    PlanOptions,
    Replica,
    check_plan,
    plan_balance,
    plan_racks,
)

Name = tuple[int, str]
HIGH_WATER = 0.95


class Rows(NamedTuple):
    brokers: list[Broker]
    directories: list[Directory]
    replicas: list[Replica]

    def load(self, chance: random.Random | None = None) -> ClusterLoad:
        parts: list[list[object]] = [list(part) for part in self]
        for part in parts if chance is not None else ():
            chance.shuffle(part)  # type: ignore[union-attr]
        return ClusterLoad.from_rows(*parts)  # type: ignore[arg-type]

    def fills(self, used: dict[Name, int] | None = None) -> dict[Name, float]:
        return {
            (one.broker, one.path): (one.used_bytes if used is None else used[one.broker, one.path]) / one.total_bytes
            for one in self.directories
        }


@st.composite
def troubled(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """A cluster as it is, and the same one as it is forecast to be."""
    racks = draw(st.sampled_from([0, 0, 2, 3, 6]))
    brokers = [
        Broker(
            10 + index,
            f"rack{draw(st.integers(0, racks - 1))}" if racks else None,
            alive=draw(st.integers(0, 9)) > 0,
            cordoned=draw(st.integers(0, 9)) == 0,
        )
        for index in range(draw(st.integers(2, 6)))
    ]
    disks = {broker.id: draw(st.integers(1, 4)) for broker in brokers}
    alive = {broker.id for broker in brokers if broker.alive}
    replicas: list[Replica] = []
    growth: list[int] = []
    for partition in range(draw(st.integers(0, 30))):
        size = draw(st.integers(0, 400))
        grown = draw(st.sampled_from([0, 0, size, -size // 2, -size]))
        ids = draw(st.permutations([broker.id for broker in brokers]))[: draw(st.integers(1, 3))]
        for position, broker in enumerate(ids):
            known = broker in alive or draw(st.booleans())
            path = f"/d{draw(st.integers(0, disks[broker] - 1))}" if known else None
            own = draw(st.integers(0, size)) if draw(st.integers(0, 7)) == 0 else size
            replicas.append(Replica(f"t{partition % 3}", partition, broker, path, own, position == 0, position))
            growth.append(max(grown, -own))
    used, more = Counter[Name](), Counter[Name]()
    for replica, grown in zip(replicas, growth, strict=True):
        if replica.log_dir is not None:
            used[replica.broker, replica.log_dir] += replica.size_bytes
            more[replica.broker, replica.log_dir] += grown
    now = [
        Directory(
            broker,
            path,
            int(used[broker, path] / draw(st.sampled_from([0.3, 0.5, 0.7, 0.9]))) + 50,
            used[broker, path],
            cordoned=draw(st.integers(0, 14)) == 0,
            online=draw(st.integers(0, 14)) > 0,
        )
        for broker, count in disks.items()
        for path in (f"/d{number}" for number in range(count))
    ]
    ahead = [row._replace(used_bytes=row.used_bytes + more[row.broker, row.path]) for row in now]
    later = [row._replace(size_bytes=row.size_bytes + grown) for row, grown in zip(replicas, growth, strict=True)]
    return Rows(brokers, now, replicas), Rows(brokers, ahead, later)


def carried_out(rows: Rows, moves: Sequence[Move]) -> dict[Name, int]:
    """Bytes per directory in the end; what arrives in a wave is there beside all that leaves in it."""
    used = {(row.broker, row.path): row.used_bytes for row in rows.directories}
    total = {(row.broker, row.path): row.total_bytes for row in rows.directories}
    sizes: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row in rows.replicas:
        sizes[row.topic, row.partition][row.broker] = row.size_bytes
    waves: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        waves[move.wave].append(move)
    for wave in sorted(waves):
        filled: set[Name] = set()
        for move in waves[wave]:
            held = sizes[move.topic, move.partition]
            for broker, path in arrivals(move.from_, move.to):
                used[broker, path] += held.get(broker, max(held.values()))
                filled.add((broker, path))
        assert all(used[name] <= HIGH_WATER * total[name] for name in filled), f"in wave {wave}"
        for move in waves[wave]:
            for broker, path in arrivals(move.to, move.from_):
                if path != "any":
                    used[broker, path] -= sizes[move.topic, move.partition][broker]
    return used


def arrivals(before: Placement, after: Placement) -> list[Name]:
    old = before.as_pairs()
    return [(broker, path) for broker, path in after.as_pairs().items() if old.get(broker) != path]


def living_racks(brokers: Iterable[Broker], ids: Iterable[int]) -> int:
    return len({one.rack for one in brokers if one.alive and one.id in set(ids)} - {None})


def assert_kept_to(rows: Rows, plan: Plan, options: PlanOptions) -> None:
    """What no plan does, whatever state a cluster is in."""
    by_id = {broker.id: broker for broker in rows.brokers}
    shut = {
        (row.broker, row.path)
        for row in rows.directories
        if row.cordoned or not row.online or by_id[row.broker].cordoned or not by_id[row.broker].alive
    }
    for move in plan.moves:
        before, after = set(move.from_.replicas), set(move.to.replicas)
        assert len(after) == len(move.to.replicas) == len(move.from_.replicas)
        assert move.topic not in options.excluded_topics
        assert options.across_brokers or after == before
        assert not shut.intersection(arrivals(move.from_, move.to))
        assert living_racks(rows.brokers, after) >= living_racks(rows.brokers, before)
        assert all(by_id[broker].alive for broker in before - after), "what only that broker has cannot be copied"
        assert by_id[move.to.replicas[0]].alive or not by_id[move.from_.replicas[0]].alive


@pytest.mark.spec("REB-05", "REB-07", "REB-08")
@pytest.mark.parametrize("made_by", [plan_balance, plan_racks])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=troubled(),
    limit=st.sampled_from([None, None, 1, 4]),
    excluded=st.sampled_from([frozenset(), frozenset({"t1"})]),
    across=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_a_plan_for_a_cluster_in_trouble_keeps_to_the_rules(
    made_by: object,
    rows: tuple[Rows, Rows],
    limit: int | None,
    excluded: frozenset[str],
    across: bool,
    chance: random.Random,
) -> None:
    plan_by = plan_balance if made_by is plan_balance else plan_racks
    now, ahead = rows
    options = PlanOptions(
        exact_binaries=150, exact_nodes=10, max_moves=limit, excluded_topics=excluded, across_brokers=across
    )
    plan = plan_by(ahead.load(), options, now=now.load())
    assert plan == plan_by(ahead.load(chance), options, now=now.load(chance)), "whatever order it is told in"
    assert_kept_to(now, plan, options)
    alive = {broker.id for broker in now.brokers if broker.alive}
    counts = {(row.broker, row.path) for row in now.directories if row.online and row.broker in alive}

    def highest(fills: dict[Name, float]) -> float:
        return max((fill for name, fill in fills.items() if name in counts), default=0.0)

    worst = highest(ahead.fills())
    assert highest(ahead.fills(carried_out(ahead, plan.moves))) <= worst + 1e-9
    assert highest(now.fills(carried_out(now, plan.moves))) <= max(worst, highest(now.fills())) + 1e-9


def two_disks(sizes: Sequence[Sequence[int]]) -> ClusterLoad:
    """A broker with two disks of 1,000 bytes."""
    rows = [
        Replica("t", disk * 100 + number, 0, f"/d{disk}", size, True)
        for disk, held in enumerate(sizes)
        for number, size in enumerate(held)
    ]
    directories = [Directory(0, f"/d{disk}", 1_000, sum(held)) for disk, held in enumerate(sizes)]
    return ClusterLoad.from_rows([Broker(0)], directories, rows)


@pytest.mark.spec("REB-04", "REB-08")
def test_what_is_forecast_to_go_makes_no_disk_the_fullest_before_it_has_gone() -> None:
    """The forecast may be wrong, and until then the disk would be all but full."""
    now, ahead = two_disks([[60] * 10, [100] * 7]), two_disks([[60] * 10, [0] * 7])
    plan = plan_balance(ahead, PlanOptions(), now=now)
    gone = sum(move.bytes_disk for move in plan.moves if move.to.log_dirs == ("/d1",))
    assert 700 + gone - sum(move.bytes_disk for move in plan.moves if move.to.log_dirs == ("/d0",)) <= 700
    assert plan_balance(ahead, PlanOptions()).moves, "by the forecast alone it would be a plan"


@pytest.mark.spec("REB-04")
def test_what_is_forecast_to_fill_leaves_though_all_are_level_today() -> None:
    now, ahead = two_disks([[50] * 10, [50] * 10]), two_disks([[90] * 10, [50] * 10])
    plan = plan_balance(ahead, PlanOptions(), now=now)
    assert {move.to.log_dirs for move in plan.moves} == {("/d1",)}


@pytest.mark.spec("REB-05")
def test_while_a_broker_is_dead_its_rack_counts_for_nothing() -> None:
    """Else the last live replica of a rack might go to where another one is, since a dead one has that rack."""
    brokers = [Broker(1, "a"), Broker(2, "a", alive=False), Broker(3, "b"), Broker(4, "b")]
    rows = [
        Replica("t", number, broker, None if broker == 2 else "/d", 10, broker == 3, position)
        for number in range(60)
        for position, broker in enumerate((2, 3, 1))
    ]
    used = {1: 600, 2: 0, 3: 600, 4: 0}
    load = ClusterLoad.from_rows(brokers, [Directory(b, "/d", 700, held) for b, held in used.items()], rows)
    plan = plan_balance(load, PlanOptions())
    assert plan.moves, "those of the other rack may go"
    for move in plan.moves:
        assert living_racks(brokers, move.to.replicas) == 2
    before, after = Placement((2, 3, 1), ("any", "/d", "/d")), Placement((2, 3, 4), ("any", "/d", "/d"))
    assert check_plan(load, Plan((Move("t", 0, before, after, 10, 0),)), HIGH_WATER) == [
        "t-0: on fewer racks than before"
    ]


@pytest.mark.spec("REB-08")
def test_a_plan_that_is_cut_short_has_those_together_that_need_each_other() -> None:
    """Each broker is level once a large replica has changed places with a small one, of which none has room alone: a
    plan that takes what fits one by one would be empty, and so would all that follow it."""
    replicas: list[Replica] = []
    for broker in range(3):
        for disk, sizes in enumerate(([200] * 4, [100] * 6)):
            begin = len(replicas)
            replicas += [Replica("t", begin + n, broker, f"/d{disk}", size, True) for n, size in enumerate(sizes)]
    directories = [Directory(b, f"/d{d}", 1_000, held) for b in range(3) for d, held in enumerate((800, 600))]
    load = ClusterLoad.from_rows([Broker(broker) for broker in range(3)], directories, replicas)
    options = PlanOptions(band=0.02, max_moves=3, across_brokers=False, level_leaders=False, level_traffic=False)
    left = [6]
    while left[-1]:
        plan = plan_balance(load, options)
        assert plan.quality is not None
        assert len(plan.moves) == 2
        assert plan.quality.after.highest <= plan.quality.before.highest
        left.append(plan.quality.after.out_of_band)
        load = apply_moves(load, plan.moves)
    assert left == [6, 4, 2, 0]
    assert plan_balance(load, options).moves == ()
