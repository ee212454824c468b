"""What nobody would clear away or notice: plans, workers and tasks; and a cluster that cannot be read is not gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.making import NOW, TOPIC_ID, cluster, move, reassignment, topic_view, view

from ballast_operator import cycle as cycle_module
from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi
from ballast_operator.cache import Cache
from ballast_operator.clock import monotonic
from ballast_operator.cycle import ClusterCycle, Shared
from ballast_operator.events import Events
from ballast_operator.handlers import clusters as clusters_module
from ballast_operator.handlers import plans as plans_module
from ballast_operator.handlers import topic_statuses as statuses_module
from ballast_operator.handlers import topics as topics_module
from ballast_operator.handlers.clusters import ClusterHandler
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.reassignments import ReassignmentHandler
from ballast_operator.handlers.throttling import share_of
from ballast_operator.handlers.topic_statuses import Batch
from ballast_operator.handlers.topics import TopicHandler
from ballast_operator.kafka_client import KafkaConnection, KafkaUnavailableError
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.ledger import Ledger
from ballast_operator.metrics import Metrics
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.fields import write
from ballast_operator.model.kafka import KafkaView, LogView, Outcome, TopicPartition
from ballast_operator.model.meta import FINALIZER, Key, Meta
from ballast_operator.model.reassignment import Phase, Reassignment, ReassignmentStatus, ThrottledLists
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.plan.lifecycle import ReassignmentFacts, Step, next_step
from ballast_operator.plan.stored import keep
from ballast_operator.plan.throttles import plan_throttles
from ballast_operator.plan.topics import TopicFacts, TopicPlan, plan_topic
from ballast_operator.runtime import Runtime
from ballast_operator.side_by_side import AT_ONCE
from ballast_operator.status import REASSIGNMENT
from ballast_operator.worker import Part, Requeue, Work
from ballast_planner import Plan

NOBODY = ApiAccess("http://127.0.0.1:1")
CLUSTER = Key("default", "demo")
GOING = {"deletionTimestamp": NOW, "finalizers": [FINALIZER]}


def body(name: str, spec: dict[str, Any], status: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    known = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7", "generation": 1}
    return {"metadata": {**known, **meta}, "spec": spec, "status": status or {}}


class Told:
    """A writer that keeps what it is told to write."""

    def __init__(self) -> None:
        self.finalizers: dict[str, bool] = {}
        self.reasons: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.config_maps: list[str] = []

    async def keep_config_map(self, meta: Meta, name: str, owner: object, data: object) -> None:
        self.config_maps.append(name)

    async def set_finalizer(self, resource: Any, wanted: bool) -> bool:
        self.finalizers[resource.meta.name] = wanted
        return True

    async def write_status(self, resource: Any, status: Any) -> bool:
        ready = next(one for one in status.conditions if one.type == "Ready")
        self.reasons[resource.meta.name], self.messages[resource.meta.name] = ready.reason, ready.message
        return True


class Bare(KubernetesApi):
    """A Kubernetes in which nothing is."""

    async def find(self, path: str) -> None:
        return None


def shared_by(cache: Cache, writer: object = None, api: KubernetesApi | None = None) -> Shared:
    api = api or KubernetesApi(NOBODY)
    return Shared(api, cache, cast(Any, writer), Events(api, lambda: NOW), Metrics(), lambda: NOW)


def topics_by(cache: Cache, writer: object) -> TopicHandler:
    return TopicHandler(CLUSTER, cache, cast(Any, writer), shared_by(cache).events)


@pytest.mark.spec("OPR-05")
def test_the_plan_of_a_proposal_that_was_deleted_is_forgotten() -> None:
    handler = ReassignmentHandler(CLUSTER, shared_by(Cache()))
    handler._plans._known["deleted"] = keep(Plan((move(((0, "/a"),), ((0, "/b"),)),)))
    asyncio.run(handler.handle(cast(KafkaConnection, None), Requeue()))
    assert handler._plans._known == {}


@pytest.mark.spec("OPR-05")
def test_a_cluster_of_which_nothing_is_left_has_no_worker() -> None:
    async def scenario() -> None:
        runtime = Runtime(NOBODY)
        topic = body("orders", {"clusterRef": {"name": "demo"}, "partitions": 1})
        runtime.cache.put_topic(topic)
        worker, task = runtime._worker(CLUSTER), runtime._workers[CLUSTER][1]
        runtime._end_workers()
        assert runtime._worker(CLUSTER) is worker, "something of it is there"
        runtime.cache.remove_topic(Key("default", "orders"), "uid-orders")
        runtime._end_workers()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
        assert runtime._workers == {}
        assert runtime.alive() is None
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-06")
def test_liveness_notices_a_task_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        runtime = Runtime(NOBODY)
        refused = asyncio.Event()

        async def odd_lease() -> None:
            refused.set()
            raise ValueError("a Lease that nobody understands")

        monkeypatch.setattr(runtime.leader, "_try_once", odd_lease)
        await runtime.start()
        assert runtime.alive() is None
        await refused.wait()
        await asyncio.wait({runtime._background[0]}, timeout=10)
        assert runtime.alive() == "Leader.run has ended"
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-08", "OPR-25")
def test_a_cluster_that_cannot_be_read_is_not_gone() -> None:
    reference = {"clusterRef": {"name": "demo"}}
    cache, told = Cache(), Told()
    cache.put_topic(body("kept", {**reference, "deletionPolicy": "Delete"}, {"topicId": "t"}, **GOING))
    throttle = {"resource": "broker", "name": "0", "key": "leader.replication.throttled.rate", "ours": "1"}
    running = {"phase": "Running", "startedAt": NOW, "throttle": [throttle]}
    cache.put_reassignment(body("running", {**reference, "drainBrokers": [1]}, running, **GOING))
    cache.clusters.put(body("demo", {"brokers": "many"}))
    work = Work({Key("default", "kept")}, reassignments=True, cluster=True)

    async def scenario() -> None:
        cycle = ClusterCycle(CLUSTER, shared_by(cache, told))
        await cycle.run(work)
        assert told.finalizers == {}
        assert told.reasons == {"kept": "DeletionWaits", "running": "DeletionWaits"}
        assert all("the object cannot be read" in message for message in told.messages.values())
        assert "set spec.deletionPolicy to Retain" in told.messages["kept"]
        assert "delete its KafkaCluster" in told.messages["running"]
        cache.clusters.remove(CLUSTER, "uid-demo")
        cache.clusters.listed.add(None)
        await cycle.run(work)
        assert told.finalizers == {"kept": False, "running": False}, "but one that is gone holds nobody"

    asyncio.run(scenario())


@pytest.mark.spec("OPR-25", "OPR-35")
@pytest.mark.parametrize("answers", [True, False])
def test_who_is_deleted_with_its_cluster_puts_back_what_it_can_and_is_not_held_by_it(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    cache, told = Cache(), Told()
    throttle = {"resource": "Broker", "name": "0", "key": "leader.replication.throttled.rate", "ours": "1"}
    running = {"phase": "Running", "startedAt": NOW, "throttle": [throttle]}
    spec = {"clusterRef": {"name": "demo"}, "drainBrokers": [1]}
    cache.put_reassignment(body("going", spec, running, **GOING))
    cache.put_reassignment(body("staying", spec, running))
    cache.clusters.listed.add(None)
    looks = []

    async def scenario() -> None:
        shared = shared_by(cache, told)
        cycle = ClusterCycle(CLUSTER, shared)

        def left() -> list[object]:
            return [one["reason"] for one in list(shared.events._queue._queue)]  # type: ignore[attr-defined]

        kafka = cycle._left = cast(KafkaConnection, object())

        async def handle(found: KafkaConnection, requeue: Requeue, leaving: bool = False) -> None:
            looks.append((found is kafka, leaving))
            if not answers:
                raise KafkaUnavailableError("nobody is there")

        monkeypatch.setattr(cycle._reassignments, "handle", handle)
        requeue = await cycle.run(Work(reassignments=True, cluster=True))
        assert looks == [(True, True)]
        assert told.reasons == {"staying": "ClusterNotFound"}
        assert told.finalizers == ({} if answers else {"going": False})
        assert left() == ([] if answers else ["LeftInKafka"])
        assert (requeue.cluster_seconds is not None) is answers
        monkeypatch.setattr(cycle_module, "LEAVE_SECONDS", 0.0)
        await cycle.run(Work(reassignments=True, cluster=True))
        assert told.finalizers == {"going": False}
        assert left() == ["LeftInKafka"]
        assert len(looks) == 1

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04", "OPR-35")
def test_what_is_left_in_kafka_is_told_before_the_object_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all definitions are deleted, Kopf ends every task while the finalizer is on its way."""
    cache, told = Cache(), Told()
    throttle = {"resource": "Broker", "name": "0", "key": "leader.replication.throttled.rate", "ours": "1"}
    running = {"phase": "Running", "startedAt": NOW, "throttle": [throttle]}
    cache.put_reassignment(body("going", {"clusterRef": {"name": "demo"}, "drainBrokers": [1]}, running, **GOING))
    cache.clusters.listed.add(None)

    async def scenario() -> None:
        shared = shared_by(cache, told)
        cycle = ClusterCycle(CLUSTER, shared)

        async def ended(*_: object) -> bool:
            raise asyncio.CancelledError

        monkeypatch.setattr(shared.writer, "set_finalizer", ended)
        with pytest.raises(asyncio.CancelledError):
            await cycle.run(Work(reassignments=True, cluster=True))
        assert shared.events._queue.get_nowait()["reason"] == "LeftInKafka"

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04", "OPR-08")
def test_a_cluster_that_was_not_listed_yet_is_not_gone() -> None:
    """After a start, topics may be heard of before their cluster: their deletion waits until it is known."""
    cache, told = Cache(), Told()
    cache.put_topic(
        body("kept", {"clusterRef": {"name": "demo"}, "deletionPolicy": "Delete"}, {"topicId": "t"}, **GOING)
    )
    work = Work({Key("default", "kept")}, reassignments=True, cluster=True)

    async def scenario() -> None:
        requeue = await ClusterCycle(CLUSTER, shared_by(cache, told)).run(work)
        assert (told.finalizers, told.reasons) == ({}, {})
        assert requeue.topics == work.topics
        assert None not in (requeue.reassignments_seconds, requeue.cluster_seconds)
        cache.clusters.listed.add(None)
        await ClusterCycle(CLUSTER, shared_by(cache, told)).run(work)
        assert told.finalizers == {"kept": False}

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04", "OPR-08")
def test_what_was_found_out_for_an_object_is_not_written_to_its_successor() -> None:
    """Deleted and made anew while it was looked at: the new one has not adopted anything yet."""
    cache, told = Cache(), Told()
    spec = {"clusterRef": {"name": "demo"}, "partitions": 1}
    former = body("orders", spec, {"topicId": TOPIC_ID})
    _, topic = cache.put_topic(former)
    assert topic is not None
    batch = Batch({topic.key: topic})
    batch.plans[topic.key] = plan_topic(topic, TopicFacts(view=topic_view((0,)), config={}))
    cache.remove_topic(topic.key, "uid-orders")
    cache.put_topic(body("orders", spec, uid="another"))

    asyncio.run(topics_by(cache, told)._statuses.write(batch, NOW))
    assert told.reasons == {}


@pytest.mark.spec("OPR-05")
def test_a_reassignment_that_kubernetes_refuses_does_not_hold_up_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of ConfigMaps, for instance, refuses the plan of one Reassignment for as long as it is used up."""
    cache, told = Cache(), Told()
    cache.put_topic(body("orders", {"clusterRef": {"name": "demo"}, "partitions": 1}))
    work = Work({Key("default", "orders")}, reassignments=True)
    looked_at: list[Key] = []

    async def refused(*_: Any) -> None:
        raise ApiError(403, "Forbidden", "exceeded quota")

    async def handle(keys: Iterable[Key], *_: Any) -> None:
        looked_at.extend(keys)

    async def scenario() -> None:
        cycle = ClusterCycle(CLUSTER, shared_by(cache, told))
        monkeypatch.setattr(cycle._reassignments, "handle", refused)
        monkeypatch.setattr(cycle._topics, "handle", handle)
        monkeypatch.setattr(Ledger, "prune", lambda *_: asyncio.sleep(0))
        requeue = Requeue()
        external = cluster(volumes=[], external={"bootstrapServers": "127.0.0.1:1"})
        await cycle._serve(work, requeue, cast(KafkaConnection, object()), None, external)
        assert looked_at == [Key("default", "orders")]
        assert (requeue.failed, requeue.reassignments_seconds) == ({Part.REASSIGNMENTS}, 0.0), (
            "it is tried again, ever more seldom"
        )

    asyncio.run(scenario())


@pytest.mark.spec("OPR-02", "OPR-07")
@pytest.mark.parametrize(("status", "reason"), [(403, "KubernetesRefused"), (409, None)])
def test_what_kubernetes_does_not_let_the_operator_read_is_told(
    monkeypatch: pytest.MonkeyPatch, status: int, reason: str | None
) -> None:
    """A Role that is too small, for instance: it was in the operator's log only, and the status stayed empty."""
    cache, told = Cache(), Told()
    cache.clusters.put(body("demo", {"brokers": 1, "volumes": [{"name": "a", "size": "1Gi"}]}))
    cache.put_topic(body("orders", {"clusterRef": {"name": "demo"}, "partitions": 1}))

    async def refused(*_: Any) -> None:
        raise ApiError(status, "Refused", 'configmaps "demo-identity" is forbidden')

    async def scenario() -> Requeue:
        shared = shared_by(cache, told)
        monkeypatch.setattr(shared.api, "find", refused)
        work = Work({Key("default", "orders")}, reassignments=True, cluster=True)
        return await ClusterCycle(CLUSTER, shared).run(work)

    requeue = asyncio.run(scenario())
    assert (requeue.failed, requeue.topics) == (set(Part), {Key("default", "orders")})
    assert told.reasons.get("demo") == reason
    assert told.reasons.get("orders") == (reason and "ClusterUnreachable")
    assert reason is None or "demo-identity" in told.messages["demo"]


@pytest.mark.spec("OPR-02", "OPR-05")
@pytest.mark.parametrize("kind", [429, 422])
async def test_a_status_of_a_cluster_that_is_refused_is_tried_again_seldom(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    asked, now = list[str](), [1000.0]

    class Policy(Told):
        async def write_status(self, resource: Any, status: Any) -> bool:
            asked.append(resource.meta.name)
            raise ApiError(kind, "Invalid", "spec.podTemplate: The operator sets volumes itself; remove them here")

    cache, requeue = Cache(), Requeue()
    cache.clusters.put(body("demo", {"brokers": 1, "volumes": [{"name": "a", "size": "1Gi"}]}))
    subject = cache.clusters.get(CLUSTER)
    assert subject is not None
    shared = shared_by(cache, Policy())
    handler = ClusterHandler(CLUSTER, shared)
    monkeypatch.setattr(clusters_module, "monotonic", lambda: now[0])
    if kind == 429:
        with pytest.raises(ApiError):
            await handler.starting(subject, requeue)
        return
    for seconds in (0, 1, 14):
        now[0] += seconds
        await handler.starting(subject, requeue)
    assert asked == ["demo", "demo"]
    assert "remove them here" in str(shared.events._queue.get_nowait()["message"])


@pytest.mark.spec("OPR-05")
async def test_a_cluster_that_stays_unwell_is_looked_at_seldom_and_soon_again_when_there_is_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked for everything once a second for as long as nobody mended it."""
    now, offline = [1000.0], {2}

    async def brokers(_: KafkaConnection) -> KafkaView:
        return view(offline=offline)

    async def whole(_: KafkaConnection, seen: KafkaView) -> KafkaView:
        return seen

    async def nothing(*_: Any) -> None:
        return None

    cache, told = Cache(), Told()
    cache.clusters.put(body("demo", {"external": {"bootstrapServers": "kafka:9092"}}))
    subject = cache.clusters.get(CLUSTER)
    assert subject is not None
    shared = shared_by(cache, told)
    handler = ClusterHandler(CLUSTER, shared)
    monkeypatch.setattr(shared.api, "find", nothing)
    monkeypatch.setattr(clusters_module, "observe_brokers", brokers)
    monkeypatch.setattr(clusters_module, "observe_whole", whole)
    monkeypatch.setattr(clusters_module, "monotonic", lambda: now[0])

    async def look(heard: bool = False) -> float | None:
        requeue = Requeue()
        await handler.observe(subject, cast(KafkaConnection, None), True, heard, requeue)
        return requeue.cluster_seconds

    looks, began = 0, now[0]
    while now[0] < began + 600:
        now[0] += await look() or 0.0
        looks += 1
    assert told.reasons == {"demo": "BrokersOffline"}
    assert looks < 60
    assert await look() == 15.0
    now[0] += 3
    assert await look(heard=True) == 1.0, "something was heard"
    while (found := await look()) != 15.0:
        now[0] += found or 0.0
    now[0] += 15
    offline.add(1)
    assert await look() == 1.0, "something is new"
    offline.clear()
    assert await look() is None
    offline.add(2)
    now[0] += 600
    assert await look() == 1.0, "that was another time"


@pytest.mark.spec("OPR-05", "OPR-06")
async def test_topics_that_a_slow_webhook_keeps_do_not_make_the_operator_look_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand attempts of ten seconds each, one after the other: liveness ended the operator."""
    now, asked = [1000.0], list[str]()

    class Slow(Told):
        async def set_finalizer(self, topic: KafkaTopic, wanted: bool) -> bool:
            asked.append(topic.meta.name)
            now[0] += 10.0
            raise ApiUnavailableError("PATCH", ApiError(500, "InternalError", "context deadline exceeded"))

    monkeypatch.setattr(topics_module, "monotonic", lambda: now[0])
    cache, batch = Cache(), Batch({})
    for index in range(100):
        spec = {"clusterRef": {"name": "demo"}, "partitions": 1, "deletionPolicy": "Delete"}
        _, topic = cache.put_topic(body(f"t{index}", spec))
        assert topic is not None
        batch.topics[topic.key] = topic
        batch.plans[topic.key] = plan_topic(topic, TopicFacts(missing=True))
    refused = await topics_by(cache, Slow())._finalizers(batch, batch.plans)
    assert 1 < len(asked) < 10
    assert batch.retry == refused.keys() == batch.topics.keys(), "nothing is done about any of them"
    assert {key.name for key in batch.refused} == set(asked)


@pytest.mark.spec("OPR-05", "OPR-33")
def test_a_plan_that_kubernetes_does_not_keep_is_told_by_its_reassignment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: Any) -> None:
        raise ApiError(403, "Forbidden", "exceeded quota: maps")

    async def whole(*_: Any) -> KafkaView:
        return view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)})

    async def scenario() -> None:
        shared = shared_by(Cache(), Told(), Bare(NOBODY))
        monkeypatch.setattr(shared.writer, "keep_config_map", refused, raising=False)
        monkeypatch.setattr(plans_module, "observe_whole", whole)
        cases = [Case(reassignment(name, drainBrokers=[0])) for name in ("one", "other")]
        await Plans(CLUSTER, shared).make(cases, await whole(), cast(KafkaConnection, None))
        for case in cases:
            assert case.step is not None
            assert (case.plan, case.step.phase) == (None, Phase.PLANNING)
            assert "exceeded quota: maps" in case.step.verdict.message

    asyncio.run(scenario())


@pytest.mark.spec("OPR-05", "OPR-06", "OPR-30")
async def test_many_plans_are_made_and_told_in_several_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a hundred topics that are to have another number of replicas, in a cluster where each plan takes seconds:
    the look took so long that liveness ended the operator, which began with the first of them again."""
    now, planned = [1000.0], list[str]()

    async def whole(*_: Any) -> KafkaView:
        return view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)})

    async def plan(case: Case, _: KafkaView) -> None:
        now[0] += 8.0
        planned.append(case.reassignment.meta.name)
        case.plan = keep(Plan((move(((0, "/a"),), ((0, "/b"),)),)))

    plans = Plans(CLUSTER, shared_by(Cache(), Told()))
    monkeypatch.setattr(plans_module, "observe_whole", whole)
    monkeypatch.setattr(plans_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(plans, "_make_plan", plan)
    cases = [Case(reassignment(f"r{index}", drainBrokers=[0])) for index in range(10)]
    await plans.make(cases, await whole(), cast(KafkaConnection, None))
    assert planned == ["r0", "r1", "r2", "r3"]
    for case in cases[4:]:
        assert case.step is not None
        assert (case.step.phase, case.step.replan) == (Phase.PLANNING, True), "it is looked at again soon"
    for case in cases[4:]:
        case.step = None
    await plans.make(cases, await whole(), cast(KafkaConnection, None))
    assert planned[4:] == ["r4", "r5", "r6", "r7"]


@pytest.mark.spec("OPR-36", "OPR-42")
async def test_a_drain_that_is_planned_while_a_broker_restarts_waits_for_it_and_not_for_ever() -> None:
    """Brokers are restarted as others are to go: the drain found no place, had failed, and waited for a person."""
    logs = {("orders", 0, broker): LogView("/a", 1) for broker in (0, 2, 3)}
    whole = view({"orders": topic_view((0, 2, 3))}, logs, brokers=range(4))
    away = view({"orders": topic_view((0, 2, 3))}, logs, brokers=range(4), offline=(1,))
    young, old = (
        Case(reassignment("drain", drainBrokers=[3], meta={"creationTimestamp": when}))
        for when in (NOW, "2026-01-01T00:00:00Z")
    )
    plans = Plans(CLUSTER, shared_by(Cache(), Told(), Bare(NOBODY)))
    await plans._make_plan(young, away)
    assert young.step is not None
    assert (young.step.phase, young.plan) == (Phase.PLANNING, None)
    assert "brokers [1] are away, and without them 1 replica would find no place" in young.step.verdict.message
    young.step = None
    await plans._make_plan(young, whole)
    assert young.plan is not None
    assert (young.step, young.plan.unplaced) == (None, ())
    await plans._make_plan(old, away)
    assert old.plan is not None
    assert old.plan.unplaced, "what can be moved does not wait for a broker that may be lost"


@pytest.mark.spec("OPR-02", "OPR-30")
async def test_a_plan_waits_for_its_config_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who applied both, and the ConfigMap second, had a Reassignment that had failed for good."""
    kept: list[dict[str, Any] | None] = [None]

    async def config_map(_: Reassignment, name: str) -> dict[str, Any] | None:
        return kept[0] if name == "big" else None

    plans = Plans(CLUSTER, shared_by(Cache(), Told()))
    monkeypatch.setattr(plans, "_config_map", config_map)
    seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)})
    case = Case(reassignment(planFrom=[{"configMapRef": {"name": "big"}}]))
    for found, said in ((None, "ConfigMap big does not exist."), ({"data": {}}, "has no key partitions.json.")):
        kept[0] = found
        await plans._make_plan(case, seen)
        assert case.step is not None
        assert (case.step.phase, case.step.verdict.reason) == (Phase.PLANNING, "PlanMissing")
        assert (case.step.verdict.stalled, said in case.step.verdict.message) == (True, True)
    case.step = None
    rows = [{"topic": "orders", "partition": 0, "replicas": [1]}]
    kept[0] = {"data": {"partitions.json": json.dumps(rows)}}
    await plans._make_plan(case, seen)
    assert case.plan is not None
    assert case.step is None


@pytest.mark.spec("OPR-02", "OPR-30")
async def test_a_topic_of_its_own_apply_is_waited_for_and_one_that_nobody_describes_for_a_while() -> None:
    """One file with both had a Reassignment that had failed for good, where the operator saw it first."""
    seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)})
    rows = [{"topic": "late", "partition": 0, "replicas": [1]}]
    cache = Cache()
    plans = Plans(CLUSTER, shared_by(cache, Told()))

    async def said(created: str, described: bool) -> tuple[Phase, str, bool]:
        if described:
            cache.put_topic(body("late", {"clusterRef": {"name": "demo"}, "partitions": 1}))
        case = Case(reassignment(partitions=rows, meta={"creationTimestamp": created}))
        await plans._make_plan(case, seen)
        assert case.step is not None
        assert "topic late is not there" in case.step.verdict.message
        return case.step.phase, case.step.verdict.reason, case.step.verdict.stalled

    long_ago = "2026-01-01T00:00:00Z"
    assert await said(NOW, described=False) == (Phase.PLANNING, "TopicMissing", False)
    assert await said(long_ago, described=False) == (Phase.FAILED, "InvalidPlan", True)
    assert await said(long_ago, described=True) == (Phase.PLANNING, "TopicMissing", False)


@pytest.mark.spec("OPR-05", "OPR-06")
def test_an_api_that_is_down_is_not_asked_for_every_status_in_turn() -> None:
    """Two hundred attempts of seven seconds each: liveness took the worker for stuck and ended the operator."""

    class Down(Told):
        asked = 0

        async def write_status(self, *_: Any) -> bool:
            self.asked += 1
            await asyncio.sleep(0)
            raise ApiUnavailableError("connection refused")

    cache, told = Cache(), Down()
    batch = Batch({})
    for index in range(100):
        _, topic = cache.put_topic(body(f"t{index}", {"clusterRef": {"name": "demo"}, "partitions": 1}))
        assert topic is not None
        batch.topics[topic.key] = topic
        batch.plans[topic.key] = plan_topic(topic, TopicFacts(view=topic_view((0,)), config={}))
    handler = topics_by(cache, told)
    asyncio.run(handler._statuses.write(batch, NOW))
    assert told.asked <= AT_ONCE
    assert batch.retry == batch.topics.keys()
    assert (batch.refused, handler._statuses._events._queue.qsize()) == (set(), 0)


@pytest.mark.spec("OPR-05", "OPR-06")
@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_a_webhook_that_is_down_is_told_of_those_whose_statuses_it_keeps(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """It may be asked about some objects only: that one fails says nothing of another."""
    now = [1000.0]

    class Webhook(Told):
        async def write_status(self, resource: Any, status: Any) -> bool:
            if resource.meta.name.endswith("0"):
                now[0] += seconds
                raise ApiUnavailableError("PATCH", ApiError(500, "InternalError", "failed calling webhook"))
            return await super().write_status(resource, status)

    monkeypatch.setattr(statuses_module, "monotonic", lambda: now[0])
    cache, told, batch = Cache(), Webhook(), Batch({})
    for index in range(100):
        _, topic = cache.put_topic(body(f"t{index}", {"clusterRef": {"name": "demo"}, "partitions": 1}))
        assert topic is not None
        batch.topics[topic.key] = topic
        batch.plans[topic.key] = plan_topic(topic, TopicFacts(view=topic_view((0,)), config={}))
    handler = topics_by(cache, told)
    asyncio.run(handler._statuses.write(batch, NOW))
    assert {key.name for key in batch.refused} <= {f"t{index}" for index in range(0, 100, 10)}
    events = handler._statuses._events._queue
    said = [events.get_nowait()["reason"] for _ in range(events.qsize())]
    assert said.count("KubernetesRefused") == len(batch.refused)
    written = {f"t{index}" for index in range(100) if index % 10}
    assert (told.reasons.keys() == written) is (seconds == 0.0)
    assert now[0] - 1000.0 <= 50.0
    assert {key.name for key in batch.retry} == {
        topic.meta.name for topic in batch.topics.values()
    } - told.reasons.keys()


@pytest.mark.spec("OPR-05", "OPR-23")
def test_a_topic_whose_reassignment_kubernetes_refuses_holds_up_no_other() -> None:
    class Quota(Told):
        """There is room for one more."""

        created = ""

        async def create_reassignment(self, topic: KafkaTopic, *_: Any) -> None:
            if topic.meta.name == "first":
                raise ApiError(403, "Forbidden", "exceeded quota: count/reassignments.ballast.dev")
            self.created = topic.meta.name

    cache, told = Cache(), Quota()
    batch = Batch({})
    for name in ("first", "second"):
        spec = {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 2}
        _, topic = cache.put_topic(body(name, spec, {"topicId": TOPIC_ID}))
        assert topic is not None
        batch.topics[topic.key] = topic
        batch.plans[topic.key] = plan_topic(topic, TopicFacts(view=topic_view((0,)), config={}))
    refused = asyncio.run(topics_by(cache, told)._reassignments(batch, batch.plans))
    assert told.created == "second"
    assert [(key.name, said.reason) for key, said in refused.items()] == [("first", "KubernetesRefused")]
    assert {key.name for key in batch.retry} == {"first"}


@pytest.mark.spec("OPR-02", "OPR-05")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ApiError(403, "Forbidden", "a policy wants a label"), "a policy wants a label"),
        (ApiUnavailableError("PATCH", ApiError(500, "InternalError", "webhook failed")), "webhook failed"),
        (ApiUnavailableError("connection refused"), None),
    ],
)
async def test_a_topic_that_kubernetes_lets_nobody_change_holds_up_no_other(
    error: Exception, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finalizer comes first; where it was refused, nothing was done about all the topics that were looked at."""
    cache, acted = Cache(), list[str]()

    class Policy(Told):
        async def set_finalizer(self, topic: KafkaTopic, wanted: bool) -> bool:
            if topic.meta.name == "first":
                raise error
            return wanted

    class Books:
        """The ledger."""

        async def load(self) -> dict[str, Any]:
            return {}

        async def withdraw(self, _: object) -> None: ...

    batch, handler = Batch({}), topics_by(cache, Policy())

    async def kafka(_: object, plans: Mapping[Key, TopicPlan], __: object) -> tuple[dict[Key, Outcome], set[Key]]:
        acted.extend(key.name for key in plans)
        return {}, set()

    monkeypatch.setattr(handler, "_act_on_kafka", kafka)
    for name in ("first", "second"):
        spec = {"clusterRef": {"name": "demo"}, "partitions": 2, "deletionPolicy": "Delete"}
        _, topic = cache.put_topic(body(name, spec, {"topicId": TOPIC_ID}))
        assert topic is not None
        batch.topics[topic.key] = topic
        batch.plans[topic.key] = plan_topic(topic, TopicFacts(view=topic_view((0,)), config={}))
    act = handler._act(batch, dict(batch.plans), cast(KafkaConnection, None), cast(Any, Books()))
    if told is None:
        with pytest.raises(ApiUnavailableError):
            await act
        return
    done = await act
    assert (acted, {key.name for key in done}) == (["second"], {"second"})
    first = Key("default", "first")
    assert (batch.plans[first].verdict.reason, batch.retry) == ("KubernetesRefused", {first})
    assert told in batch.plans[first].verdict.message


@pytest.mark.spec("OPR-32", "OPR-34")
def test_plans_that_went_stale_before_they_were_approved_do_not_pile_up() -> None:
    deleted: list[str] = []

    class Api:
        """One of the ConfigMaps is somebody else's by now."""

        async def find(self, path: str) -> dict[str, Any]:
            owner = "uid-move" if path.endswith("-0") else "another"
            return {"metadata": {"uid": path, "ownerReferences": [{"uid": owner}]}}

        async def delete(self, path: str, uid: str) -> None:
            assert uid == path
            deleted.append(path.rpartition("/")[2])

    plan = keep(Plan((move(((0, "/a"),), ((0, "/b"),)),)))
    told = {"phase": "AwaitingApproval", "plan": {"hash": plan.hash, "configMaps": ["plan-0", "plan-1"]}}
    stale = reassignment(status=told, addBrokers=[0], approval="Required")
    seen = view({"orders": topic_view((2,))})
    step = next_step(ReassignmentFacts(stale, plan, seen))
    assert step.replan
    plans = Plans(CLUSTER, replace(shared_by(Cache()), api=cast(Any, Api())))
    asyncio.run(plans.discard(stale))
    assert deleted == ["plan-0"]


@pytest.mark.spec("OPR-04")
def test_a_list_that_failed_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first whole one nothing counts as deleted, and who waits for that waited for five minutes."""

    async def scenario() -> None:
        runtime, asked = Runtime(NOBODY), asyncio.Event()

        async def refused() -> None:
            asked.set()
            raise ApiUnavailableError("busy")

        monkeypatch.setattr(runtime, "relist", refused)
        runtime._relist_at = 0.0
        house = asyncio.create_task(runtime._keep_house())
        await asked.wait()
        await asyncio.sleep(0)
        assert runtime._relist_at - monotonic() < 10
        house.cancel()
        await asyncio.gather(house, return_exceptions=True)
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-33")
def test_what_runs_holds_its_partitions_against_the_rollback_of_an_older_one() -> None:
    there, back = ((0, "/a"),), ((1, "/a"),)
    first, second = keep(Plan((move(there, back),))), keep(Plan((move(back, ((2, "/a"),)),)))
    done = {"phase": "Succeeded", "startedAt": NOW, "plan": {"hash": first.hash}}
    runs = {"phase": "Running", "startedAt": NOW, "plan": {"hash": second.hash}}
    rows = [{"topic": "orders", "partition": 0, "replicas": [1]}]
    older = reassignment("older", done, {"creationTimestamp": "2026-01-01T00:00:00Z"}, partitions=rows, rollback=True)
    newer = reassignment("newer", runs, {"creationTimestamp": NOW}, partitions=rows)
    cases = [Case(older, first), Case(newer, second)]
    seen = view({"orders": topic_view((1,))}, {("orders", 0, 1): LogView("/a", 1)})
    ReassignmentHandler(CLUSTER, shared_by(Cache()))._decide(cases, seen)
    steps = [case.step for case in cases]
    assert [(one.phase, one.waits_for) for one in steps if one] == [(Phase.WAITING, ("newer",)), (Phase.RUNNING, ())]


@pytest.mark.spec("OPR-03", "OPR-37")
def test_that_a_ttl_is_ignored_is_told_once_for_each_spec_and_not_for_as_long_as_git_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ballast_operator.events.REPEAT_SECONDS", 0.0)
    tracked = {"annotations": {"argocd.argoproj.io/tracking-id": "app:ballast.dev/Reassignment:default/old"}}
    spec = {"clusterRef": {"name": "demo"}, "ttlSecondsAfterFinished": 0, "drainBrokers": [1]}
    ended = {"phase": "Succeeded", "finishedAt": NOW, "observedGeneration": 1}
    ready = {"type": "Ready", "status": "True", "reason": "Succeeded", "message": "words"}
    cache = Cache()
    shared = shared_by(cache, Told())
    handler = ReassignmentHandler(CLUSTER, shared)

    cache.put_reassignment(body("old", spec, {**ended, "conditions": [ready]}, **tracked))
    asyncio.run(handler.handle(cast(KafkaConnection, None), Requeue()))
    assert shared.events._queue.empty(), "it was told when that ended"
    (known,) = cache.reassignments_of(CLUSTER)
    handler._statuses.announce(known, replace(known.status, phase=Phase.RUNNING), known.status)
    told = [shared.events._queue.get_nowait() for _ in range(shared.events._queue.qsize())]
    assert [each["reason"] for each in told] == ["Succeeded", "TtlIgnored"]


@pytest.mark.spec("OPR-35", "OPR-34")
def test_a_throttle_that_is_refused_is_told_by_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_: object, actions: Sequence[AlterConfig]) -> dict[tuple[str, str], Outcome]:
        return {(one.resource, one.name): Outcome("CLUSTER_AUTHORIZATION_FAILED") for one in actions}

    async def scenario() -> None:
        handler = ReassignmentHandler(CLUSTER, shared_by(Cache()))
        monkeypatch.setattr(kafka_actions, "alter_configs", refused)
        plan = keep(Plan((move(((0, "/a"),), ((0, "/b"),)),)))
        runs = {"phase": "Running", "startedAt": NOW, "plan": {"hash": plan.hash}}
        subject = reassignment("slow", runs, throttle={"intraBroker": "1Mi"}, drainBrokers=[0])
        seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)}, broker_configs={0: {}})
        case = Case(subject, plan)
        handler._decide([case], seen)
        handler._choose([case], seen)
        assert (len(case.starts), case.notes) == (1, {})
        throttles = plan_throttles([share_of(case)], seen)
        assert await handler._throttling.apply([case], [case], throttles, cast(KafkaConnection, None)) == frozenset()
        handler._choose([case], seen)
        assert case.notes == {
            TopicPartition("orders", 0): "its throttle was refused: Broker 0 answers CLUSTER_AUTHORIZATION_FAILED"
        }

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04", "OPR-35")
@pytest.mark.parametrize("observed", ["1048576", "7"])
def test_a_handler_that_has_just_begun_suspects_the_rates_that_reassignments_ask_for(observed: str) -> None:
    cache = Cache()
    cache.put_reassignment(body("former", {"clusterRef": {"name": "demo"}, "throttle": {"intraBroker": "1Mi"}}))
    handler = ReassignmentHandler(CLUSTER, shared_by(cache))
    handler._throttling.look()
    subject = reassignment("next", throttle={"intraBroker": "2Mi"}, drainBrokers=[0])
    case = Case(subject, keep(Plan((move(((0, "/a"),), ((0, "/b"),)),))))
    configs = {0: {"replica.alter.log.dirs.io.max.bytes.per.second": observed}}
    seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)}, broker_configs=configs)
    handler._decide([case], seen)
    planned = handler._throttling.plan([case], seen)
    assert planned.unreadable == ({str(subject.key)} if observed == "1048576" else set())


@pytest.mark.spec("OPR-04")
def test_what_a_restored_backup_of_the_api_says_counts_although_it_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions begin again where the backup was made; events of it look as if they came late."""

    async def scenario() -> None:
        runtime = Runtime(NOBODY)
        spec = {"clusterRef": {"name": "demo"}}
        runtime.cache.put_topic(body("orders", {**spec, "partitions": 5}, resourceVersion="900"))
        runtime.cache.put_topic(body("newer", {**spec, "partitions": 5}, resourceVersion="900"))
        runtime.cache.remove_topic(Key("default", "deleted"), "uid-deleted")
        restored = {
            "kafkatopics": [
                body("orders", {**spec, "partitions": 3}, resourceVersion="100"),
                body("newer", {**spec, "partitions": 7}, resourceVersion="901"),
                body("deleted", {**spec, "partitions": 4}, resourceVersion="90"),
            ]
        }

        async def items(path: str, label_selector: str = "") -> AsyncIterator[dict[str, Any]]:
            for one in restored.get(path.rpartition("/")[2], ()):
                # What is heard while the list is read is newer than the list.
                runtime.heard("KafkaTopic", body("newer", {**spec, "partitions": 9}, resourceVersion="950"))
                yield one

        monkeypatch.setattr(runtime.api, "items", items)
        await runtime.relist()
        found = {topic.meta.name: topic.spec.partitions for topic in runtime.cache.topics_of(CLUSTER)}
        assert found == {"orders": 3, "newer": 9, "deleted": 4}
        assert runtime._worker(CLUSTER).depth == 3
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04")
def test_a_broken_object_that_was_deleted_unheard_is_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        runtime = Runtime(NOBODY)
        runtime.cache.clusters.put(body("demo", {"brokers": "many"}))

        async def nothing(*_: Any) -> AsyncIterator[dict[str, Any]]:
            for body in list[dict[str, Any]]():
                yield body

        async def not_found(_: str) -> None:
            return None

        monkeypatch.setattr(runtime.api, "items", nothing)
        monkeypatch.setattr(runtime.api, "find", not_found)
        await runtime.relist()
        assert runtime.cache.clusters.broken == {}
        assert runtime._worker(CLUSTER).depth == 2, "its topics learn that it is gone"
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-04", "OPR-05")
def test_a_kind_that_cannot_be_listed_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the look at the definitions, which may tell why. What is gone for certain is known where it was listed."""

    async def scenario() -> None:
        runtime, looked = Runtime(NOBODY, ("one", "default")), asyncio.Event()
        runtime.cache.put_reassignment(body("gone", {"clusterRef": {"name": "demo"}, "drainBrokers": [1]}))

        async def items(path: str, label_selector: str = "") -> AsyncIterator[dict[str, Any]]:
            if path.endswith("kafkatopics") or "/one/" in path:
                raise ApiError(403, "Forbidden", f"{path} is forbidden")
            for one in list[dict[str, Any]]():
                yield one

        async def not_found(_: str) -> None:
            return None

        async def look(_: object) -> bool:
            looked.set()
            return False

        monkeypatch.setattr(runtime.api, "items", items)
        monkeypatch.setattr(runtime.api, "find", not_found)
        monkeypatch.setattr(runtime._shared.definitions, "look", look)
        runtime._relist_at = 0.0
        house = asyncio.create_task(runtime._keep_house())
        await asyncio.wait_for(looked.wait(), 10)
        assert runtime.cache.reassignments_of(CLUSTER) == []
        cache = runtime.cache
        assert (cache.clusters.whole("default"), cache.clusters.whole("one")) == (True, False)
        assert not cache.topics.whole("default")
        assert runtime._relist_at - monotonic() < 10
        house.cancel()
        await asyncio.gather(house, return_exceptions=True)
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-05", "OPR-08")
@pytest.mark.parametrize("unlisted", ["kafkatopics", "/one/"])
def test_where_all_clusters_are_listed_a_deletion_waits_for_no_other_kind_or_namespace(
    monkeypatch: pytest.MonkeyPatch, unlisted: str
) -> None:
    async def scenario() -> None:
        runtime, told = Runtime(NOBODY, ("one", "default")), Told()

        def of(namespace: str) -> dict[str, Any]:
            meta: dict[str, Any] = {**GOING, "namespace": namespace}
            return body(f"of-{namespace}", {"clusterRef": {"name": "demo"}}, **meta)

        for namespace in ("one", "default"):
            runtime.cache.put_topic(of(namespace))

        async def items(path: str, label_selector: str = "") -> AsyncIterator[dict[str, Any]]:
            if unlisted in path:
                raise ApiError(500, "InternalError", f"{path}: conversion failed")
            for topic in list(runtime.cache.topics) if path.endswith("kafkatopics") else ():
                if f"/{topic.meta.namespace}/" in path:
                    yield of(topic.meta.namespace)

        monkeypatch.setattr(runtime.api, "items", items)
        with pytest.raises(ApiError):
            await runtime.relist()
        for topic in runtime.cache.topics:
            shared = shared_by(runtime.cache, told)
            await ClusterCycle(topic.cluster, shared).run(Work({topic.key}, reassignments=True, cluster=True))
        assert told.finalizers == {"of-default": False} | ({} if unlisted == "/one/" else {"of-one": False})
        await runtime.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-35", "OPR-01")
@pytest.mark.parametrize("keeps", [True, False])
def test_what_the_api_server_did_not_keep_is_not_written_down(keeps: bool) -> None:
    """Definitions of before this operator know nothing of throttledLists: the API server drops it and says nothing."""
    cache = Cache()
    spec = {"clusterRef": {"name": "demo"}, "drainBrokers": [1]}
    _, subject = cache.put_reassignment(body("moving", spec, resourceVersion="1", finalizers=[FINALIZER]))
    assert subject is not None

    class Dropping:
        async def write_status(self, resource: Reassignment, status: ReassignmentStatus) -> bool:
            kept = write(status if keeps else replace(status, throttled_lists=None))
            cache.put_reassignment(body("moving", spec, kept, resourceVersion="2", finalizers=[FINALIZER]))
            return True

    async def scenario() -> bool:
        handler = ReassignmentHandler(CLUSTER, shared_by(cache, Dropping()))
        step = Step(Phase.RUNNING, REASSIGNMENT["Planning"].says(), holds_throttles=True)
        case = Case(subject, step=step, status=subject.status, lists=ThrottledLists(1))
        return await handler._statuses.write(case, Requeue())

    assert asyncio.run(scenario()) is keeps
