"""Groups of the classic protocol under random schedules of faults; planted coordinator bugs must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.classic import ClassicRun
from tests.sim.planted import Plant, Planting
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.coordinator import rebalance, records
from ballast_broker.coordinator.effects import Effect, StoreAssignment
from ballast_broker.coordinator.group import Group, Ticket
from ballast_broker.coordinator.rebalance import GroupLimits, Now, SyncAsk
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_wire.errors import ErrorCode

pytestmark = [pytest.mark.spec("CLI-04"), pytest.mark.timeout(120)]

PLAN = Plan(seconds=40.0)
SEEDS = range(200, 208)


def test_a_generation_has_one_plan_and_what_it_commits_stays() -> None:
    run = simulate(0, PLAN, ClassicRun)
    assert isinstance(run, ClassicRun)
    assert len(run.classics.told.plans) > 3
    assert run.classics.told.acked.keys() == {*range(PLAN.partitions)}


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), ClassicRun, PLAN)


def ask_nobody_for_its_generation(patch: Planting) -> None:
    patch.setattr(GroupCoordinator, "_check_committer", lambda *arguments: None)


def forget_the_generation_with_the_coordinator(patch: Planting) -> None:
    decode = records.decode_group

    def forgetful(*arguments: Any) -> Group:
        group = decode(*arguments)
        group.generation = 0
        return group

    patch.setattr(records, "decode_group", forgetful)


def tell_a_plan_before_it_is_replicated(patch: Planting) -> None:
    sync: Callable[..., list[Effect]] = rebalance.sync

    def at_once(group: Group, ask: SyncAsk, ticket: Ticket, now: Now) -> list[Effect]:
        effects = sync(group, ask, ticket, now)
        plans = [each for each in effects if isinstance(each, StoreAssignment)]
        told = [rebalance.assignment_stored(group, each, ErrorCode.NONE, GroupLimits(), now) for each in plans]
        return [*effects, *(each for answers in told for each in answers)]

    patch.setattr(rebalance, "sync", at_once)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_a_coordinator_that_errs_is_found() -> None:
    plants: list[Plant] = [
        ask_nobody_for_its_generation,
        forget_the_generation_with_the_coordinator,
        tell_a_plan_before_it_is_replicated,
    ]
    check_that_all_are_found(plants, ClassicRun, PLAN)
