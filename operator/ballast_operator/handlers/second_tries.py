"""Finds out whether a failed Reassignment would move something now, so that another one may take its place.

That takes a trial plan: the longer planning takes, the less often it is tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from ballast_operator.cache import Cache
from ballast_operator.clock import monotonic
from ballast_operator.handlers.plans import not_known, work_out
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.model.reassignment import Phase, Reassignment
from ballast_operator.plan.making import BrokersAwayError, InvalidPlanError, PlanMissingError, StalePlanError

PAUSE_SHARE = 20
# Of many failed ones the rest come at the next look.
LONGEST_SECONDS = 1.0


class SecondTries:
    """The second tries of one cluster. Used by that cluster's worker only."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._next: dict[str, float] = {}
        self._next_of_all = 0.0

    async def would_move(self, failed: Reassignment, whole: KafkaView) -> bool:
        """Whether a plan made now would move something: then the cause of the failure is gone."""
        began, name = monotonic(), failed.meta.name
        if began < self._next.get(name, 0.0) or not_known(whole):
            return False
        try:
            moves = (await work_out(self._cache, failed, whole, {})).moves
        except (BrokersAwayError, InvalidPlanError, PlanMissingError, StalePlanError):
            moves = ()
        self._forget_gone(failed.meta.namespace, began)
        self._next[name] = monotonic() + PAUSE_SHARE * (monotonic() - began)
        return bool(moves)

    def _forget_gone(self, namespace: str, now: float) -> None:
        """Another one may get the name while the pause lasts."""
        there = self._cache.reassignments
        due = [name for name, next_try in self._next.items() if next_try <= now]
        for name in due:
            if there.get(Key(namespace, name)) is None:
                del self._next[name]

    async def worth_it(
        self, owned: Iterable[Reassignment], look: Callable[[], Awaitable[KafkaView]]
    ) -> list[Reassignment]:
        """The failed ones that would move something now. `look` observes the whole cluster, if any has failed."""
        began = monotonic()
        failed = [one for one in owned if one.status.phase is Phase.FAILED and not one.stopped]
        if not failed or began < self._next_of_all:
            return []
        whole, found = await look(), []
        for one in sorted(failed, key=lambda one: self._next.get(one.meta.name, 0.0)):
            if await self.would_move(one, whole):
                found.append(one)
            if monotonic() - began > LONGEST_SECONDS:
                break
        self._next_of_all = monotonic() + PAUSE_SHARE * (monotonic() - began)
        return found
