"""Writes the statuses of Reassignments: what is about to happen, before it does, and how far it has come."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.events import NORMAL, WARNING
from ballast_operator.handlers.finished import LOOK_SECONDS, warn_of_ttl
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.refusals import Refusals
from ballast_operator.model.reassignment import ENDS, Phase, Reassignment, ReassignmentStatus, RollbackStatus
from ballast_operator.model.times import seconds_of
from ballast_operator.plan.lifecycle import Step, refused
from ballast_operator.plan.progress import progress_of
from ballast_operator.status import REASSIGNMENT, STALLED, Verdict, conditions, ready_condition
from ballast_operator.worker import Requeue

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

IDLE_LOOK_SECONDS = 15.0
PROGRESS_SECONDS = 3.0
# Every topic may own a Reassignment: a status does not name thousands.
MOST_NAMED = 100
DEFINITION_OF_BEFORE = ApiError(
    422, "Invalid", "its definition drops status.throttledLists; apply the CRDs that belong to this operator"
)


class ReassignmentStatuses:
    """The statuses of one cluster's Reassignments. Used by that cluster's worker only."""

    def __init__(self, shared: Shared, plans: Plans, refusals: Refusals) -> None:
        self._shared = shared
        self._plans = plans
        self._refusals = refusals

    async def write(self, case: Case, requeue: Requeue) -> bool:
        """Write what is about to happen. Only if this returns True may it happen."""
        if case.step is None or case.reassignment.unread:
            return False  # what is wrong with its spec is told already
        if self._refusals.due(case.reassignment):
            with self._refusals.told(case.reassignment):
                return await self._hold(case, requeue) and await self._write(case, case.step, requeue)
        self._refusals.come_back(case.reassignment, requeue)
        verdict = self._refusals.of(case.reassignment)
        if verdict is not None:
            case.step = refused(case.step, case.reassignment, verdict)
        return False

    async def tell(self, reassignment: Reassignment, verdict: Verdict, requeue: Requeue) -> None:
        """Report that the cluster cannot be asked."""
        status = reassignment.status
        if reassignment.meta.deleting:
            verdict = REASSIGNMENT["DeletionWaits"].says(error=verdict.message)
        wanted = replace(
            status,
            phase=status.phase or Phase.PLANNING,
            observed_generation=reassignment.meta.generation,
            conditions=self.said(reassignment, verdict),
        )
        if not await self._shared.writer.write_status(reassignment, wanted):
            requeue.reassignments_within(LOOK_SECONDS)

    async def _hold(self, case: Case, requeue: Requeue) -> bool:
        """Set our finalizer before anything is started: a deletion has to wait until everything has been put back."""
        step, reassignment = case.step, case.reassignment
        assert step is not None
        needed = step.starts or step.holds_throttles
        if not needed or reassignment.meta.finalized or reassignment.meta.deleting:
            return True
        try:
            held = await self._shared.writer.set_finalizer(reassignment, True)
        except (ApiError, ApiUnavailableError) as error:
            case.step = refused(step, reassignment, self._refusals.note(reassignment, error))
            self._refusals.come_back(reassignment, requeue)
            await self._write(case, case.step, requeue)
            return False
        if not held:
            requeue.reassignments_within(LOOK_SECONDS)
            return False
        case.reassignment = self._shared.cache.reassignments.get(reassignment.key) or reassignment
        return True

    async def _write(self, case: Case, step: Step, requeue: Requeue) -> bool:
        reassignment = case.reassignment
        before = reassignment.status
        if step.replan:
            await self._plans.discard(reassignment)
        wanted = self.wanted_status(case, step)
        urgent = (
            before.phase != wanted.phase or before.throttle != wanted.throttle or before.plan != wanted.plan
            or before.throttled_lists != wanted.throttled_lists
            or _reason(before) != _reason(wanted) or before.observed_generation != wanted.observed_generation
        )  # fmt: skip
        if not urgent and not (_advanced(before, wanted) and self.progress_due(before)):
            return True
        if not await self._shared.writer.write_status(reassignment, wanted):
            # The watch event of the conflicting change usually arrives sooner. If not, do not retry in a tight loop.
            requeue.reassignments_within(LOOK_SECONDS)
            return False
        self.announce(reassignment, before, wanted)
        case.reassignment = self._shared.cache.reassignments.get(reassignment.key) or reassignment
        if case.reassignment.status.throttled_lists != wanted.throttled_lists:
            await self._tell_lost(case, requeue)
            return False
        return True

    async def _tell_lost(self, case: Case, requeue: Requeue) -> None:
        """The API server has dropped what is needed to put the throttles back, so nothing may start."""
        verdict = self._refusals.note(case.reassignment, DEFINITION_OF_BEFORE)
        told = replace(case.reassignment.status, conditions=self.said(case.reassignment, verdict))
        await self._shared.writer.write_status(case.reassignment, told)
        self._refusals.come_back(case.reassignment, requeue)

    def wanted_status(self, case: Case, step: Step) -> ReassignmentStatus:
        reassignment, now = case.reassignment, self._shared.now()
        before = case.status
        if step.replan:
            before = replace(before, plan=None)
        started = before.started_at or (now if step.starts else None)
        ended = step.phase in ENDS or step.phase is Phase.STALE
        progress = before.progress
        if step.states:
            progress = progress_of(step.states, case.notes, before.progress, now)
        return replace(
            before,
            observed_generation=reassignment.meta.generation,
            phase=step.phase,
            progress=progress,
            throttle=case.records,
            throttled_lists=case.lists,
            rollback=self._rollback_status(before, started),
            waiting_for=step.waits_for[:MOST_NAMED],
            started_at=started,
            finished_at=(before.finished_at or now) if ended else None,
            conditions=self.said(reassignment, step.verdict),
        )

    def _rollback_status(self, before: ReassignmentStatus, started: str | None) -> RollbackStatus | None:
        if started is None or before.plan is None:
            return None
        return RollbackStatus(available=True, config_maps=before.plan.config_maps)

    def said(self, reassignment: Reassignment, verdict: Verdict) -> tuple[Any, ...]:
        return conditions(reassignment.status.conditions, verdict, reassignment.meta.generation, self._shared.now())

    def progress_due(self, before: ReassignmentStatus) -> bool:
        if before.progress is None or before.progress.measured_at is None:
            return True
        # A time in the future was written by a clock that was wrong.
        return abs(seconds_of(self._shared.now()) - seconds_of(before.progress.measured_at)) >= PROGRESS_SECONDS

    def announce(self, reassignment: Reassignment, before: ReassignmentStatus, after: ReassignmentStatus) -> None:
        if before.phase == after.phase or after.phase is None:
            return
        ready = ready_condition(after.conditions)
        bad = any(condition.type == STALLED for condition in after.conditions)
        self._shared.events.send(
            reassignment, WARNING if bad else NORMAL, str(after.phase), ready.message if ready else str(after.phase)
        )
        if after.phase in ENDS:
            warn_of_ttl(self._shared.events, reassignment)


def _advanced(before: ReassignmentStatus, wanted: ReassignmentStatus) -> bool:
    """Whether anything but the time and the rate has changed."""
    if before.progress is None or wanted.progress is None:
        return before != wanted
    same_look = replace(
        wanted.progress,
        measured_at=before.progress.measured_at,
        bytes_per_second=before.progress.bytes_per_second,
        eta=before.progress.eta,
    )
    return replace(wanted, progress=same_look) != before


def _reason(status: ReassignmentStatus) -> str:
    said = ready_condition(status.conditions)
    return said.reason if said else ""
