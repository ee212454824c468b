"""Clients exceed their quotas while brokers fail: what was acknowledged is there, and throttled clients get answers."""

from __future__ import annotations

import pytest
from tests.sim.planted import Planting, found_by
from tests.sim.quotas import PLAN, QuotasRun
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.api.client_quotas import Throttle
from ballast_broker.replication.quotas import ByteRate

pytestmark = [pytest.mark.spec("CLI-11"), pytest.mark.timeout(120)]

SEEDS = range(800, 805)


def test_who_is_over_its_quota_is_answered() -> None:
    run = simulate(1, PLAN, QuotasRun)
    assert isinstance(run, QuotasRun)
    assert run.told_to_wait > 3
    assert run.answered > 20


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), QuotasRun, PLAN)


@found_by(1)
def hold_for_longer_than_is_told(patch: Planting) -> None:
    whole = ByteRate.wait_s
    patch.setattr(ByteRate, "wait_s", lambda self: 1000 * whole(self))
    patch.setattr(Throttle, "left_ms", property(lambda self: 0))


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_who_is_not_read_from_for_longer_than_it_was_told_is_found() -> None:
    check_that_all_are_found([hold_for_longer_than_is_told], QuotasRun, PLAN)
