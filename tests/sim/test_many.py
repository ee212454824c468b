"""The simulation at CI's length, and the proof that it finds planted bugs.

CI plays as many seeds as it has minutes for. All others are played by hand: `SIM_MANY=1000-3000` replaces the seeds of
each test that plays many, here and beside; `./ballast soak sim` plays thousands. To replay a failing seed alone:
`SIM_SEEDS=SEED ./ballast test tests/sim/test_schedules.py`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import NamedTuple

import pytest
from tests.sim.controllers_apart import PLAN as OF_APART
from tests.sim.controllers_apart import ControllersApartRun
from tests.sim.deleting import DeletingRun
from tests.sim.planted import (
    BUGS,
    FOUND_BY,
    OF_CHANGING_VOTERS,
    OF_CONTROLLERS_APART,
    OF_DELETING,
    Plant,
    Planting,
)
from tests.sim.schedule import Plan, Run
from tests.sim.test_schedules import simulate
from tests.sim.voters import UpgradedRun, VotersRun

# Seeds below 10 are those of `test_schedules.py`. A compiled run takes 2 to 4 seconds of a processor, 5 to 10 with five
# controllers apart.
MANY = range(10, 70)
OF_VOTERS = range(24)
OF_FIVE = range(6)
WORKERS = 2
NICENESS = 10
# The bug that is found least often is found by every seventh seed, so by some of these in any order of events.
SEEDS_PER_BUG = 72


def many(otherwise: range) -> range:
    first, _, last = os.environ.get("SIM_MANY", "").partition("-")
    return range(int(first), int(last)) if last else otherwise


def settle_down() -> None:
    """Prepare a process that plays one seed after the other: it collects garbage mostly between seeds, and never looks
    at what existed before the first."""
    logging.disable(logging.CRITICAL)
    gc.set_threshold(100_000, 50, 1000)
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()


def fails(seed: int, kind: type[Run] = Run, plan: Plan | None = None) -> str | None:
    """The failure of this seed, with its trace; None if everything held."""
    settle_down()
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            simulate(seed, plan or Plan(), kind)
    except BaseException as error:
        return f"{told.getvalue()}\nseed {seed}: {type(error).__name__}: {error}"
    return None


def check_that_all_hold(seeds: Sequence[int], kind: type[Run] = Run, plan: Plan | None = None) -> None:
    """Assert that no run of this kind with these seeds fails."""
    with pool() as workers:
        failed = [text for text in workers.map(fails, seeds, repeat(kind), repeat(plan)) if text is not None]
    assert not failed, f"{len(failed)} of {len(seeds)} seeds failed:\n" + "\n".join(failed[:3])


class Found(NamedTuple):
    """The result for a planted bug."""

    seed: int | None  # the first one that finds it
    not_met: set[str]  # planted functions that were never called


def finds(plant: Plant, kind: type[Run], plan: Plan, found_by: int) -> Found:
    places: set[str] = set()
    met: set[str] = set()
    for seed in sorted(range(SEEDS_PER_BUG), key=lambda seed: seed != found_by):
        settle_down()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            planting = Planting(patch)
            plant(planting)
            try:
                simulate(seed, plan, kind)
                first = None
            except (AssertionError, TimeoutError):  # any other error is no proof
                first = seed
            places |= planting.planted
            met |= planting.met
        if first is not None:
            break
    return Found(first, places - met)


def check_that_all_are_found(plants: Sequence[Plant], kind: type[Run] = Run, plan: Plan | None = None) -> None:
    """Assert that runs of this kind reach and find all these planted bugs, the seed known to find them first."""
    with pool() as workers:
        first = [FOUND_BY.get(plant, 0) for plant in plants]
        answers = workers.map(finds, plants, repeat(kind), repeat(plan or Plan()), first)
        found = {plant.__name__: answer for plant, answer in zip(plants, answers, strict=True)}
    missed = [bug for bug, (seed, _) in found.items() if seed is None]
    assert not missed, f"not found: {missed}; found: {found}"
    not_met = {bug: names for bug, (_, names) in found.items() if names}
    assert not not_met, f"planted where nobody comes by: {not_met}"


def pool() -> ProcessPoolExecutor:
    """Processes with a low priority: a simulation can wait, real brokers that run beside it cannot."""
    return ProcessPoolExecutor(
        WORKERS, mp_context=multiprocessing.get_context("spawn"), initializer=os.nice, initargs=(NICENESS,)
    )


@pytest.mark.simulation
@pytest.mark.spec("REP-24", "CLU-02", "CLU-03", "REP-22", "CLI-05")
@pytest.mark.timeout(2400)
def test_everything_holds_over_many_seeds() -> None:
    check_that_all_hold(many(MANY))


@pytest.mark.simulation
@pytest.mark.interpreted  # compiled code calls its own functions, not planted ones
@pytest.mark.timeout(1200)
def test_planted_mistakes_are_found() -> None:
    check_that_all_are_found(BUGS)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_mistakes_with_logs_that_begin_anywhere_are_found() -> None:
    check_that_all_are_found(OF_DELETING, DeletingRun)


@pytest.mark.simulation
@pytest.mark.spec("CLU-05")
@pytest.mark.timeout(1800)
def test_everything_holds_while_voters_come_and_go() -> None:
    """In a quorum that is dynamic from the beginning, and in a static one that is upgraded."""
    seeds = many(OF_VOTERS)
    check_that_all_hold([seed for seed in seeds if seed % 4 != 3], VotersRun)
    check_that_all_hold([seed for seed in seeds if seed % 4 == 3], UpgradedRun)


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_mistakes_in_changing_voters_are_found() -> None:
    check_that_all_are_found(OF_CHANGING_VOTERS, VotersRun)


@pytest.mark.simulation
@pytest.mark.spec("CLU-02", "CLU-11", "REP-23")
@pytest.mark.timeout(1200)
def test_everything_holds_with_five_controllers_apart() -> None:
    check_that_all_hold(many(OF_FIVE), ControllersApartRun, OF_APART)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_mistakes_of_controllers_apart_are_found() -> None:
    check_that_all_are_found(OF_CONTROLLERS_APART, ControllersApartRun, OF_APART)
