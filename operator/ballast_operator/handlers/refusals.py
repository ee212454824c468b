"""Tracks the Reassignments that Kubernetes refuses to change: each is reported for itself, and the others go on.

A policy, an admission webhook that is down, or a Role may refuse every change of an object until somebody fixes that.
The change is tried again after a while, and at once when somebody has changed the object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import LONGEST_SECONDS, TRY_AGAIN_SECONDS, answer_in
from ballast_operator.clock import monotonic
from ballast_operator.events import WARNING, Events
from ballast_operator.logs import about
from ballast_operator.model.meta import Meta
from ballast_operator.model.reassignment import KIND, Reassignment
from ballast_operator.status import REASSIGNMENT, Verdict
from ballast_operator.worker import Part, Requeue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """`subject` is the object's metadata at that time; it stays equal when the operator writes the status."""

    verdict: Verdict
    subject: Meta
    at: float


class Refusals:
    """The refusals of one cluster. Used by that cluster's worker only."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known: dict[str, Refusal] = {}
        self._spent = 0.0
        self._silent = False

    def look(self, uids: Iterable[str]) -> None:
        """A look at these begins: forget all others."""
        self._known = {uid: self._known[uid] for uid in uids if uid in self._known}
        self._spent, self._silent = 0.0, False

    def of(self, reassignment: Reassignment) -> Verdict | None:
        """What to report if the last attempt to change it was refused."""
        known = self._known.get(reassignment.meta.uid)
        return known.verdict if known is not None else None

    def due(self, reassignment: Reassignment) -> bool:
        """Whether to try to change it now."""
        known = self._known.get(reassignment.meta.uid)
        if self._spent > LONGEST_SECONDS:
            return False
        return (
            known is None or known.subject != _subject(reassignment.meta) or monotonic() - known.at >= TRY_AGAIN_SECONDS
        )

    def come_back(self, reassignment: Reassignment, requeue: Requeue) -> None:
        """Schedule the next attempt at one that was not changed: refused, unanswered, or not tried in this look."""
        if self._silent:
            requeue.failed.add(Part.REASSIGNMENTS)
        requeue.reassignments_within(TRY_AGAIN_SECONDS if reassignment.meta.uid in self._known else 0.0)

    def note(self, reassignment: Reassignment, error: ApiError | ApiUnavailableError) -> Verdict:
        """Note that a change of it was refused. An error that concerns all of them is raised again."""
        answer = answer_in(error)
        if answer is None:
            raise error
        verdict = REASSIGNMENT["KubernetesRefused"].says(error=answer.message.rstrip("."))
        if self.of(reassignment) != verdict:
            where = about(KIND, reassignment.key)
            log.warning("Reassignment %s is not changed: %s", reassignment.key, error, extra=where)
        self._known[reassignment.meta.uid] = Refusal(verdict, _subject(reassignment.meta), monotonic())
        self._events.send(reassignment, WARNING, verdict.reason, verdict.message)
        return verdict

    @contextmanager
    def told(self, reassignment: Reassignment) -> Iterator[None]:
        """Run a change of this one. A refusal is noted and goes no further; any other outcome clears what was noted.
        A change without an answer, which may be missing for this one alone, is tried again at the next look."""
        before, began = self._known.get(reassignment.meta.uid), monotonic()
        try:
            yield
        except (ApiError, ApiUnavailableError) as error:
            if answer_in(error) is not None:
                self.note(reassignment, error)
                return
            where = about(KIND, reassignment.key)
            log.warning("Reassignment %s: a change got no answer: %s", reassignment.key, error, extra=where)
            self._silent = True
            self._spent += monotonic() - began
        finally:
            after = self._known.get(reassignment.meta.uid)
            if after is not before:
                self._spent += monotonic() - began
            elif after is not None:
                del self._known[reassignment.meta.uid]


def _subject(meta: Meta) -> Meta:
    return replace(meta, resource_version="")
