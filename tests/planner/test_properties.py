"""No plan breaks a hard limit, makes the worst disk worse or moves a replica twice; same input, same plan."""

import random
from collections import Counter

import pytest
from bench.planner_optimum import distance_after
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planner.clusters import apply_moves, cluster_loads

from ballast_planner import (
    ClusterLoad,
    Move,
    Plan,
    PlanOptions,
    Target,
    check_plan,
    plan_add_brokers,
    plan_balance,
    plan_drain,
    plan_explicit,
    plan_generate,
    plan_hash,
    plan_racks,
    plan_replication_factor,
)

OPTIONS = PlanOptions(exact_binaries=0)
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fills(load: ClusterLoad) -> list[float]:
    return (load.directories.used / load.directories.total).tolist()


def assert_hard_limits(load: ClusterLoad, moves: tuple[Move, ...]) -> None:
    """Counted here once more, from rows, apart from the checker."""
    assert max(Counter((move.topic, move.partition) for move in moves).values(), default=1) == 1
    after = apply_moves(load, moves)
    before_fill, after_fill = fills(load), fills(after)
    for index, (old, new) in enumerate(zip(before_fill, after_fill, strict=True)):
        closed = bool(load.directories.cordoned[index]) or not bool(load.directories.online[index])
        assert not (closed and new > old + 1e-9)
        assert new <= max(old, 0.95) + 1e-9
    for move in moves:
        assert len(set(move.to.replicas)) == len(move.to.replicas)


@pytest.mark.spec("REB-05")
@SETTINGS
@given(cluster_loads())
def test_balance_holds_every_hard_limit(load: ClusterLoad) -> None:
    plan = plan_balance(load, OPTIONS)
    assert_hard_limits(load, plan.moves)
    assert max(fills(apply_moves(load, plan.moves)), default=0.0) <= max(fills(load), default=0.0) + 1e-9


@pytest.mark.spec("REB-05", "REB-08")
@SETTINGS
@given(cluster_loads())
def test_spreading_over_racks_moves_nothing_else_and_holds_every_hard_limit(load: ClusterLoad) -> None:
    plan = plan_racks(load, OPTIONS)
    assert_hard_limits(load, plan.moves)
    assert plan.quality is not None
    assert plan.quality.on_more_racks == len(plan.moves)
    assert max(fills(apply_moves(load, plan.moves)), default=0.0) <= max(fills(load), default=0.0) + 1e-9


@pytest.mark.spec("REB-07")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster_loads(cordons=False))
def test_exact_plan_is_never_worse_than_the_goals(load: ClusterLoad) -> None:
    rough = plan_balance(load, PlanOptions(exact_binaries=0, level_leaders=False))
    exact = plan_balance(load, PlanOptions(exact_binaries=200, exact_nodes=20, level_leaders=False))
    assert_hard_limits(load, exact.moves)
    assert rough.quality is not None
    assert exact.quality is not None
    nearer = distance_after(load, OPTIONS, rough) - distance_after(load, OPTIONS, exact)
    assert nearer > -1e-9
    if nearer < 1e-9:
        assert (exact.quality.bytes_network, exact.quality.bytes_disk) <= (
            rough.quality.bytes_network,
            rough.quality.bytes_disk,
        )


@pytest.mark.spec("REB-07")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster_loads())
def test_same_input_same_plan(load: ClusterLoad) -> None:
    options = PlanOptions(exact_binaries=100, exact_nodes=10)
    assert plan_hash(plan_balance(load, options)) == plan_hash(plan_balance(load, options))


@pytest.mark.spec("REB-07")
@SETTINGS
@given(cluster_loads())
def test_a_levelled_cluster_is_left_alone(load: ClusterLoad) -> None:
    """The level itself may change: where a directory that takes nothing new has sunk, and where a replica stands out of
    the band of any directory."""
    options = PlanOptions(exact_binaries=0, level_leaders=False, repair_racks=False)
    first = plan_balance(load, options)
    assert first.quality is not None
    again = plan_balance(apply_moves(load, first.moves), options)
    assert again.quality is not None
    assert first.bounds is not None
    assert again.bounds is not None
    if first.quality.after.out_of_band == 0 and again.bounds.level == pytest.approx(first.bounds.level):
        assert again.quality.bytes_network + again.quality.bytes_disk <= (
            first.quality.bytes_network + first.quality.bytes_disk
        )


@pytest.mark.spec("REB-08")
@SETTINGS
@given(cluster_loads(), st.integers(1, 4))
def test_limit_on_moves_never_makes_things_worse(load: ClusterLoad, limit: int) -> None:
    plan = plan_balance(load, PlanOptions(exact_binaries=0, max_moves=limit))
    assert len(plan.moves) <= limit
    assert_hard_limits(load, plan.moves)
    assert max(fills(apply_moves(load, plan.moves)), default=0.0) <= max(fills(load), default=0.0) + 1e-9


@pytest.mark.spec("CLU-33")
@SETTINGS
@given(cluster_loads(cordons=False), st.randoms(use_true_random=False))
def test_drain_empties_or_says_what_is_left(load: ClusterLoad, chance: random.Random) -> None:
    broker = chance.choice(load.brokers.ids.tolist())
    plan = plan_drain(load, brokers=[broker], options=OPTIONS)
    assert_hard_limits(load, plan.moves)
    left = {(item.topic, item.partition) for item in plan.unplaced}
    for index in range(load.partitions.topic.size):
        begin, end = int(load.partitions.first[index]), int(load.partitions.first[index + 1])
        holds = broker in load.brokers.ids[load.replicas.broker[begin:end]].tolist()
        moved = any((move.topic, move.partition) == load.partition_name(index) for move in plan.moves)
        assert holds == (moved or load.partition_name(index) in left)
    assert all(broker not in move.to.replicas for move in plan.moves)


@pytest.mark.spec("CLU-33")
@SETTINGS
@given(cluster_loads(cordons=False))
def test_new_brokers_only_receive(load: ClusterLoad) -> None:
    broker = int(load.brokers.ids[-1])
    plan = plan_add_brokers(load, [broker], OPTIONS)
    assert_hard_limits(load, plan.moves)
    for move in plan.moves:
        assert set(move.to.replicas) - set(move.from_.replicas) <= {broker}


@pytest.mark.spec("CLU-34")
@SETTINGS
@given(cluster_loads(cordons=False), st.integers(1, 5))
def test_replication_factor_is_reached_or_the_shortfall_named(load: ClusterLoad, factor: int) -> None:
    plan = plan_replication_factor(load, dict.fromkeys(load.topics, factor), OPTIONS)
    left = {(item.topic, item.partition) for item in plan.unplaced}
    assert not check_plan(load, plan, OPTIONS.high_water)
    for move in plan.moves:
        assert len(move.to.replicas) == factor or (move.topic, move.partition) in left
        assert move.to.replicas[0] == move.from_.replicas[0]


@pytest.mark.spec("CLU-32")
@SETTINGS
@given(cluster_loads(cordons=False))
def test_generated_plan_uses_only_the_brokers_named(load: ClusterLoad) -> None:
    brokers = load.brokers.ids.tolist()[: max(1, load.brokers.ids.size - 1)]
    plan = plan_generate(load, None, brokers, OPTIONS)
    assert_hard_limits(load, plan.moves)
    stuck = {(item.topic, item.partition) for item in plan.unplaced}
    for move in plan.moves:
        if (move.topic, move.partition) not in stuck:
            assert set(move.to.replicas) <= set(brokers)


@pytest.mark.spec("OPR-32")
@SETTINGS
@given(cluster_loads())
def test_a_plan_given_as_rows_is_the_same_plan(load: ClusterLoad) -> None:
    plan = plan_balance(load, OPTIONS)
    rows = [Target(move.topic, move.partition, move.to, move.from_, move.wave) for move in plan.moves]
    assert plan_hash(plan_explicit(load, rows, OPTIONS)) == plan_hash(plan)


@pytest.mark.spec("REB-07")
@SETTINGS
@given(cluster_loads())
def test_the_checker_finds_tampering(load: ClusterLoad) -> None:
    plan = plan_balance(load, OPTIONS)
    for move in plan.moves[:1]:
        twice = Plan((move, move))
        turned = Plan((Move(move.topic, move.partition, move.to, move.from_, 0, 0),))
        assert check_plan(load, twice, 0.95)
        assert check_plan(load, turned, 0.95)
