"""Plans the throttles of all Reassignments of a cluster together, and changes them once the statuses record them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.handlers.plans import Case
from ballast_operator.handlers.put_back import PutBackMemory
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import BROKER, ConfigId, KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.plan.throttled_lists import Part
from ballast_operator.plan.throttles import (
    Share,
    ThrottlePlan,
    config_of,
    plan_throttles,
    wanted_entries,
    wanted_rates,
    without,
)

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)


class Throttling:
    """The throttles of one cluster. Used by that cluster's worker only."""

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
        """How its throttles kept its moves from starting at the last look, if they did."""
        return self._unthrottled.get(str(case.reassignment.key))

    def plan(self, cases: Sequence[Case], view: KafkaView) -> ThrottlePlan:
        shares = [share_of(case) for case in cases if case.plan or case.records]
        cluster = self._shared.cache.clusters.get(self._cluster)
        asked = [one.spec.throttle for one in self._shared.cache.reassignments_of(self._cluster)]
        if cluster is not None and cluster.spec.rebalance is not None:
            asked.append(cluster.spec.rebalance.throttle)
        return plan_throttles(shares, view, self._put_back.known, self._put_back.suspected(asked))

    async def apply(
        self, ready: Sequence[Case], cases: Sequence[Case], planned: ThrottlePlan, kafka: KafkaConnection
    ) -> frozenset[str]:
        """Change what the statuses record by now. Returns the Reassignments whose moves may start."""
        names = {str(case.reassignment.key) for case in ready}
        self._unthrottled = {}
        self._put_back.keep(planned.put_back)
        untold = {str(case.reassignment.key): found for case in cases if (found := _untold(case))}
        told = without(planned, {config for found in untold.values() for config in found})
        if told.changes:
            outcomes = await kafka_actions.alter_configs(kafka, told.changes)
            self._put_back.note(told, outcomes)
            failed = {key: outcome for key, outcome in outcomes.items() if not outcome.ok}
            for (resource, name), outcome in failed.items():
                log.warning(
                    "throttle of %s %s could not be changed: %s %s", resource, name, outcome.error, outcome.message
                )
            if failed:
                (resource, name), outcome = next(iter(failed.items()))
                why = f"its throttle was refused: {resource} {name} answers {outcome.error}"
                self._unthrottled = dict.fromkeys(planned.unsettled, why)
            changed = {(change.resource, change.name) for change in told.changes}
            if not failed and told == planned and changed <= outcomes.keys():
                return frozenset(names - planned.unreadable)
        if told != planned:
            why = f"its throttle is not set before the status of {next(iter(untold))} could be written"
            self._unthrottled = dict.fromkeys(planned.unsettled, why) | self._unthrottled
        return frozenset(names - planned.unsettled)


def _untold(case: Case) -> set[ConfigId]:
    """The throttles that it needs or holds but its status does not record, since it could not be written."""
    status = case.reassignment.status
    found = {config_of(record) for record in case.records if record not in status.throttle}
    if case.lists is not None and case.lists != status.throttled_lists and case.plan is not None:
        found |= case.plan.throttled_entries.keys()
    return found


def share_of(case: Case) -> Share:
    """The throttles that it needs and holds. Records of topics' lists, as older operators wrote them, need the plan."""
    name, throttle = str(case.reassignment.key), case.reassignment.spec.throttle
    held = case.step is not None and case.step.holds_throttles
    moves = [state.move for state in case.step.states] if case.step is not None and held else []
    wanted, entries = wanted_rates(moves, throttle), wanted_entries(moves, throttle)
    if case.refused:
        # Nothing can be recorded, so it keeps what it has and gets nothing more.
        recorded = {config_of(record) for record in case.records}
        wanted = {config: rate for config, rate in wanted.items() if config in recorded}
        entries = entries if case.lists is not None else {}
    if case.plan is None:
        return Share(name, wanted, case.records)
    former = [record for record in case.records if record.resource != BROKER]
    part = Part(name, entries, case.plan.throttled_entries, case.lists, former)
    rates = [record for record in case.records if record.resource == BROKER]
    return Share(name, wanted, rates, part)
