"""What this process remembers of throttles that were put back: brokers may not have heard of it yet.

It is the one thing that operators do not find in Kafka or Kubernetes. One that has just begun to look knows nothing of
what another did a moment before; until no broker can lag any more, a rate that a Reassignment here asks for may be one
that was put back, and is not taken for somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ballast_operator.clock import monotonic
from ballast_operator.model.kafka import ConfigId, Outcome
from ballast_operator.model.reassignment import Throttle
from ballast_operator.plan.throttled_lists import NONE, PutBack
from ballast_operator.plan.throttles import ThrottlePlan, rates_of

# A broker that has not heard for so long what the controller acknowledged is fenced long since.
LAG_SECONDS = 60.0


class PutBackMemory:
    """Throttles that are back where they were, as the controller acknowledged, and since when. Forgotten, they are put
    back again."""

    def __init__(self) -> None:
        self._known: dict[ConfigId, tuple[frozenset[str], float]] = {}
        self._began = 0.0
        self._looked: float | None = None

    def look(self) -> None:
        """A look begins. After a long pause somebody else may have led meanwhile."""
        now = monotonic()
        if self._looked is None or now - self._looked >= LAG_SECONDS:
            self._began = now
        self._looked = now

    @property
    def known(self) -> PutBack:
        return {config: gone for config, (gone, _) in self._known.items()}

    def suspected(self, throttles: Iterable[Throttle | None]) -> frozenset[str]:
        """Rates that may be ours although nobody has them in its records."""
        return rates_of(throttles) if monotonic() - self._began < LAG_SECONDS else NONE

    def keep(self, put_back: PutBack) -> None:
        """Only these still matter."""
        self._known = {
            config: (gone, since)
            for config, gone in put_back.items()
            if monotonic() - (since := self._known[config][1]) < LAG_SECONDS
        }

    def note(self, throttles: ThrottlePlan, outcomes: Mapping[tuple[str, str], Outcome]) -> None:
        """What was changed and acknowledged."""
        for change in throttles.changes:
            outcome = outcomes.get((change.resource, change.name))
            for key in change.values if outcome is not None and outcome.ok else ():
                config = ConfigId(change.resource, change.name, key)
                if config in throttles.restoring:
                    before, _ = self._known.get(config, (NONE, 0.0))
                    self._known[config] = (before | throttles.restoring[config], monotonic())
