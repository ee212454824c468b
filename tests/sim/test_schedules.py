"""Random schedules of faults over whole nodes; a failing seed is printed with its trace, and replays exactly.

`SIM_SEEDS=100-200` plays other seeds; the long run is `./ballast soak sim`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.sim.classic import ClassicRun
from tests.sim.clocks import ClockedRun
from tests.sim.controllers_apart import PLAN as OF_APART
from tests.sim.controllers_apart import ControllersApartRun
from tests.sim.featured import PLAN as FEATURED
from tests.sim.featured import FeaturedRun
from tests.sim.follower_fetching import PLAN as OF_FOLLOWER_FETCHING
from tests.sim.follower_fetching import FollowerFetchingRun
from tests.sim.loop import run
from tests.sim.mixed import PLAN as OF_MIXED
from tests.sim.mixed import MixedRun
from tests.sim.quotas import PLAN as OF_QUOTAS
from tests.sim.quotas import QuotasRun
from tests.sim.schedule import Plan, Run
from tests.sim.slow_disks import SlowDisksRun
from tests.sim.throttled import PLAN as THROTTLED
from tests.sim.throttled import ThrottledRun
from tests.sim.voters import UpgradedRun, VotersRun

DEFAULT_SEEDS = "0-10"


def seeds() -> range:
    first, _, last = os.environ.get("SIM_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last or int(first) + 1))


@pytest.mark.spec("REP-24")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds())
def test_schedule(seed: int) -> None:
    simulate(seed, Plan())


OF_KINDS = {
    Run: Plan(), MixedRun: OF_MIXED, ControllersApartRun: OF_APART, ClassicRun: Plan(), SlowDisksRun: Plan(),
    FollowerFetchingRun: OF_FOLLOWER_FETCHING, ThrottledRun: THROTTLED, UpgradedRun: Plan(), FeaturedRun: FEATURED,
    ClockedRun: Plan(), QuotasRun: OF_QUOTAS,
}  # fmt: skip
OFTEN = {Run, MixedRun}


@pytest.mark.spec("REP-24")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in OFTEN else pytest.mark.simulation) for kind in OF_KINDS]
)
def test_a_schedule_replays_exactly_whatever_was_played_before(kind: type[Run]) -> None:
    plan = OF_KINDS[kind]
    first = simulate(412, plan, kind)
    simulate(3, Plan(seconds=5.0))
    again = simulate(412, plan, kind)
    assert again.trace == first.trace
    assert again.ledger == first.ledger
    assert again.fabric.rng.getstate() == first.fabric.rng.getstate()  # as many messages and random draws


PRINT_A_RUN = """
from tests.sim.test_schedules import Plan, simulate
played = simulate(12, Plan())
print(*played.trace, played.fabric.messages, played.fabric.rng.random(), sep="\\n")
"""


@pytest.mark.simulation
@pytest.mark.spec("REP-24")
@pytest.mark.timeout(240)
def test_a_schedule_is_the_same_in_every_process() -> None:
    """Else a failing seed would not fail where it is replayed: a set of names has another order in each process."""
    path = os.pathsep.join(sys.path)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PRINT_A_RUN],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": order},
            stdout=subprocess.PIPE, check=True, timeout=120,
        ).stdout
        for order in ("0", "1")
    )  # fmt: skip
    assert b"quiet" in first
    assert first == second


def simulate(seed: int, plan: Plan, kind: type[Run] = Run) -> Run:
    runs: list[Run] = []

    async def main() -> None:
        runs.append(kind(seed, plan))
        await runs[0].play()

    try:
        run(main(), kind.kind_of_loop)
    except BaseException:
        if runs:
            print(f"\nseed {seed} failed; what happened:")
            print("\n".join(runs[0].trace[-60:]))
        raise
    return runs[0]


@pytest.mark.spec("CLU-05")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [VotersRun, UpgradedRun])
def test_a_schedule_in_which_voters_come_and_go(kind: type[VotersRun]) -> None:
    played = simulate(1, Plan(seconds=20.0), kind)
    assert isinstance(played, VotersRun)
    assert played.changes > 5


@pytest.mark.spec("CLU-02", "CLU-11", "REP-23")
@pytest.mark.timeout(120)
def test_a_schedule_with_five_controllers_apart() -> None:
    simulate(1, replace(OF_APART, seconds=15.0), ControllersApartRun)
