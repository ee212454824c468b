"""Remembers which throttles this process has put back, since lagging brokers may still report them.

This is the only state that is in neither Kafka nor Kubernetes. A new leader does not know what its predecessor put back
a moment ago. Until no broker can lag that far any more, an observed rate that equals one asked for by a Reassignment
may be such a remnant, and is not taken for somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ballast_operator.clock import monotonic
from ballast_operator.model.kafka import ConfigId, Outcome
from ballast_operator.model.reassignment import Throttle
from ballast_operator.plan.throttled_lists import NONE, PutBack
from ballast_operator.plan.throttles import ThrottlePlan, rates_of

# A broker that lags this far behind the controller was fenced long ago.
LAG_SECONDS = 60.0


class PutBackMemory:
    """Throttles that were put back, as acknowledged by the controller, and when. If forgotten, they are put back
    again."""

    def __init__(self) -> None:
        self._known: dict[ConfigId, tuple[frozenset[str], float]] = {}
        self._began = 0.0
        self._looked: float | None = None

    def look(self) -> None:
        """A look begins. After a long pause another operator may have been the leader meanwhile."""
        now = monotonic()
        if self._looked is None or now - self._looked >= LAG_SECONDS:
            self._began = now
        self._looked = now

    @property
    def known(self) -> PutBack:
        return {config: gone for config, (gone, _) in self._known.items()}

    def suspected(self, throttles: Iterable[Throttle | None]) -> frozenset[str]:
        """Rates that may be ours although no status records them."""
        return rates_of(throttles) if monotonic() - self._began < LAG_SECONDS else NONE

    def keep(self, put_back: PutBack) -> None:
        """Forget all but these, and what is too old to matter."""
        self._known = {
            config: (gone, since)
            for config, gone in put_back.items()
            if monotonic() - (since := self._known[config][1]) < LAG_SECONDS
        }

    def note(self, throttles: ThrottlePlan, outcomes: Mapping[tuple[str, str], Outcome]) -> None:
        """Remember what was put back and acknowledged."""
        for change in throttles.changes:
            outcome = outcomes.get((change.resource, change.name))
            for key in change.values if outcome is not None and outcome.ok else ():
                config = ConfigId(change.resource, change.name, key)
                if config in throttles.restoring:
                    before, _ = self._known.get(config, (NONE, 0.0))
                    self._known[config] = (before | throttles.restoring[config], monotonic())
