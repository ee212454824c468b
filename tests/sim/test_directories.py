"""Schedules in which directories fail over restarts; `SIM_DIRECTORIES=100-200` plays other seeds."""

from __future__ import annotations

import os

import pytest
from tests.sim.controllers_apart import PLAN as OF_APART
from tests.sim.directories import ControllersApartDirectoriesRun, DirectoriesRun
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_hold, many
from tests.sim.test_schedules import simulate

APART = range(3)
MANY = os.environ.get("SIM_DIRECTORIES", "3-60")


@pytest.mark.spec("DIR-04", "DIR-31", "DIR-43")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_a_directory_is_away_while_its_broker_restarts(seed: int) -> None:
    simulate(seed, Plan(), DirectoriesRun)


@pytest.mark.simulation
@pytest.mark.spec("DIR-04", "DIR-31", "DIR-43")
@pytest.mark.timeout(1200)
def test_everything_holds_while_directories_come_and_go() -> None:
    first, _, last = MANY.partition("-")
    check_that_all_hold(range(int(first), int(last)), DirectoriesRun)


@pytest.mark.simulation
@pytest.mark.spec("DIR-04", "DIR-31", "CLU-02", "REP-23")
@pytest.mark.timeout(600)
def test_everything_holds_while_controllers_that_are_apart_fail_as_well() -> None:
    check_that_all_hold(many(APART), ControllersApartDirectoriesRun, OF_APART)
