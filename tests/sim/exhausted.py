"""Runs in which producer epochs are exhausted: a producer id has two epochs, then the producer gets another id.

Transactions follow each other at once, so ids change in the middle of faults: when transactions end, when producers
start over, and when transactions that timed out are aborted.
"""

from __future__ import annotations

import random

from tests.sim.checkers import Broken
from tests.sim.diary import Refusal
from tests.sim.schedule import Plan, Run
from tests.sim.transactors import Transactors

from ballast_broker.coordinator import transactions
from ballast_wire.errors import ErrorCode

PLAN = Plan(seconds=40.0)
LAST_EPOCH = 1
LATE_S = 3.0


class BusyTransactors(Transactors):
    per_second = 50.0


class ExhaustedRun(Run):
    def new_ids(self) -> int:
        """How many producer ids were given out beyond the first of each transactional id."""
        begun = {(each.name, each.identity.producer_id) for each in self.transactions.beginnings}
        return len(begun) - len({name for name, _ in begun})

    async def _play(self) -> None:
        whole, transactions.LAST_EPOCH = transactions.LAST_EPOCH, LAST_EPOCH
        try:
            await super()._play()
        finally:
            transactions.LAST_EPOCH = whole

    def _make_transactors(self, hosts: list[str], rng: random.Random) -> Transactors:
        return BusyTransactors(self.fabric, hosts, rng, timeout_s=self.plan.client_timeout_s)

    def _verdict(self) -> None:
        super()._verdict()
        for each in self.transactions.refusals:
            if each.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING and not self._has_another_id(each):
                raise Broken(f"an id is its producer's until another one has it: {each}")

    def _has_another_id(self, refusal: Refusal) -> bool:
        """Whether a new id was handed out by then, or soon after, as the answer may have been on its way."""
        told = [each for each in self.transactions.beginnings if each.name == refusal.name]
        own_s = max(each.at_s for each in told if each.identity.producer_id == refusal.identity.producer_id)
        return any(own_s < each.at_s < refusal.at_s + LATE_S for each in told)
