"""The operator behind an API that fails in every way, killed now and then: the end is right, nothing is done twice."""

from __future__ import annotations

import pytest
from tests.operator.ordeal import Ordeal, Settings
from tests.operator.world import World

pytestmark = pytest.mark.timeout(300)
FAULTS = {"conflict", "too_many", "unavailable", "internal", "lost_answer", "doubled", "dropped", "outage"}


@pytest.mark.spec("OPR-04")
@pytest.mark.spec("OPR-35")
def test_killed_behind_an_api_that_fails_everything_ends_as_it_should(ballast_world: World) -> None:
    settings = Settings(seed=7, topics=20, reassignments=3, kills=2, outages=2)
    verdict = Ordeal(ballast_world, settings).run()
    assert verdict.findings == []
    assert verdict.kills == 2
    assert verdict.faults.keys() >= FAULTS
