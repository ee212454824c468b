"""Schedules in which each step of what is done in turns has a turn of its own, whatever else may come between two."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.broker import turning
from tests.sim.loop import SimLoop
from tests.sim.schedule import Plan
from tests.sim.test_schedules import seeds, simulate

from ballast_broker.raft import handing_over
from ballast_broker.replication.late_roles import LateRoles


@pytest.mark.spec("CLI-09", "REP-20", "REP-24")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds()[:4])
def test_brokers_take_up_their_replicas_one_in_a_turn_and_nothing_is_lost(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turning.end_at_once(monkeypatch)
    monkeypatch.setattr(handing_over, "LONGEST_TURN_S", -1.0)
    taken, take = Counter[tuple[int, LateRoles]](), LateRoles.take

    def counted(self: LateRoles, *role: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        taken[loop.turns, self] += 1
        take(self, *role)

    monkeypatch.setattr(LateRoles, "take", counted)
    simulate(seed, Plan())
    assert {*taken.values()} == {1}
