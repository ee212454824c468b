"""Epochs that come to an end: a producer has two of them, then another id.

Transactions follow each other at once, so ids change in the middle of what goes wrong: with ends, with producers that
begin anew, and with aborts of what took too long.
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
        """How many were given after the first of each transactional id."""
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
        """Somebody was told one by then, or soon after: the answer may have been on its way."""
        told = [each for each in self.transactions.beginnings if each.name == refusal.name]
        own_s = max(each.at_s for each in told if each.identity.producer_id == refusal.identity.producer_id)
        return any(own_s < each.at_s < refusal.at_s + LATE_S for each in told)
