"""Feature levels change while brokers and five controllers fail; planted bugs in that are found."""

from __future__ import annotations

import pytest
from tests.sim.featured import PLAN, FeaturedRun
from tests.sim.planted import Plant, Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.controller.commands import brokers
from ballast_broker.controller.commands.context import CommandContext
from ballast_broker.controller.commands.partition_change import PartitionChange
from ballast_broker.controller.commands.pieces import Place

pytestmark = [pytest.mark.spec("CLU-04", "CLU-11"), pytest.mark.timeout(120)]

SEEDS = range(700, 708)


def test_levels_go_up_and_down_and_all_becomes_whole() -> None:
    run = simulate(1, PLAN, FeaturedRun)
    assert isinstance(run, FeaturedRun)
    assert run.levels_changed > 3


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), FeaturedRun, PLAN)


def forget_who_was_eligible_with_elr(patch: Planting) -> None:
    patch.setattr(PartitionChange, "_elr_counts", property(lambda self: self.elr_enabled))


def leave_the_eligible_alone_while_elr_is_off(patch: Planting) -> None:
    """A broker that may have lost data is still eligible when ELR is on again."""

    def places(context: CommandContext, broker_id: int, *, clean: bool) -> list[Place]:
        return after_restart(context, broker_id, clean=clean or not context.elr_enabled)

    after_restart = brokers._places_after_restart
    patch.setattr(brokers, "_places_after_restart", places)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_levels_that_err_are_found() -> None:
    plants: list[Plant] = [forget_who_was_eligible_with_elr, leave_the_eligible_alone_while_elr_is_off]
    check_that_all_are_found(plants, FeaturedRun, PLAN)
