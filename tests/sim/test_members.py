"""Groups of the consumer protocol under random schedules of faults; planted coordinator bugs must be found."""

from __future__ import annotations

import pytest
from tests.sim.checkers import Broken
from tests.sim.members import PROPERTIES
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.coordinator.consumers import heartbeat, reconcile
from ballast_broker.coordinator.consumers.deadlines import Deadlines
from ballast_broker.coordinator.consumers.group import Classic, Current, Member, Partitions
from ballast_broker.coordinator.consumers.group_writes import VolatileGroupState
from ballast_broker.coordinator.consumers.reconcile import IsOwned

pytestmark = [pytest.mark.spec("CLI-04"), pytest.mark.timeout(120)]

PLAN = Plan(seconds=40.0, members=3, properties=PROPERTIES)
SEEDS = range(100, 114)


@pytest.mark.parametrize("seed", range(3))
def test_no_partition_has_two_readers_whatever_fails(seed: int) -> None:
    run = simulate(seed, PLAN)
    assert run.members is not None
    assert run.members.holders.times_taken > PLAN.partitions


@pytest.mark.simulation
@pytest.mark.timeout(1200)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), plan=PLAN)


def test_a_coordinator_that_does_not_wait_for_what_is_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reconcile.next_step

    def hasty(member: Member, epoch: int, target: Partitions, is_owned: IsOwned, owned: Partitions | None) -> Current:
        return whole(member, epoch, target, lambda topic_id, number: False, owned)

    monkeypatch.setattr(heartbeat, "next_step", hasty)
    with pytest.raises(Broken, match="a partition has one reader"):
        simulate(1, PLAN)


def test_a_coordinator_that_forgets_sessions_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = Deadlines.beat

    def short(
        self: Deadlines, life: VolatileGroupState, group_id: str, member_id: str, classic: Classic | None = None
    ) -> None:
        beats(self, life, group_id, member_id, classic)
        life.sessions[member_id] -= 2900

    monkeypatch.setattr(Deadlines, "beat", short)
    with pytest.raises(Broken, match="a partition has one reader"):
        simulate(1, PLAN)
