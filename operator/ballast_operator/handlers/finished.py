"""Concludes finished Reassignments: releases deleted ones, deletes those whose TTL has expired."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ballast_operator.events import WARNING, Events
from ballast_operator.handlers.plans import Plans
from ballast_operator.handlers.refusals import Refusals
from ballast_operator.model.reassignment import ENDS, STOPPED, Phase, Reassignment
from ballast_operator.model.times import seconds_of
from ballast_operator.model.topic import KIND as TOPIC
from ballast_operator.plan.lifecycle import Goal, goal_of
from ballast_operator.status import EVENTS
from ballast_operator.worker import Requeue

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

# After a write conflict: the object is looked at again when its watch event arrives, or after this time.
LOOK_SECONDS = 1.0
GITOPS_MARKS = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
)


class Finished:
    """The finished Reassignments of one cluster. Used by that cluster's worker only."""

    def __init__(self, shared: Shared, plans: Plans, refusals: Refusals) -> None:
        self._shared = shared
        self._plans = plans
        self._refusals = refusals

    async def conclude(self, reassignment: Reassignment, requeue: Requeue) -> bool:
        """Whether this one needs nothing from Kafka any more; if so, do what is left to do for it."""
        status = reassignment.status
        if status.holds_throttles or (goal_of(reassignment) is not Goal.STAY and not _stale_unplanned(reassignment)):
            return False
        self._plans.forget(reassignment)
        if self._refusals.due(reassignment):
            with self._refusals.told(reassignment):
                await self._release_or_expire(reassignment, requeue)
                return True
        self._refusals.come_back(reassignment, requeue)
        return True

    async def _release_or_expire(self, reassignment: Reassignment, requeue: Requeue) -> None:
        status = reassignment.status
        if reassignment.meta.deleting:
            await self.release(reassignment, requeue)
        elif status.phase in ENDS:
            if status.observed_generation != reassignment.meta.generation:
                generation = reassignment.meta.generation
                # Whoever waits for a condition compares the generation in it.
                said = tuple(replace(one, observed_generation=generation) for one in status.conditions)
                current = replace(status, observed_generation=generation, conditions=said)
                if await self._shared.writer.write_status(reassignment, current):
                    warn_of_ttl(self._shared.events, reassignment)
            await self._expire(reassignment, requeue)

    async def _expire(self, reassignment: Reassignment, requeue: Requeue) -> None:
        """Apply ttlSecondsAfterFinished."""
        ttl, finished = reassignment.spec.ttl_seconds_after_finished, reassignment.status.finished_at
        if ttl is None or finished is None:
            return
        if _tracked_by(reassignment) is not None or _holds_its_topic(reassignment):
            return
        left = seconds_of(finished) + ttl - seconds_of(self._shared.now())
        if left > 0:
            requeue.reassignments_within(left)
        else:
            await self._shared.writer.delete_reassignment(reassignment)

    async def release(self, reassignment: Reassignment, requeue: Requeue) -> None:
        if reassignment.meta.finalized and not await self._shared.writer.set_finalizer(reassignment, False):
            requeue.reassignments_within(LOOK_SECONDS)
        self._plans.forget(reassignment)


def warn_of_ttl(events: Events, reassignment: Reassignment) -> None:
    """Warn, when it ends or its spec changes afterwards, that its TTL is ignored: it may stay in Git forever."""
    mark = _tracked_by(reassignment)
    if reassignment.spec.ttl_seconds_after_finished is not None and mark is not None:
        said = EVENTS["TtlIgnored"].says(mark=mark)
        events.send(reassignment, WARNING, said.reason, said.message)


def _tracked_by(reassignment: Reassignment) -> str | None:
    """The mark of the GitOps tool that would create it again."""
    marks = {**reassignment.meta.labels, **reassignment.meta.annotations}
    return next((mark for mark in GITOPS_MARKS if mark in marks), None)


def _holds_its_topic(reassignment: Reassignment) -> bool:
    """Whether its KafkaTopic would create another one after its deletion, although somebody has stopped this one."""
    owners = reassignment.meta.owner_references
    return reassignment.status.phase in STOPPED and any(owner.kind == TOPIC for owner in owners)


def _stale_unplanned(reassignment: Reassignment) -> bool:
    """Whether its rows were stale when it was to be planned: they stay so until the spec changes."""
    status, meta = reassignment.status, reassignment.meta
    current = status.observed_generation == meta.generation and not meta.deleting
    return status.phase is Phase.STALE and status.plan is None and current


def nothing_to_undo(reassignment: Reassignment) -> bool:
    status = reassignment.status
    return not status.holds_throttles and (status.started_at is None or status.phase in ENDS)
