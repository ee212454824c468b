"""Whatever is lost on the way, throttles end as they were: histories in which statuses are refused by the API one by
one, brokers lag behind what the controller acknowledged, answers are lost and the operator forgets what it remembered.

Every broker hears of all changes in their order, as late as it likes: it tells its own rate, and any of them is asked
about the topics' lists. Only an operator that starts anew finds that all have heard what the one before it put back.
"""

from random import Random

import pytest
from tests.operator.making import changed, topic_view, view

from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.kafka import BROKER, TOPIC, ConfigId, KafkaView
from ballast_operator.model.reassignment import ThrottledLists, ThrottleRecord
from ballast_operator.plan.throttled_lists import LEADER_REPLICAS, Part, PutBack
from ballast_operator.plan.throttles import LEADER_RATE, Share, ThrottlePlan, plan_throttles

BROKERS = (0, 1)
RATES = ("100", "300")
LIST = ConfigId(TOPIC, "orders", LEADER_REPLICAS)
PARTITIONS = 4
HISTORIES = 800
TROUBLED_LOOKS = 40
QUIET_LOOKS = 12

Values = dict[ConfigId, str | None]


def rate_of(broker: int) -> ConfigId:
    return ConfigId(BROKER, str(broker), LEADER_RATE)


class History:
    """Reassignments that come and go beside one another on two brokers, and looks of an operator at them."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._quiet = False
        self.before: Values = {rate_of(broker): self._random.choice((None, "7")) for broker in BROKERS}
        self.before[LIST] = self._random.choice((None, "9:9", "0:0,9:9"))
        # What the controller held, one state for each change. Each broker has heard of the first so many.
        self._states: list[Values] = [self.before]
        self._heard = dict.fromkeys(BROKERS, 1)
        self._heard_by_all = 1
        self._wants: dict[str, dict[ConfigId, str]] = {}
        self._parts: dict[str, Part] = {}
        self.statuses: dict[str, tuple[tuple[ThrottleRecord, ...], ThrottledLists | None]] = {}
        self._put_back: PutBack = {}
        self.told: list[str] = []

    def play(self) -> None:
        for number in range(TROUBLED_LOOKS):
            self._come_and_go(number)
            self._look()
        self._quiet = True
        for name in list(self._wants):
            self._end(name)
        for _ in range(QUIET_LOOKS):
            self._look()

    @property
    def now(self) -> Values:
        return self._states[-1]

    def _come_and_go(self, number: int) -> None:
        busy = {int(row[0].partition(":")[0]) for part in self._parts.values() for row in part.wanted.values()}
        free = sorted(set(range(PARTITIONS)) - busy)
        if len(self._wants) < 3 and free and self._chance(0.3):
            name, rate, partition = f"r{number}", self._random.choice(RATES), self._random.choice(free)
            brokers = self._random.choice(((0,), (1,), BROKERS))
            self._wants[name] = {rate_of(broker): rate for broker in brokers}
            own = [f"{partition}:{broker}" for broker in range(3)]
            self._parts[name] = Part(name, {LIST: self._random.sample(own, 2)}, {LIST: own})
            self.statuses[name] = ((), None)
            self.told.append(f"{name} comes with {rate} for {brokers} and {self._parts[name].wanted}")
        for name, wants in self._wants.items():
            if wants and self._chance(0.2):
                self._end(name)
        if self._chance(0.1):
            self._put_back = {}
            self._heard = {broker: max(heard, self._heard_by_all) for broker, heard in self._heard.items()}
            self.told.append("the operator starts anew")

    def _end(self, name: str) -> None:
        self._wants[name] = {}
        self._parts[name] = Part(name, {}, self._parts[name].own)
        self.told.append(f"{name} has ended")

    def _look(self) -> None:
        plan = plan_throttles([self._share(name) for name in self._wants], self._observed(), self._put_back)
        self.told.append(f"look: {plan.records} {plan.lists} {plan.changes}")
        written = [self._write(name, plan) for name in self._wants]
        self._put_back = plan.put_back
        if all(written):
            for change in plan.changes:
                self._change(change, plan)
        for name in [name for name, wants in self._wants.items() if not wants and self.statuses[name] == ((), None)]:
            del self._wants[name], self._parts[name], self.statuses[name]

    def _share(self, name: str) -> Share:
        records, lists = self.statuses[name]
        part = self._parts[name]
        return Share(name, self._wants[name], records, Part(name, part.wanted, part.own, lists))

    def _observed(self) -> KafkaView:
        known: dict[int, dict[str, str]] = {}
        for broker, heard in self._heard.items():
            last = len(self._states)
            self._heard[broker] = last if self._quiet else self._random.randint(heard, last)
            if self._quiet or self._chance(0.9):
                known[broker] = self._said(broker, rate_of(broker))
        asked = self._random.choice(BROKERS)
        lists = {"orders": self._said(asked, LIST)} if self._quiet or self._chance(0.9) else {}
        self.told.append(f"brokers say {known}, {asked} of the list {lists}, the controller {self.now}")
        return view({"orders": topic_view((0, 1))}, brokers=BROKERS, broker_configs=known, topic_configs=lists)

    def _said(self, broker: int, config: ConfigId) -> dict[str, str]:
        value = self._states[self._heard[broker] - 1][config]
        return {config.key: value} if value is not None else {}

    def _write(self, name: str, plan: ThrottlePlan) -> bool:
        if not self._quiet and self._chance(0.2):
            self.told.append(f"the status of {name} is refused")
            return False
        before, self.statuses[name] = self.statuses[name], (plan.records[name], plan.lists[name])
        if len(plan.records[name]) < len(before[0]) or (before[1] is not None and plan.lists[name] is None):
            self._heard_by_all = len(self._states)
        return True

    def _change(self, change: AlterConfig, plan: ThrottlePlan) -> None:
        fate = "done" if self._quiet else self._random.choice(("done", "done", "done", "unheard", "lost"))
        for key, setting in change.values.items():
            config = ConfigId(change.resource, change.name, key)
            if fate != "lost":
                self._states.append({**self.now, config: changed(self.now[config], setting)})
            if fate == "done" and config in plan.restoring:
                gone = self._put_back.get(config, frozenset()) | plan.restoring[config]
                self._put_back = {**self._put_back, config: gone}
            self.told.append(f"{config} is set to {setting}: {fate}")

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
