"""Whatever is lost on the way, throttles end as they were: histories in which statuses are refused by the API one by
one, brokers lag behind what the controller acknowledged, answers are lost and the operator forgets what it remembered.

A broker that lags hears of all that it has missed at once, as it does but for the moment in which it takes it in.
"""

from random import Random

import pytest
from making import topic_view, view

from ballast_operator.model.kafka import BROKER, ConfigId, KafkaView
from ballast_operator.model.reassignment import ThrottleRecord
from ballast_operator.plan.throttles import LEADER_RATE, Share, ThrottlePlan, plan_throttles

BROKERS = (0, 1)
RATES = ("100", "300")
HISTORIES = 1500
TROUBLED_LOOKS = 40
QUIET_LOOKS = 12


class History:
    """Reassignments that come and go beside one another on two brokers, and looks of an operator at them."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._quiet = False
        self.before = {broker: self._random.choice((None, "7")) for broker in BROKERS}
        # What the controller holds: every value in turn. Each broker has heard of the first so many.
        self._values: dict[int, list[str | None]] = {broker: [self.before[broker]] for broker in BROKERS}
        self._heard = dict.fromkeys(BROKERS, 1)
        self._wants: dict[str, dict[ConfigId, str]] = {}
        self.statuses: dict[str, tuple[ThrottleRecord, ...]] = {}
        self._put_back: frozenset[ConfigId] = frozenset()
        self.told: list[str] = []

    def play(self) -> None:
        for number in range(TROUBLED_LOOKS):
            self._come_and_go(number)
            self._look()
        self._quiet = True
        for name in self._wants:
            self._wants[name] = {}
        for _ in range(QUIET_LOOKS):
            self._look()

    @property
    def now(self) -> dict[int, str | None]:
        return {broker: values[-1] for broker, values in self._values.items()}

    def _come_and_go(self, number: int) -> None:
        if len(self._wants) < 3 and self._chance(0.3):
            rate = self._random.choice(RATES)
            brokers = self._random.choice(((0,), (1,), BROKERS))
            self._wants[f"r{number}"] = {ConfigId(BROKER, str(broker), LEADER_RATE): rate for broker in brokers}
            self.statuses[f"r{number}"] = ()
            self.told.append(f"r{number} comes with {rate} for {brokers}")
        for name, wants in self._wants.items():
            if wants and self._chance(0.2):
                self._wants[name] = {}
                self.told.append(f"{name} has ended")
        if self._chance(0.1):
            self._put_back = frozenset()
            self.told.append("the operator starts anew")

    def _look(self) -> None:
        plan = plan_throttles(
            [Share(name, wants, self.statuses[name]) for name, wants in self._wants.items()],
            self._observed(),
            self._put_back,
        )
        self.told.append(f"look: {plan.records} {plan.changes}")
        written = [self._write(name, plan) for name in self._wants]
        self._put_back &= plan.restoring
        if all(written):
            self._change(plan)
        for name in [name for name, wants in self._wants.items() if not wants and not self.statuses[name]]:
            del self._wants[name], self.statuses[name]

    def _observed(self) -> KafkaView:
        known = {}
        for broker, values in self._values.items():
            if self._quiet or self._chance(0.6):
                self._heard[broker] = len(values)
            if self._quiet or self._chance(0.9):
                value = values[self._heard[broker] - 1]
                known[broker] = {LEADER_RATE: value} if value is not None else {}
        self.told.append(f"brokers say {known}, the controller {self.now}")
        return view({"orders": topic_view((0, 1))}, brokers=BROKERS, broker_configs=known)

    def _write(self, name: str, plan: ThrottlePlan) -> bool:
        if not self._quiet and self._chance(0.2):
            self.told.append(f"the status of {name} is refused")
            return False
        self.statuses[name] = plan.records[name]
        return True

    def _change(self, plan: ThrottlePlan) -> None:
        for change in plan.changes:
            broker = int(change.name)
            fate = "done" if self._quiet else self._random.choice(("done", "done", "done", "unheard", "lost"))
            if fate != "lost":
                self._values[broker].append(change.values[LEADER_RATE])
            if fate == "done":
                self._put_back |= {ConfigId(BROKER, change.name, LEADER_RATE)} & plan.restoring
            self.told.append(f"{broker} is set to {change.values[LEADER_RATE]}: {fate}")

    def _chance(self, likely: float) -> bool:
        return self._random.random() < likely


@pytest.mark.spec("OPR-35")
def test_whatever_is_lost_on_the_way_every_throttle_ends_as_it_was() -> None:
    for seed in range(HISTORIES):
        history = History(seed)
        history.play()
        told = "\n".join([f"seed {seed}", *history.told])
        assert not history.statuses, told
        assert history.now == history.before, told
