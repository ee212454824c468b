"""Producer ids expire while their producers go on; a broker that expires too many is found."""

from __future__ import annotations

import pytest
from tests.sim.expiring import ExpiringRun
from tests.sim.follower_fetching import PLAN
from tests.sim.planted import Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many

from ballast_broker.storage.producers import ProducerStates

pytestmark = [pytest.mark.simulation, pytest.mark.spec("REP-12", "CLI-05"), pytest.mark.timeout(600)]

SEEDS = range(300, 304)


def test_everything_holds_though_producers_are_forgotten() -> None:
    check_that_all_hold(many(SEEDS), ExpiringRun, PLAN)


def forget_those_as_well_whose_transactions_are_open(patch: Planting) -> None:
    def expire(self: ProducerStates, now_ms: int, expiration_ms: int) -> int:
        gone = [each for each, state in self._states.items() if now_ms - state.last_timestamp >= expiration_ms]
        for producer_id in gone:
            del self._states[producer_id]
        return len(gone)

    patch.setattr(ProducerStates, "expire", expire)


@pytest.mark.interpreted
def test_a_broker_that_forgets_who_has_a_transaction_open_is_found() -> None:
    check_that_all_are_found([forget_those_as_well_whose_transactions_are_open], ExpiringRun, PLAN)
