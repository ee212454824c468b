"""Records when a worker last made progress, for the liveness probe. A slow API server makes a cycle long, but a worker
that progresses is not stuck: a probe that killed the operator for it would only make it start all over.

A cycle and all tasks that it starts share one `Pulse`; code that sends a request calls `beat` when it ends, even by a
failure.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from ballast_operator.clock import monotonic


@dataclass(slots=True)
class Pulse:
    at: float


PULSE: ContextVar[Pulse | None] = ContextVar("pulse", default=None)


def beat() -> None:
    pulse = PULSE.get()
    if pulse is not None:
        pulse.at = monotonic()
