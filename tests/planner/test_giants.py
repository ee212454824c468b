"""Replicas that stand out of every directory's band, on disks of different sizes."""

from __future__ import annotations

import itertools

import pytest
from tests.planner.clusters import apply_moves, solve_in_turn

from ballast_planner import Broker, ClusterLoad, Directory, Plan, PlanOptions, Replica, plan_balance
from ballast_planner.parallel import SolveTasks

QUIET = PlanOptions(level_leaders=False)
Disk = tuple[int, list[int]]


def cluster(*brokers: list[Disk], foreign: int = 0) -> ClusterLoad:
    """Each broker's disks: the size of each, and of the replicas on it; others' bytes on the first of all."""
    number = itertools.count()
    replicas, directories = [], []
    for broker, disks in enumerate(brokers):
        for disk, (total, sizes) in enumerate(disks):
            path = f"/d{disk}"
            replicas += [Replica("t", next(number), broker, path, size, True) for size in sizes]
            more = foreign if (broker, disk) == (0, 0) else 0
            directories.append(Directory(broker, path, total, sum(sizes) + more))
    return ClusterLoad.from_rows([Broker(broker) for broker in range(len(brokers))], directories, replicas)


def highest(plan: Plan) -> float:
    assert plan.quality is not None
    return plan.quality.after.highest


@pytest.mark.spec("REB-05")
@pytest.mark.parametrize("options", [QUIET, PlanOptions(level_leaders=False, exact_binaries=0)])
@pytest.mark.parametrize("apart", [None, solve_in_turn])
def test_one_that_all_but_fills_its_disk_goes_to_a_wider_one(options: PlanOptions, apart: SolveTasks | None) -> None:
    load = cluster([(100, [94]), (400, [1]), (400, [1])])
    plan = plan_balance(load, options, apart)
    assert highest(plan) == pytest.approx(94 / 400, abs=0.005)
    again = plan_balance(apply_moves(load, plan.moves), options)
    assert again.quality is not None
    assert again.quality.bytes_disk <= 2, "it stays there"


@pytest.mark.spec("REB-05")
def test_of_several_the_wider_disks_take_the_larger_ones_and_small_ones_make_room() -> None:
    load = cluster([(100, [90]), (200, [150])], [(800, [5] * 8), (400, [5] * 8)])
    assert highest(plan_balance(load, QUIET)) <= 0.25
    alone = plan_balance(load, PlanOptions(level_leaders=False, across_brokers=False))
    assert highest(alone) == 0.9, "within its broker the other one fills the wider disk"


@pytest.mark.spec("REB-08")
def test_a_plan_that_is_cut_short_leaves_them_for_the_last_one() -> None:
    load = cluster([(100, [94]), (400, [1] * 40), (400, [])])
    first = plan_balance(load, PlanOptions(level_leaders=False, max_moves=5))
    assert first.quality is not None
    assert first.quality.aim is not None
    assert first.quality.aim.highest == 0.94
    assert highest(plan_balance(load, PlanOptions(level_leaders=False, max_moves=40))) <= 0.26


@pytest.mark.spec("REB-05")
def test_one_stays_where_it_would_stand_out_as_much_elsewhere() -> None:
    assert not plan_balance(cluster([(400, [350]), (400, []), (410, [])]), QUIET).moves


@pytest.mark.spec("REB-05")
def test_nothing_goes_for_the_sake_of_what_is_fixed() -> None:
    """Where others' bytes fill a disk, its replicas may go, but no large one that stands out less elsewhere."""
    load = cluster([(100, []), (100, [40]), (400, [])], foreign=90)
    assert not plan_balance(load, QUIET).moves


@pytest.mark.spec("REB-05")
def test_one_stays_where_a_wider_disk_has_its_partition_already() -> None:
    replicas = [Replica("t", 0, broker, "/d0", 90, broker == 0, broker) for broker in range(2)]
    directories = [Directory(0, "/d0", 100, 90), Directory(1, "/d0", 400, 90), Directory(1, "/d1", 400, 0)]
    load = ClusterLoad.from_rows([Broker(0), Broker(1)], directories, replicas)
    assert not plan_balance(load, QUIET).moves
