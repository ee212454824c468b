"""Replicas are reassigned and moved under throttles while brokers fail; planted bugs in throttles must be found."""

from __future__ import annotations

import pytest
from tests.sim.planted import Plant, Planting, found_by
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate
from tests.sim.throttled import PLAN, ThrottledRun

from ballast_broker.replication.fetcher import FetcherGroup
from ballast_broker.replication.quotas import LeaderThrottle

pytestmark = [pytest.mark.spec("REP-30", "DIR-26"), pytest.mark.timeout(120)]

SEEDS = range(500, 512)


def test_who_is_in_sync_is_not_held_back_and_all_becomes_whole() -> None:
    run = simulate(5, PLAN, ThrottledRun)
    assert isinstance(run, ThrottledRun)
    assert run.seen_in_sync > 1


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), ThrottledRun, PLAN)


@found_by(1)
def hold_back_who_is_in_sync(patch: Planting) -> None:
    patch.setattr(LeaderThrottle, "_throttled", lambda self, replica, follower: replica.leader_throttled)


@found_by(1)
def leave_out_what_was_left_out_once(patch: Planting) -> None:
    """A follower never fetches a partition again that was once throttled, even after the throttle is removed."""

    def leave_out(self: FetcherGroup) -> None:
        before = set(self._throttled_out)
        whole(self)
        for key in before - self._throttled_out:
            if key in self.partitions:
                self._throttled_out.add(key)
                self._session.want(key, None)

    whole = FetcherGroup._leave_out_throttled
    patch.setattr(FetcherGroup, "_leave_out_throttled", leave_out)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_a_throttle_that_errs_is_found() -> None:
    plants: list[Plant] = [hold_back_who_is_in_sync, leave_out_what_was_left_out_once]
    check_that_all_are_found(plants, ThrottledRun, PLAN)
