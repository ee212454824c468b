"""Generating a plan for everything is balancing: both reach the same level."""

from __future__ import annotations

import pytest
from tests.planner.clusters import skewed_disks

from ballast_planner.balance import plan_balance
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
