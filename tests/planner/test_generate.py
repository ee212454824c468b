"""Generating a plan for everything is balancing: both reach the same level."""

from __future__ import annotations

import pytest
from tests.planner.clusters import skewed_disks

from ballast_planner.balance import plan_balance
from ballast_planner.model import Broker, ClusterLoad, Directory, Replica
from ballast_planner.options import PlanOptions
from ballast_planner.targets import plan_generate


@pytest.mark.spec("REB-05")
@pytest.mark.parametrize("disks", [2, 3, 5])
def test_all_topics_onto_all_brokers_is_a_balance(disks: int) -> None:
    load = skewed_disks(disks)
    generated = plan_generate(load, None, [int(broker) for broker in load.brokers.ids])
    balanced = plan_balance(load, PlanOptions(level_leaders=False, level_traffic=False))
    assert generated.moves == balanced.moves
    assert generated.moves


@pytest.mark.spec("REB-05")
def test_replicas_of_a_broker_that_is_down_leave_it_from_their_other_copies() -> None:
    """The one without another copy stays, and that is told."""
    brokers = [Broker(0, "a"), Broker(1, "b"), Broker(2, "b", alive=False)]
    directories = [Directory(broker, "/d", 1_000, 10) for broker in (0, 1)]
    replicas = [
        Replica("two", 0, 2, None, 10, position=0), Replica("two", 0, 0, "/d", 10, is_leader=True, position=1),
        Replica("one", 0, 2, None, 10),
    ]  # fmt: skip
    plan = plan_generate(ClusterLoad.from_rows(brokers, directories, replicas), None, [0, 1])
    assert [(move.topic, move.to.replicas) for move in plan.moves] == [("two", (1, 0))]
    assert [(row.topic, row.broker, row.reason) for row in plan.unplaced] == [
        ("one", 2, "no live replica to copy it from")
    ]
