"""Schedules in which directories are away over restarts; `SIM_DIRECTORIES=100-200` plays others."""

from __future__ import annotations

import os

import pytest
from tests.sim.directories import DirectoriesRun
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_hold
from tests.sim.test_schedules import simulate

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
