"""Nodes whose clocks differ, drift and step: all invariants hold, and code that uses the wrong clock is found."""

from __future__ import annotations

import pytest
from tests.sim.clocks import CALM, MINUTE_MS, ClockedRun, OnlyClocksRun
from tests.sim.planted import Plant, Planting
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.coordinator.rebalance import Now
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.storage import retention
from ballast_broker.storage.segment import Segment

pytestmark = [pytest.mark.spec("REP-24", "LOG-10"), pytest.mark.timeout(120)]

SEEDS = range(700, 706)
CALM_SEEDS = range(700, 703)


def test_nobody_is_missed_where_only_clocks_step() -> None:
    run = simulate(2, CALM, OnlyClocksRun)
    assert isinstance(run, OnlyClocksRun)
    assert run.steps > 10
    assert run.mirror.begins_at > 20


def test_a_schedule_with_wrong_clocks() -> None:
    run = simulate(1, Plan(seconds=20.0), ClockedRun)
    assert isinstance(run, ClockedRun)
    assert run.steps > 5


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), ClockedRun)


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules_where_only_clocks_step() -> None:
    check_that_all_hold(many(CALM_SEEDS), OnlyClocksRun, CALM)


def count_age_from_when_it_was_written(patch: Planting) -> None:
    patch.setattr(Segment, "retention_timestamp", lambda self: self.disk.modified_ms(self.path()))


def end_sessions_by_the_wall_clock(patch: Planting) -> None:
    def now(self: GroupCoordinator) -> Now:
        return Now(self._clock.wall_ms(), self._clock.wall_ms())

    patch.setattr(GroupCoordinator, "_now", now)


def delete_too_early(patch: Planting) -> None:
    whole = retention._is_older
    patch.setattr(retention, "_is_older", lambda log, segment, than_ms: whole(log, segment, than_ms + 90 * MINUTE_MS))


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_who_reckons_by_the_wrong_clock_is_found() -> None:
    plants: list[Plant] = [count_age_from_when_it_was_written, delete_too_early, end_sessions_by_the_wall_clock]
    check_that_all_are_found(plants, OnlyClocksRun, CALM)
