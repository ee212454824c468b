"""Topics' lists of throttled replicas hold what the moves need and, at the end, what they held before.

The Reassignments here are the operator's own objects, written as JSON and read back at every look; the cluster is their
configurations. Whatever happens is one effect after the other, and the operator may be killed before each of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.operator.making import NOW, changed, move, reassignment, topic_view, view
from tests.operator.test_left_behind import CLUSTER, shared_by

from ballast_operator.cache import Cache
from ballast_operator.handlers.plans import Case
from ballast_operator.handlers.reassignments import ReassignmentHandler
from ballast_operator.handlers.throttling import share_of
from ballast_operator.model.fields import write
from ballast_operator.model.kafka import BROKER, TOPIC, ConfigId, KafkaView
from ballast_operator.model.reassignment import Phase, ReassignmentStatus
from ballast_operator.plan.lifecycle import Step, inverse
from ballast_operator.plan.moves import assess_all
from ballast_operator.plan.stored import StoredPlan, keep
from ballast_operator.plan.throttled_lists import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    Part,
    PutBack,
    _kept,
    plan_lists,
    split,
)
from ballast_operator.plan.throttles import LEADER_RATE, plan_throttles
from ballast_operator.status import REASSIGNMENT
from ballast_planner import Move, Placement, Plan

# What a request to etcd and the API server may have, with room for what else is in the object.
MOST_BYTES = 1_000_000
BROKERS = range(6)


class Killed(Exception):
    """The operator, at this point."""


# Enough to put back all that there is and to see it: before that, the next one begins with it again.
EFFECTS_OF_A_SHORT_LIFE = 40


@dataclass
class Bench:
    """A cluster's configurations and the Reassignments' statuses; the rest of an operator is gone when it is killed."""

    configs: dict[ConfigId, str]
    plans: dict[str, StoredPlan]
    throttle: str | None = "1000"
    statuses: dict[str, str] = field(default_factory=dict)
    directions: dict[str, str] = field(default_factory=dict)
    kill_before: int | None = None
    kill_at_each: bool = False
    effects: int = 0
    put_back: PutBack = field(default_factory=dict)

    def view(self) -> KafkaView:
        topics = {m.topic for plan in self.plans.values() for m in plan.moves}
        found: dict[str, dict[str, str]] = {name: {} for name in topics}
        brokers: dict[int, dict[str, str]] = {broker: {} for broker in BROKERS}
        for config, value in self.configs.items():
            (brokers[int(config.name)] if config.resource == BROKER else found[config.name])[config.key] = value
        views = {name: topic_view((0, 1), (0, 1)) for name in topics}
        return view(views, brokers=BROKERS, broker_configs=brokers, topic_configs=found)

    def look(self) -> bool:
        """One look of an operator that knows what is written, and what it has put back; whether all is as it should."""
        handler, seen = ReassignmentHandler(CLUSTER, shared_by(Cache())), self.view()
        cases = [self._case(name, seen) for name in self.plans]
        planned = plan_throttles([share_of(case) for case in cases], seen, self.put_back)
        self.put_back = planned.put_back
        before = dict(self.statuses)
        for case in cases:
            case.records = planned.records[str(case.reassignment.key)]
            case.lists = planned.lists[str(case.reassignment.key)]
            assert case.step is not None
            told = json.dumps(write(handler._statuses.wanted_status(case, case.step)))
            if told != self.statuses.get(case.reassignment.meta.name):
                self._happens()
                self.statuses[case.reassignment.meta.name] = told
        for change in planned.changes:
            for key, value in change.values.items():
                self._happens()
                config = ConfigId(change.resource, change.name, key)
                after = changed(self.configs.pop(config, None), value)
                if after is not None:
                    self.configs[config] = after
                gone = planned.restoring.get(config, frozenset()) | self.put_back.get(config, frozenset())
                self.put_back = {**self.put_back, config: gone} if config in planned.restoring else self.put_back
        return not planned.changes and not planned.unsettled and before == self.statuses

    def _case(self, name: str, seen: KafkaView) -> Case:
        spec = {"throttle": {"interBroker": self.throttle}} if self.throttle else {}
        subject = reassignment(name, json.loads(self.statuses.get(name, "{}")), **spec)
        case = Case(subject, self.plans[name], status=subject.status)
        case.records, case.lists = subject.status.throttle, subject.status.throttled_lists
        direction = self.directions.get(name, "")
        moves = inverse(case.plan.moves) if case.plan and direction == "back" else self.plans[name].moves
        held = direction in ("there", "back")
        phase = Phase.RUNNING if held else Phase.VERIFYING
        states = assess_all(moves, seen)
        case.step = Step(phase, REASSIGNMENT["Planning"].says(), states, holds_throttles=held)
        return case

    def _happens(self) -> None:
        self.effects += 1
        if self.kill_at_each or self.effects == self.kill_before:
            if self.kill_at_each and self.effects % EFFECTS_OF_A_SHORT_LIFE:
                return
            self.put_back = {}
            raise Killed

    def settle(self, **directions: str) -> None:
        """Look until there is nothing more to do, with another operator whenever one was killed."""
        self.directions |= directions
        for _ in range(300):
            try:
                if self.look():
                    return
            except Killed:
                continue
        raise AssertionError(f"does not settle: {self.statuses}")


def topic_list(topic: str, key: str = LEADER_REPLICAS) -> ConfigId:
    return ConfigId(TOPIC, topic, key)


def moving(topic: str, partition: int = 0, source: tuple[int, ...] = (0, 1), target: tuple[int, ...] = (1, 2)) -> Move:
    return move(
        tuple((broker, "/a") for broker in source), tuple((broker, "/a") for broker in target), partition, name=topic
    )


FIRST = keep(Plan((moving("plain"), moving("shared"), moving("named"), moving("all"))))
SECOND = keep(Plan((moving("shared", 1, (3, 4), (4, 5)), moving("named", 1))))
# What somebody else had set, some of it the very entries that the moves need, in an order and a style of its own.
BEFORE = {
    topic_list("named"): "7:9, 0:2,0:1",
    topic_list("named", FOLLOWER_REPLICAS): "1:2,0:0",
    topic_list("all"): "*",
    ConfigId(BROKER, "1", LEADER_RATE): "77",
}


def tidy(configs: Mapping[ConfigId, str]) -> dict[ConfigId, list[str]]:
    return {config: sorted(split(value)) for config, value in configs.items()}


def stages(bench: Bench) -> Iterator[str]:
    """Two that share topics come, go back, are throttled no more, throttled again, and end."""
    bench.settle(first="there")
    yield "first"
    bench.settle(second="there")
    yield "both"
    bench.throttle = None
    bench.settle()
    yield "unthrottled"
    bench.throttle = "500"
    bench.settle()
    yield "again"
    bench.settle(first="back")
    yield "back"
    bench.settle(first="")
    yield "second"
    bench.settle(second="")
    yield "end"


def holds(bench: Bench, config: ConfigId, *entries: str) -> bool:
    return set(entries) <= set(split(bench.configs.get(config)))


def check(bench: Bench, stage: str) -> None:
    """What has to stand at this point, whatever happened on the way."""
    if stage in ("first", "both", "again"):
        assert holds(bench, topic_list("plain"), "0:0", "0:1")
        assert holds(bench, topic_list("plain", FOLLOWER_REPLICAS), "0:2")
        assert holds(bench, topic_list("named"), "7:9", "0:2", "0:0", "0:1")
    if stage in ("both", "again", "back", "second"):
        assert holds(bench, topic_list("shared"), "1:3", "1:4")
        assert holds(bench, topic_list("shared", FOLLOWER_REPLICAS), "1:5")
    if stage == "back":
        assert bench.configs[topic_list("plain")] == "0:1,0:2"
        assert bench.configs[topic_list("plain", FOLLOWER_REPLICAS)] == "0:0"
    if stage == "second":
        assert topic_list("plain") not in bench.configs
        assert bench.configs[topic_list("shared")] == "1:3,1:4"
    if stage in ("unthrottled", "end"):
        assert tidy(bench.configs) == tidy(BEFORE)
        assert all(not status(told).holds_throttles for told in bench.statuses.values())
    assert bench.configs[topic_list("all")] == "*"


def status(told: str) -> ReassignmentStatus:
    return reassignment("any", json.loads(told)).status


def new_bench(**more: Any) -> Bench:
    return Bench(dict(BEFORE), {"first": FIRST, "second": SECOND}, directions={"first": "", "second": ""}, **more)


@pytest.mark.spec("OPR-35", "OPR-04")
def test_lists_are_right_at_every_stage_and_at_the_end_as_they_were() -> None:
    bench = new_bench()
    for stage in stages(bench):
        check(bench, stage)
    assert {config: split(value) for config, value in bench.configs.items()} == {
        config: split(value) for config, value in BEFORE.items()
    }, "in the order in which they stood"


@pytest.mark.spec("OPR-35", "OPR-04")
def test_lists_are_put_back_when_the_operator_is_killed_before_any_one_effect() -> None:
    honest = new_bench()
    for _ in stages(honest):
        pass
    assert honest.effects > 50
    for point in range(1, honest.effects + 1):
        bench = new_bench(kill_before=point)
        for stage in stages(bench):
            check(bench, stage)


@pytest.mark.spec("OPR-35", "OPR-04")
def test_lists_are_put_back_when_every_operator_is_killed_after_a_few_effects() -> None:
    bench = new_bench(kill_at_each=True)
    for stage in stages(bench):
        check(bench, stage)


def recorded(config: ConfigId, prior: str | None, *applied: str) -> dict[str, Any]:
    row = {"resource": config.resource, "name": config.name, "key": config.key, "applied": list(applied)}
    return row | ({"prior": prior} if prior is not None else {})


# As an operator before this one wrote it for FIRST, of which the lists of `plain` and `named` do or do not stand yet.
OLD_RECORDS = [
    recorded(topic_list("plain"), None, "0:0,0:1"),
    recorded(topic_list("plain", FOLLOWER_REPLICAS), None, "0:2"),
    recorded(topic_list("shared"), None, "0:0,0:1"),
    recorded(topic_list("shared", FOLLOWER_REPLICAS), None, "0:2"),
    recorded(topic_list("named"), "7:9, 0:2,0:1", "0:0,0:1,0:2,7:9"),
    recorded(topic_list("named", FOLLOWER_REPLICAS), "1:2,0:0", "0:0,0:2,1:2"),
    recorded(topic_list("all"), "*", "*"),
    recorded(topic_list("all", FOLLOWER_REPLICAS), None, "0:2"),
]


@pytest.mark.spec("OPR-35", "OPR-04")
@pytest.mark.parametrize("applied", [0, 3, len(OLD_RECORDS)])
@pytest.mark.parametrize("ends", [False, True])
def test_what_an_older_operator_had_recorded_is_put_back_by_one_that_takes_over(applied: int, ends: bool) -> None:
    def old_bench(**more: Any) -> Bench:
        old = {"phase": "Running", "startedAt": NOW, "throttle": OLD_RECORDS}
        bench = new_bench(statuses={"first": json.dumps(old)}, **more)
        for row in OLD_RECORDS[:applied]:
            bench.configs[ConfigId(row["resource"], row["name"], row["key"])] = row["applied"][0]
        bench.directions["first"] = "" if ends else "there"
        return bench

    def live(bench: Bench) -> None:
        if ends:
            bench.settle()
        else:
            for stage in stages(bench):
                check(bench, stage)
        assert tidy(bench.configs) == tidy(BEFORE)
        assert not status(bench.statuses["first"]).holds_throttles

    honest = old_bench()
    live(honest)
    for point in range(1, honest.effects + 1):
        live(old_bench(kill_before=point))


@pytest.mark.spec("OPR-35")
def test_what_somebody_else_puts_into_a_list_meanwhile_stays_and_ours_goes() -> None:
    bench = new_bench()
    bench.settle(first="there")
    bench.configs[topic_list("plain")] += ",5:5"
    bench.configs[topic_list("shared")] = "6:6"
    bench.settle()
    assert bench.configs[topic_list("shared")] == "6:6,0:0,0:1"
    bench.settle(first="")
    assert (bench.configs[topic_list("plain")], bench.configs[topic_list("shared")]) == ("5:5", "6:6")


@pytest.mark.spec("OPR-35", "OPR-04")
def test_entries_that_the_next_one_needs_stay_until_it_ends() -> None:
    """The first puts back its throttles, its partitions are free, and the second takes them on."""

    def live(bench: Bench) -> Bench:
        bench.plans["second"] = keep(Plan((moving("plain", 0, (1, 2), (2, 3)),)))
        bench.settle(first="there")
        bench.settle(first="", second="there")
        assert bench.configs[topic_list("plain")] == "0:1,0:2"
        assert bench.configs[topic_list("plain", FOLLOWER_REPLICAS)] == "0:3"
        bench.settle(second="")
        assert tidy(bench.configs) == tidy(BEFORE)
        return bench

    for point in range(1, live(new_bench()).effects + 1):
        live(new_bench(kill_before=point))


@pytest.mark.spec("OPR-35", "OPR-08")
def test_nothing_is_put_in_before_it_is_known_what_stood_there_and_nothing_is_forgotten_that_cannot_be_read() -> None:
    own, wanted = FIRST.throttled_entries, {topic_list("plain"): ["0:0", "0:1"]}
    seen = new_bench().view()
    unread = replace(seen, topic_configs={name: row for name, row in seen.topic_configs.items() if name != "plain"})
    waits = plan_lists([Part("r", wanted, own)], unread)
    assert (waits.held, waits.changes, waits.unreadable) == ({"r": None}, {}, frozenset({"r"}))
    begun = plan_lists([Part("r", wanted, own)], seen).held["r"]
    assert begun is not None
    ended = plan_lists([Part("r", {}, own, begun)], unread)
    assert ended.held == {"r": begun}
    assert {config for config in ended.changes if config.name == "plain"} == set()
    gone = replace(unread, missing=frozenset({"plain"}))
    assert plan_lists([Part("r", {}, own, begun)], gone, ended.restoring).held == {"r": None}


def large(topics: int, partitions: int) -> StoredPlan:
    """Every partition goes to three other brokers of 80, each with ten volumes."""

    def placement(seed: int) -> Placement:
        brokers = tuple((seed + step * 27) % 80 for step in range(3))
        return Placement(brokers, tuple(f"/var/lib/ballast/volumes/data-{(seed + b) % 10}/logs" for b in brokers))

    def moves(topic: int) -> Iterator[Move]:
        for partition in range(partitions):
            at = topic + partition
            name = f"team-{topic % 97}.service-{topic}.events.v1"
            yield Move(name, partition, placement(at), placement(at + 7), 1 << 30, 0, topic % 40)

    return keep(Plan(tuple(move for topic in range(topics) for move in moves(topic))))


@pytest.mark.spec("OPR-34", "OPR-35")
@pytest.mark.parametrize("stood_before", [False, True])
def test_a_reassignment_of_thousands_of_topics_fits_into_a_request(stood_before: bool) -> None:
    """20,000 partitions of 5,000 topics over 80 brokers: the records of each topic were more than etcd takes."""
    plan = large(5_000, 4)
    handler = ReassignmentHandler(CLUSTER, shared_by(Cache()))
    # All that the moves of half the topics need had been set by somebody else.
    half = set(sorted(plan.topics)[::2]) if stood_before else set()
    before = {c: ",".join(row) for c, row in plan.throttled_entries.items() if c.name in half}
    configs: dict[str, dict[str, str]] = {name: {} for name in plan.topics}
    for config, value in before.items():
        configs[config.name][config.key] = value
    topics = {name: topic_view(*[(0, 1, 2)] * 4) for name in plan.topics}
    rates: dict[int, dict[str, str]] = {broker: {} for broker in range(80)}
    seen = view(topics, brokers=range(80), broker_configs=rates, topic_configs=configs)
    spec: dict[str, Any] = {"throttle": {"interBroker": "50Mi", "intraBroker": "50Mi"}, "drainBrokers": [1]}
    step = Step(Phase.RUNNING, REASSIGNMENT["Planning"].says(), assess_all(plan.moves, seen), holds_throttles=True)
    case = Case(reassignment("large", **spec), plan, step)
    planned = plan_throttles([share_of(case)], seen)
    case.records, case.lists = planned.records["default/large"], planned.lists["default/large"]
    told = json.dumps(write(handler._statuses.wanted_status(case, step)))
    assert len(told) < 100_000
    changes = [change for change in planned.changes if change.resource == TOPIC]
    assert len(changes) == 5_000 - len(half)
    for change in changes:
        configs[change.name] |= {key: changed(None, value) or "" for key, value in change.values.items()}

    again = reassignment("large", json.loads(told), **spec)
    ended = Case(again, plan, Step(Phase.VERIFYING, REASSIGNMENT["Planning"].says()), again.status)
    ended.records, ended.lists = again.status.throttle, again.status.throttled_lists
    back = [change for change in plan_throttles([share_of(ended)], seen).changes if change.resource == TOPIC]
    assert {change.name for change in back} == plan.topics - half
    assert {value for change in back for value in change.values.values()} == {None}


@pytest.mark.spec("OPR-34", "OPR-35")
def test_the_status_of_the_largest_reassignment_fits_whatever_stood_before() -> None:
    """A tenth of one of 480,000 partitions, whose entries had been set without any order."""
    plan, chance = large(2_000, 24), random.Random(5)
    configs: dict[str, dict[str, str]] = {name: {} for name in plan.topics}
    for config, row in plan.throttled_entries.items():
        configs[config.name][config.key] = ",".join(entry for entry in row if chance.random() < 0.5)
    part = Part("r", plan.throttled_entries, plan.throttled_entries)
    held = plan_lists([part], view(topic_configs=configs)).held["r"]
    assert held is not None
    assert held.before is not None
    assert 10_000 < len(held.before) < MOST_BYTES / 10
    kept = sum(map(len, _kept(held, plan.throttled_entries).values()))
    assert kept == sum(value.count(":") for row in configs.values() for value in row.values())
