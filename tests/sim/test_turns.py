"""Schedules in which each step of work that yields to others has a turn of its own, and each piece has one item, so
that anything may happen between two of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from tests.broker import turning
from tests.sim.loop import SimLoop
from tests.sim.pieces import PLAN, PiecesRun
from tests.sim.planted import Plant, Planting
from tests.sim.schedule import Plan
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import seeds, simulate

from ballast_broker.controller import fencing, service
from ballast_broker.controller.commands import brokers
from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.metadata.image import BrokerImage
from ballast_broker.raft import commit_feed
from ballast_broker.replication.late_roles import LateRoles


@pytest.mark.spec("CLI-09", "REP-20", "REP-24")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds()[:4])
def test_brokers_take_up_their_replicas_one_in_a_turn_and_nothing_is_lost(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turning.end_at_once(monkeypatch)
    monkeypatch.setattr(commit_feed, "LONGEST_TURN_S", -1.0)
    taken, take = Counter[tuple[int, LateRoles]](), LateRoles.take

    def counted(self: LateRoles, *role: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        taken[loop.turns, self] += 1
        take(self, *role)

    monkeypatch.setattr(LateRoles, "take", counted)
    simulate(seed, Plan())
    assert {*taken.values()} == {1}


@pytest.mark.spec("CLU-01", "REP-24", "DIR-04")
@pytest.mark.timeout(120)
def test_what_is_done_in_pieces_is_whole_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, rest = [], service.ControllerService._append_rest

    async def counted(self: service.ControllerService, piece: Outcome, written: Any) -> Any:
        begun.append(piece)
        return await rest(self, piece, written)

    monkeypatch.setattr(service.ControllerService, "_append_rest", counted)
    simulate(5, PLAN, PiecesRun)
    assert begun


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules_in_pieces() -> None:
    check_that_all_hold(many(range(20000, 20008)), PiecesRun, PLAN)


def forget_a_directory_before_what_is_on_it(patch: Planting) -> None:
    def first(context: CommandContext, broker: BrokerImage, offline: frozenset[UUID]) -> Outcome:
        outcome, left = last(context, broker, offline), broker.directories - offline
        if left != broker.directories:
            outcome.records.insert(0, brokers._changed(broker, log_dirs=sorted(left)))
        return outcome

    last = brokers.directories_offline
    patch.setattr(brokers, "directories_offline", first)


def fence_a_broker_before_all_have_another_leader(patch: Planting) -> None:
    def first(context: CommandContext, broker_id: int) -> Outcome:
        outcome, broker = last(context, broker_id), context.image.cluster.brokers.get(broker_id)
        if outcome.records and broker is not None:
            outcome.records.insert(0, brokers._changed(broker, fenced=1))
        return outcome

    last = brokers.fence_broker
    patch.setattr(fencing, "fence_broker", first)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_pieces_in_another_order_are_noticed() -> None:
    plants: list[Plant] = [
        forget_a_directory_before_what_is_on_it, fence_a_broker_before_all_have_another_leader,
    ]  # fmt: skip
    check_that_all_are_found(plants, PiecesRun, PLAN)
