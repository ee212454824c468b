"""When a worker has last come a step further. An API server that is slow makes a look long, which does not mean that
it is stuck: a probe that ended the operator for it would make it begin again, and come no further than before.

A cycle and all tasks that it starts share one `Pulse`; whoever asks anybody on its behalf says when that came to an
end, be it a failure.
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
