"""Groups that migrate between the protocols under random schedules of faults; planted bugs in that must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.sim.cooperative import plan
from tests.sim.mixed import PLAN, MixedRun
from tests.sim.planted import Plant, Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.coordinator.consumers import conversion, heartbeat, reconcile, service
from ballast_broker.coordinator.consumers.deadlines import Deadlines
from ballast_broker.coordinator.consumers.group import NONE, Change, Current, Member, Partitions
from ballast_broker.coordinator.consumers.reconcile import IsOwned
from ballast_broker.coordinator.group import Group
from ballast_broker.metadata.image import TopicsImage

pytestmark = [pytest.mark.spec("CLI-04"), pytest.mark.timeout(120)]

SEEDS = range(400, 416)


def test_no_partition_has_two_readers_whichever_protocol_they_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    for name in ("upgraded", "downgraded"):
        whole: Callable[..., Any] = getattr(service, name)

        def counted(*arguments: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            turns.append(name)
            return whole(*arguments)

        monkeypatch.setattr(service, name, counted)
    run = simulate(1, PLAN, MixedRun)
    assert isinstance(run, MixedRun)
    assert run.mixed.holders.times_taken > 3 * PLAN.partitions
    assert {*turns} == {"upgraded", "downgraded"}


def test_a_plan_takes_no_more_than_it_has_to_and_gives_nobody_what_somebody_has() -> None:
    assert plan({"a": {0, 1, 2}, "b": {3, 4, 5}, "c": set()}, 6) == {"a": {0, 1}, "b": {3, 4}, "c": set()}
    assert plan({"a": {0, 1}, "b": {3, 4}, "c": set()}, 6) == {"a": {0, 1}, "b": {3, 4}, "c": {2, 5}}
    assert plan({"a": {0, 1}, "b": {1}}, 3) == {"a": {0, 1}, "b": {2}}


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), MixedRun, PLAN)


def give_to_others_what_a_member_had_as_it_joined(patch: Planting) -> None:
    """Partitions were taken from it before its group migrated, but it has not heard of that or not revoked them yet."""

    def forgotten(members: list[Member], taken: object) -> list[Member]:
        return [replace(each, current=replace(each.current, revoking=NONE)) for each in members]

    patch.setattr(conversion, "_with_what_they_give_back", forgotten)


def go_over_with_what_a_member_had_as_it_joined_alone(patch: Planting) -> None:
    """What it has been assigned since is ignored."""

    def upgraded(group: Group, topics: TopicsImage) -> list[Change]:
        for member in group.members.values():
            member.assignment = b""
        return whole(group, topics)

    whole = conversion.upgraded
    patch.setattr(service, "upgraded", upgraded)


def give_out_what_is_not_given_back(patch: Planting) -> None:
    def hasty(member: Member, epoch: int, target: Partitions, is_owned: IsOwned, owned: Partitions | None) -> Current:
        return whole(member, epoch, target, lambda topic_id, number: False, owned)

    whole = reconcile.next_step
    patch.setattr(heartbeat, "next_step", hasty)


def wait_for_nobody_who_is_to_join_again(patch: Planting) -> None:
    """A classic member is removed as soon as it has been told to rejoin."""
    patch.setattr(Deadlines, "_until_ms", lambda self, member: self._host.now().monotonic_ms)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(900)
def test_a_coordinator_that_errs_is_found() -> None:
    plants: list[Plant] = [
        give_to_others_what_a_member_had_as_it_joined,
        go_over_with_what_a_member_had_as_it_joined_alone,
        give_out_what_is_not_given_back,
        wait_for_nobody_who_is_to_join_again,
    ]
    check_that_all_are_found(plants, MixedRun, PLAN)
