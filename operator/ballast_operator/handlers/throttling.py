"""The throttles of a cluster's Reassignments: planned for all of them together, changed once their statuses tell it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.handlers.plans import Case
from ballast_operator.handlers.put_back import PutBackMemory
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import BROKER, KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.plan.throttled_lists import Part
from ballast_operator.plan.throttles import Share, ThrottlePlan, plan_throttles, wanted_entries, wanted_rates

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)


class Throttling:
    """Of one cluster. Used by that cluster's worker only."""

    def __init__(self, cluster: Key, shared: Shared) -> None:
        self._cluster = cluster
        self._shared = shared
        self._put_back = PutBackMemory()
        # Why moves wait for their throttles, by Reassignment.
        self._unthrottled: dict[str, str] = {}

    def look(self) -> None:
        """A look begins."""
        self._put_back.look()

    def why_not(self, case: Case) -> str | None:
        """What kept its moves from starting at the last look."""
        return self._unthrottled.get(str(case.reassignment.key))

    def plan(self, cases: Sequence[Case], view: KafkaView) -> ThrottlePlan:
        shares = [share_of(case) for case in cases if case.plan or case.records]
        cluster = self._shared.cache.clusters.get(self._cluster)
        asked = [one.spec.throttle for one in self._shared.cache.reassignments_of(self._cluster)]
        if cluster is not None and cluster.spec.rebalance is not None:
            asked.append(cluster.spec.rebalance.throttle)
        return plan_throttles(shares, view, self._put_back.known, self._put_back.suspected(asked))

    async def apply(
        self, ready: Sequence[Case], cases: Sequence[Case], throttles: ThrottlePlan, kafka: KafkaConnection
    ) -> frozenset[str]:
        """Change what is recorded by now; the result names the Reassignments whose moves may start."""
        names = {str(case.reassignment.key) for case in ready}
        self._unthrottled = {}
        self._put_back.keep(throttles.put_back)
        if throttles.changes and len(ready) == len([case for case in cases if case.step is not None]):
            outcomes = await kafka_actions.alter_configs(kafka, throttles.changes)
            self._put_back.note(throttles, outcomes)
            failed = {key: outcome for key, outcome in outcomes.items() if not outcome.ok}
            for (resource, name), outcome in failed.items():
                log.warning(
                    "throttle of %s %s could not be changed: %s %s", resource, name, outcome.error, outcome.message
                )
            if failed:
                (resource, name), outcome = next(iter(failed.items()))
                why = f"its throttle was refused: {resource} {name} answers {outcome.error}"
                self._unthrottled = dict.fromkeys(throttles.unsettled, why)
            changed = {(change.resource, change.name) for change in throttles.changes}
            if not failed and changed <= outcomes.keys():
                return frozenset(names - throttles.unreadable)
        return frozenset(names - throttles.unsettled)


def share_of(case: Case) -> Share:
    """What it needs and holds. Records of topics' lists, as operators wrote them before, need the plan, too."""
    name, throttle = str(case.reassignment.key), case.reassignment.spec.throttle
    held = case.step is not None and case.step.holds_throttles
    moves = [state.move for state in case.step.states] if case.step is not None and held else []
    if case.plan is None:
        return Share(name, wanted_rates(moves, throttle), case.records)
    former = [record for record in case.records if record.resource != BROKER]
    part = Part(name, wanted_entries(moves, throttle), case.plan.throttled_entries, case.lists, former)
    rates = [record for record in case.records if record.resource == BROKER]
    return Share(name, wanted_rates(moves, throttle), rates, part)
