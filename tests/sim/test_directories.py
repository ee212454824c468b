"""Schedules in which directories are away over restarts; `SIM_DIRECTORIES=100-200` plays others."""

from __future__ import annotations

import os

import pytest
from tests.sim.directories import DirectoriesRun
from tests.sim.schedule import Plan
from tests.sim.test_many import SEEDS_PER_BUG, fails, pool
from tests.sim.test_schedules import simulate

from ballast_broker.storage.common_end import CommonEnd

MANY = os.environ.get("SIM_DIRECTORIES", "3-60")


def fails_as_directories_come_and_go(seed: int) -> str | None:
    return fails(seed, DirectoriesRun)


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
    seeds = range(int(first), int(last))
    with pool() as workers:
        failed = [
            text for text in workers.map(fails_as_directories_come_and_go, seeds, chunksize=5) if text is not None
        ]
    assert not failed, f"{len(failed)} of {len(seeds)} seeds failed:\n" + "\n".join(failed[:3])


@pytest.mark.simulation
@pytest.mark.interpreted  # what is compiled calls its own, whatever is planted there
@pytest.mark.timeout(600)
def test_a_mistake_in_going_on_with_copies_is_found() -> None:
    with pool() as workers:
        found = [text is not None for text in workers.map(fails_with_copies_that_are_believed, range(SEEDS_PER_BUG))]
    assert any(found)


def fails_with_copies_that_are_believed(seed: int) -> str | None:
    """A move goes on with what an earlier one has left, as if the log had not changed since."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommonEnd, "find", lambda self: self._future._log.end_offset)
        return fails(seed, DirectoriesRun)
