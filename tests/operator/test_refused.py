"""Reassignments that a policy or a webhook lets nobody change: they say so, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.faults import FaultyApi, behind_faults
from tests.operator.making import NOW, move, reassignment, topic_view, view
from tests.operator.world import World

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi
from ballast_operator.apply.refused import TRY_AGAIN_SECONDS
from ballast_operator.cache import Cache
from ballast_operator.cycle import Shared
from ballast_operator.events import Events
from ballast_operator.handlers import refusals
from ballast_operator.handlers.plans import Case
from ballast_operator.handlers.refusals import Refusals
from ballast_operator.handlers.throttling import Throttling, share_of
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.metrics import Metrics
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.kafka import BROKER, KafkaView, LogView, Outcome
from ballast_operator.model.meta import FINALIZER, Key
from ballast_operator.model.reassignment import Reassignment
from ballast_operator.observe import observe_broker_configs
from ballast_operator.plan.lifecycle import ReassignmentFacts, next_step
from ballast_operator.plan.stored import keep
from ballast_operator.plan.throttles import plan_throttles
from ballast_operator.worker import Part, Requeue
from ballast_planner import Plan

CLUSTER = Key("default", "demo")
NOBODY = ApiAccess("http://127.0.0.1:1")
DENIED = ApiError(403, "Forbidden", "a policy wants a label")


@pytest.fixture(scope="module")
def faulty(ballast_world: World) -> Iterator[FaultyApi]:
    with behind_faults(ballast_world) as proxy:
        yield proxy


def told(world: World, name: str) -> list[str]:
    """The messages of a Reassignment's Events that it is refused."""
    return [
        event["message"]
        for event in world.objects("v1", "events")
        if event["involvedObject"]["name"] == name and event["reason"] == "KubernetesRefused"
    ]


@pytest.mark.timeout(300)
@pytest.mark.spec("OPR-05", "OPR-33", "OPR-35")
def test_a_reassignment_that_a_policy_refuses_holds_up_no_other(ballast_world: World, faulty: FaultyApi) -> None:
    world = ballast_world
    world.movable_topic("refused", [[0, 1]] * 3)
    objects = "/apis/ballast.dev/v1alpha1/namespaces/default/reassignments"
    faulty.policy = [f"PATCH {objects}/no-finalizer", f"PATCH {objects}/nothing(/status)?"]

    def moving(name: str, partition: int, to: list[int]) -> None:
        rows = [{"topic": "refused", "partition": partition, "replicas": to}]
        world.reassign(name, partitions=rows, throttle={"interBroker": "5Mi"})

    moving("no-finalizer", 0, [2, 1])
    moving("nothing", 1, [2, 1])
    message = world.until_reason("Reassignment", "no-finalizer", "KubernetesRefused")
    assert "Forbidden, says the proxy of the test" in message
    world.until("it is told in an Event", lambda: told(world, "nothing"))
    assert (world.get("Reassignment", "nothing") or {}).get("status") == {"observedGeneration": -1}

    # Of other partitions, and of one that an older one is to move and may not.
    moving("other", 2, [2, 1])
    moving("same", 0, [1, 2])
    world.until_phase("other", "Succeeded")
    world.until_phase("same", "Succeeded")
    assert {part.replicas for part in world.view().topics["refused"].partitions.values()} == {(1, 2), (0, 1), (2, 1)}

    faulty.policy = []
    world.until_phase("nothing", "Succeeded")
    world.until_reason("Reassignment", "no-finalizer", "Stale")
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}


@pytest.mark.timeout(300)
@pytest.mark.spec("OPR-33", "OPR-35")
def test_what_is_refused_while_it_runs_keeps_what_it_has_and_goes_on_afterwards(
    ballast_world: World, faulty: FaultyApi
) -> None:
    world = ballast_world
    world.movable_topic("midway", [[0, 1]] * 2, records=40)
    rows = [{"topic": "midway", "partition": 0, "replicas": [2, 1]}]
    world.reassign("midway", partitions=rows, throttle={"interBroker": "400Ki"})
    world.until_phase("midway", "Running")
    world.until("it moves", lambda: world.view().ongoing)
    faulty.policy = ["PATCH .*/reassignments/midway(/status)?"]
    # It cannot be written down that it is to be faster; another one at the same rate needs nothing of it.
    world.patch("Reassignment", "midway", {"spec": {"throttle": {"interBroker": "50Mi"}}})
    rows = [{"topic": "midway", "partition": 1, "replicas": [2, 1]}]
    world.reassign("beside", partitions=rows, throttle={"interBroker": "400Ki"})
    world.until("it is told in an Event", lambda: told(world, "midway"))
    world.until_phase("beside", "Running", "Verifying", "Succeeded")
    rates = {"leader.replication.throttled.rate": "409600", "follower.replication.throttled.rate": "409600"}
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: rates, 1: rates, 2: rates}
    faulty.policy = []
    world.touch("Reassignment", "midway")
    world.patch("Reassignment", "beside", {"spec": {"throttle": {"interBroker": "50Mi"}}})
    world.until_phase("midway", "Succeeded")
    world.until_phase("beside", "Succeeded")
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}


@pytest.mark.timeout(300)
@pytest.mark.spec("OPR-02", "OPR-05")
def test_a_status_that_nobody_may_write_is_told_in_an_event_and_the_rest_is_served(
    ballast_world: World, faulty: FaultyApi
) -> None:
    """The KafkaCluster's own was refused, and none of its topics and Reassignments was looked at any more. So it is
    where Kubernetes is older than 1.30 and a rule of the definitions is younger than a spec."""
    world = ballast_world
    faulty.policy = [r"PATCH .*/kafkaclusters/demo/status", r"PATCH .*/kafkatopics/untold/status"]
    world.patch("KafkaCluster", "demo", {"spec": {"resyncSeconds": 3}})
    world.until("it is told in an Event", lambda: told(world, "demo"))
    world.topic("untold", partitions=1)
    world.topic("told", partitions=1)
    world.until_ready("KafkaTopic", "told")
    world.until("it is told in an Event", lambda: told(world, "untold"))
    assert {"untold", "told"} <= world.view().topics.keys()
    faulty.policy = []
    world.patch("KafkaCluster", "demo", {"spec": {"resyncSeconds": 2}})
    world.until_ready("KafkaTopic", "untold")
    world.until_ready("KafkaCluster", "demo")


# Without processes.

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def shared() -> Shared:
    api = KubernetesApi(NOBODY)
    return Shared(api, Cache(), cast(Any, None), Events(api, lambda: NOW), Metrics(), lambda: NOW)


def moved_inside(name: str, broker: int, rate: str, **status: Any) -> Case:
    """One that runs, between two directories of a broker."""
    plan = keep(Plan((move(((broker, "/a"),), ((broker, "/b"),), partition=broker),)))
    runs = {"phase": "Running", "startedAt": NOW, "plan": {"hash": plan.hash}, **status}
    subject = reassignment(name, runs, drainBrokers=[broker], throttle={"intraBroker": rate})
    case = Case(subject, plan, status=subject.status, records=subject.status.throttle)
    case.step = next_step(ReassignmentFacts(subject, plan, seen(), now=NOW))
    return case


def seen(**rates: str) -> KafkaView:
    """Two brokers; of each what its rate is, named b0 and b1."""
    configs = {broker: {RATE: rates[f"b{broker}"]} if f"b{broker}" in rates else {} for broker in (0, 1)}
    logs = {("orders", broker, broker): LogView("/a", 1) for broker in (0, 1)}
    return view({"orders": topic_view((0,), (1,))}, logs, brokers=(0, 1), broker_configs=configs)


def throttled(*cases: Case, now: KafkaView, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], frozenset[str]]:
    """(rates that are set, by broker; who may start) where nothing of a refused one's status could be written."""
    set_to: dict[str, str] = {}

    async def alter(_: KafkaConnection, changes: Sequence[AlterConfig]) -> dict[tuple[str, str], Outcome]:
        set_to.update({change.name: str(change.values[RATE]) for change in changes})
        return {(change.resource, change.name): Outcome() for change in changes}

    monkeypatch.setattr(kafka_actions, "alter_configs", alter)
    plan = plan_throttles([share_of(case) for case in cases], now)
    ready = []
    for case in cases:
        case.records = plan.records[str(case.reassignment.key)]
        if not case.refused and case.reassignment.meta.name != "just refused":
            ready.append(case)
            written = replace(case.reassignment.status, throttle=case.records)
            case.reassignment = replace(case.reassignment, status=written)
    throttling = Throttling(CLUSTER, shared())
    return set_to, asyncio.run(throttling.apply(ready, cases, plan, cast(KafkaConnection, None)))


@pytest.mark.spec("OPR-35")
def test_of_who_was_just_refused_nothing_is_set_and_others_have_their_throttles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = moved_inside("just refused", 0, "1Mi"), moved_inside("other", 1, "2Mi")
    rates, able = throttled(*cases, now=seen(), monkeypatch=monkeypatch)
    assert rates == {"1": str(2 << 20)}
    assert able == frozenset(), "it is seen first that it stands"
    assert throttled(cases[1], now=seen(b1=str(2 << 20)), monkeypatch=monkeypatch)[1] == {"default/other"}


@pytest.mark.spec("OPR-35")
def test_who_is_refused_keeps_the_throttle_that_its_status_tells_and_needs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = {"resource": BROKER, "name": "0", "key": RATE, "applied": ["1"]}
    refused = moved_inside("refused", 0, "1Mi", throttle=[record])
    refused.refused = True
    # Another rate than the one that stands would be nobody's when it ends.
    other = moved_inside("other", 0, "2Mi")
    assert throttled(refused, other, now=seen(b0="1"), monkeypatch=monkeypatch) == ({}, frozenset())
    # One that has begun nothing wants nothing.
    waits = moved_inside("waits", 0, "1Mi", startedAt=None)
    waits.refused = True
    other = moved_inside("other", 0, "2Mi")
    assert throttled(waits, other, now=seen(), monkeypatch=monkeypatch)[0] == {"0": str(2 << 20)}


def asked(known: Refusals, subject: Reassignment, error: Exception | None) -> None:
    with known.told(subject):
        if error is not None:
            raise error


@pytest.mark.spec("OPR-05", "OPR-33")
def test_what_was_refused_is_tried_again_after_a_while_or_when_somebody_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(refusals, "monotonic", lambda: now[0])
    known, one = Refusals(shared().events), reassignment("one")
    uids = [one.meta.uid]
    assert known.due(one)
    asked(known, one, DENIED)
    written = replace(one, meta=replace(one.meta, resource_version="8"))
    assert (known.due(one), known.due(written)) == (False, False), "its own status was written"
    labelled = replace(one, meta=replace(one.meta, labels={"team": "data"}))
    assert known.due(labelled)
    now[0] += TRY_AGAIN_SECONDS
    assert known.due(one)
    asked(known, one, None)
    assert known.of(one) is None
    known.look(uids)
    asked(known, one, DENIED)
    known.look([])
    assert known.of(one) is None, "it was deleted"


@pytest.mark.spec("OPR-05", "OPR-06")
def test_a_webhook_that_takes_its_time_does_not_make_the_operator_look_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer may take many seconds: after some of them the others have to wait for the next look."""
    now = [1000.0]
    monkeypatch.setattr(refusals, "monotonic", lambda: now[0])
    known, late = Refusals(shared().events), ApiUnavailableError("PATCH", ApiError(500, "InternalError", "webhook"))
    many, tried = [reassignment(f"r{index}") for index in range(20)], 0

    def look() -> int:
        known.look([one.meta.uid for one in many])
        tried = 0
        for one in sorted(many, key=lambda one: known.of(one) is not None):
            if known.due(one):
                tried += 1
                with known.told(one):
                    now[0] += 12.0
                    raise late
        return tried

    for _ in range(7):
        began = now[0]
        tried += look()
        assert now[0] - began < 60
    assert all(known.of(one) is not None for one in many), f"each was tried within {tried}"


@pytest.mark.spec("OPR-05")
def test_what_gets_no_answer_is_no_refusal_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of one object alone, which is tried at the next look; where all are, a look does not take as long
    as all of them."""
    now = [1000.0]
    monkeypatch.setattr(refusals, "monotonic", lambda: now[0])
    known, one = Refusals(shared().events), reassignment("one", meta={"finalizers": [FINALIZER]})
    asked(known, one, ApiUnavailableError("connection refused"))
    assert (known.of(one), known.due(one)) == (None, True)
    known.come_back(one, requeue := Requeue())
    assert (requeue.reassignments_seconds, requeue.failed) == (0.0, {Part.REASSIGNMENTS})

    def hang() -> None:
        now[0] += 35.0
        raise ApiUnavailableError("timeout")

    with known.told(one):
        hang()
    assert not known.due(reassignment("two"))
    known.look([])
    assert known.due(reassignment("two"))
    known.come_back(one, requeue := Requeue())
    assert requeue.failed == set()
