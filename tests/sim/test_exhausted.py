"""Producers exhaust their epochs while brokers fail; a broker that then treats them as unknown is found."""

from __future__ import annotations

import pytest
from tests.sim.exhausted import PLAN, ExhaustedRun
from tests.sim.planted import Plant, Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.coordinator import transactions

pytestmark = [pytest.mark.spec("CLI-05"), pytest.mark.timeout(120)]

SEEDS = range(900, 906)


def test_ids_come_to_an_end_and_nothing_else_does() -> None:
    run = simulate(6, PLAN, ExhaustedRun)
    assert isinstance(run, ExhaustedRun)
    assert run.new_ids() > 3


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), ExhaustedRun, PLAN)


def take_who_was_told_a_new_id_for_a_stranger(patch: Planting) -> None:
    patch.setattr(transactions, "_is_to_be", lambda now, producer: False)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_mistakes_with_new_ids_are_found() -> None:
    plants: list[Plant] = [take_who_was_told_a_new_id_for_a_stranger]
    check_that_all_are_found(plants, ExhaustedRun, PLAN)
