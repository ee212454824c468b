"""Consumers that fetch from followers, and a transactional topic whose records are deleted; a broker that returns what
it must not is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.diary import Beginning, Diary, Identity
from tests.sim.follower_fetching import PLAN, FollowerFetchingRun
from tests.sim.planted import Plant, Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.replication.reading import FetchEntry, FetchParams, Reader
from ballast_broker.replication.replica import Replica
from ballast_broker.storage.log import Log

pytestmark = [pytest.mark.spec("REP-08", "REP-12"), pytest.mark.timeout(120)]

SEEDS = range(300, 308)


def test_whoever_reads_in_his_rack_reads_what_is_committed() -> None:
    run = simulate(2, PLAN, FollowerFetchingRun)
    assert isinstance(run, FollowerFetchingRun)
    assert run.answers_of_followers > 20


def test_whoever_comes_after_an_id_that_has_expired_fences_the_one_before_with_a_lower_id_as_well() -> None:
    before, after = Identity(1000, 0), Identity(1, 0)
    diary = Diary(beginnings=[Beginning("x", before, 1.0), Beginning("x", after, 9.0)])
    assert diary.is_fenced("x", before, 10.0)
    assert not diary.is_fenced("x", before, 8.0)
    assert not diary.is_fenced("x", after, 10.0)


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), FollowerFetchingRun, PLAN)


def show_what_is_not_committed(patch: Planting) -> None:
    """A follower returns everything that it has."""
    find: Callable[..., Any] = Reader._slice

    def all_of_it(
        self: Reader, replica: Replica, log: Log, params: FetchParams, entry: FetchEntry, *rest: Any
    ) -> Any:  # fmt: skip
        if not replica.state.is_leader and params.replica_id < 0:
            params = dataclasses.replace(params, replica_id=0)
        return find(self, replica, log, params, entry, *rest)

    patch.setattr(Reader, "_slice", all_of_it)


def leave_it_to_the_leader_to_say_what_was_aborted(patch: Planting) -> None:
    find: Callable[..., Any] = Reader._find

    def silently(self: Reader, replica: Replica, *rest: Any, **more: Any) -> Any:
        found, aborted = find(self, replica, *rest, **more)
        return found, aborted if replica.state.is_leader else []

    patch.setattr(Reader, "_find", silently)


def tell_only_of_what_was_aborted_lately(patch: Planting) -> None:
    """A consumer that starts in the middle of a transaction is not told that it was aborted."""
    aborted: Callable[..., list[Any]] = Log.aborted_transactions

    def later(self: Log, offset: int, upper_offset: int) -> list[Any]:
        return [each for each in aborted(self, offset, upper_offset) if each.first_offset >= offset]

    patch.setattr(Log, "aborted_transactions", later)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_a_broker_that_tells_readers_what_it_must_not_is_found() -> None:
    plants: list[Plant] = [
        show_what_is_not_committed,
        leave_it_to_the_leader_to_say_what_was_aborted,
        tell_only_of_what_was_aborted_lately,
    ]
    check_that_all_are_found(plants, FollowerFetchingRun, PLAN)
