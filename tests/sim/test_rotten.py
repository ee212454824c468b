"""One replica's disk corrupts data; a broker that ignores that is found."""

from __future__ import annotations

import pytest
from tests.sim.planted import Planting, found_by
from tests.sim.rotten import PLAN, RottenRun
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.storage.loading import _Loading

pytestmark = [pytest.mark.spec("LOG-40", "LOG-41", "REP-24"), pytest.mark.timeout(120)]

SEEDS = range(6100, 6112)


def test_what_one_disk_spoils_the_others_have() -> None:
    """The broker that shuts down last and returns first has lost data meanwhile."""
    run = simulate(6, PLAN, RottenRun)
    assert isinstance(run, RottenRun)
    assert run.times_spoilt > 3


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), RottenRun, PLAN)


@found_by(4)
def lead_with_what_is_left(patch: Planting) -> None:
    """A broker tells nobody that its log had to be truncated after a clean shutdown."""
    check = _Loading._check_tail

    def silently(self: _Loading) -> bool:
        check(self)
        return False

    patch.setattr(_Loading, "_check_tail", silently)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_a_broker_that_does_not_mind_is_found() -> None:
    check_that_all_are_found([lead_with_what_is_left], RottenRun, PLAN)
