"""Every reason is given somewhere, and a test has seen it given: the table, the code and the tests cannot drift."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.making import NOW, cluster, move, reassignment, topic, topic_view, view
from tests.operator.world import World

from ballast_operator.handlers import claims
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.handlers.managed import ManagedCluster
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.scene import Scene as ManagedScene
from ballast_operator.kubeconfig import read_kubeconfig
from ballast_operator.model.cluster import ClusterStatus
from ballast_operator.model.kafka import DirectoryId, DirectoryView, LogView, OngoingView
from ballast_operator.model.meta import Key
from ballast_operator.plan.cluster_status import cluster_status, health
from ballast_operator.plan.kube import ClaimFacts, KubeFacts, NodeFacts, PodFacts, kube_facts
from ballast_operator.plan.layouts import held_layout
from ballast_operator.plan.lifecycle import ReassignmentFacts, next_step
from ballast_operator.plan.stored import keep
from ballast_operator.plan.topics import TopicFacts, plan_topic
from ballast_operator.resources import names, pods
from ballast_operator.resources.layout import Identity
from ballast_operator.runtime import Runtime
from ballast_operator.status import CLUSTER, EVENTS, REASSIGNMENT, SHARED, TOPIC, Reason, reasons_page
from ballast_operator.worker import Requeue
from ballast_planner import Plan

pytestmark = pytest.mark.spec("OPR-02")
ROOT = Path(__file__).parents[2]
TABLES = {"SHARED": SHARED, "TOPIC": TOPIC, "REASSIGNMENT": REASSIGNMENT, "CLUSTER": CLUSTER, "EVENTS": EVENTS}
SOURCES = [path for path in (ROOT / "operator" / "ballast_operator").rglob("*.py") if path.name != "status.py"]
TESTS = list((ROOT / "tests" / "operator").rglob("test_*.py"))


@pytest.mark.parametrize("name", TABLES)
def test_every_reason_is_given_by_the_code_and_seen_by_a_test(name: str) -> None:
    source = "\n".join(path.read_text() for path in SOURCES)
    tests = "\n".join(path.read_text() for path in TESTS)
    table: Mapping[str, Reason] = TABLES[name]
    # Some are chosen by a table or a parameter of their own: the quoted name is enough then.
    given = {
        reason
        for reason in table
        if re.search(rf'{name}\["{reason}"\]|[(:] "{reason}"|\("{reason}"|, "{reason}"\)', source)
    }
    assert table.keys() - given == set(), "nobody gives these reasons: remove them from status.py"
    seen = {reason for reason in table if f'"{reason}"' in tests}
    assert table.keys() - seen == set(), "no test sees these reasons"


def test_the_code_gives_no_reason_that_the_table_does_not_have() -> None:
    for name, table in TABLES.items():
        named = {one for path in SOURCES for one in re.findall(rf'\b{name}\["(\w+)"\]', path.read_text())}
        assert named <= table.keys()


def test_no_event_has_words_of_its_own() -> None:
    """A reason written beside the table would be in no page that a person can look it up in."""
    calls = [one for path in SOURCES for one in re.findall(r"events\.send\((.*?)\)\n", path.read_text(), re.DOTALL)]
    assert len(calls) >= 5
    assert [call for call in calls if not re.search(r"\.reason\b|\.phase\b", call)] == []


def test_every_reason_has_a_row_in_the_page_and_every_stalled_one_says_what_to_do() -> None:
    page = reasons_page()
    every = [reason for table in TABLES.values() for reason in table.values()]
    assert [reason.name for reason in every if not re.search(rf"^\| {reason.name}[ |]", page, re.MULTILINE)] == []
    assert [reason.name for reason in every if reason.stalled and not reason.advice] == []


# Topics.


def topic_reason(facts: TopicFacts, **given: Any) -> str:
    return plan_topic(topic(**given), facts).verdict.reason


def test_a_topic_that_is_being_changed_or_deleted_says_so() -> None:
    known = {"topicId": "6f1ed002-ab5f-4d0a-a08b-0d2ab0ee0a11"}
    seen = TopicFacts(view=topic_view((0,)), config={})
    assert topic_reason(seen, status=known, partitions=2) == "Changing"
    going = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/finalizer"]}
    assert topic_reason(seen, status=known, meta=going, deletionPolicy="Delete") == "Deleting"


# Reassignments.

MOVE = move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/b")), network=100)
PLAN = keep(Plan((MOVE,)))
SOURCE = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 1): LogView("/a", 100)}
TARGET = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/b", 100)}
MOVING = view({"orders": topic_view((0, 2, 1))}, SOURCE, {("orders", 0): OngoingView((0, 2, 1), (2,), (1,))})
STARTED = {"startedAt": NOW, "phase": "Running", "plan": {"hash": PLAN.hash}}


def step_reason(seen: Any, held: bool = False, **given: Any) -> str:
    return next_step(ReassignmentFacts(reassignment(**given), PLAN, seen, now=NOW, throttles_held=held)).verdict.reason


def test_what_a_reassignment_does_has_a_reason_for_each_of_its_steps() -> None:
    elsewhere = view({"orders": topic_view((1, 2))}, {})
    assert step_reason(elsewhere, drainBrokers=[1]) == "Planning"
    assert step_reason(MOVING, drainBrokers=[1], status=STARTED, cancel=True) == "Cancelling"
    arrived = view({"orders": topic_view((0, 2))}, TARGET)
    assert step_reason(arrived, held=True, drainBrokers=[1], status=STARTED) == "Verifying"
    lagging = view({"orders": topic_view((0, 2), isr={0: (0,)})}, TARGET)
    assert step_reason(lagging, drainBrokers=[1], status=STARTED) == "Verifying"


async def test_a_plan_waits_for_brokers_that_do_not_tell_what_they_hold() -> None:
    plans = Plans(Key("default", "demo"), None)  # type: ignore[arg-type]
    case = Case(reassignment(drainBrokers=[1]))
    seen = view(brokers=(0, 1))
    await plans._make_plan(case, seen.__class__(**{**_fields(seen), "described": frozenset({0})}))
    assert case.step is not None
    assert (case.step.verdict.reason, "[1]" in case.step.verdict.message) == ("WaitingForCluster", True)


def _fields(seen: Any) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in seen.__dataclass_fields__}


# Clusters.


def test_the_health_of_a_cluster_has_a_reason() -> None:
    assert health(view(brokers=(0, 1)), expected=3).reason == "Starting"
    assert health(view(offline=[2]), expected=3).reason == "BrokersOffline"
    leaving = health(view(brokers=range(4), offline=[3]), expected=3)
    assert (leaving.reason, leaving.message) == ("Ready", "All brokers are online: 3.")
    failed = view()
    broken = {**failed.directories, DirectoryId(1, "/b"): DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)}
    found = health(failed.__class__(**{**_fields(failed), "directories": broken}), expected=3)
    assert (found.reason, "/b of broker 1" in found.message) == ("DirectoryFailed", True)


def test_brokers_that_nobody_lists_and_that_have_replicas_are_offline() -> None:
    """Before Kafka 4.0 a broker that is away is not listed; from then on those that are not are gone for good."""
    listed = view({"orders": topic_view((0, 1), (1, 2), (2, 0))}, brokers=(0, 1))
    told = replace(listed, lists_fenced=False).with_absent()
    verdict = health(told)
    assert (verdict.reason, "online: 2." in verdict.message) == ("BrokersOffline", True)
    status = cluster_status(told, ClusterStatus())
    assert (status.brokers_text, [(one.id, one.online, one.address, one.replicas) for one in status.brokers][2:]) == (
        "2/3", [(2, False, None, 2)],
    )  # fmt: skip
    assert not told.surely_unregistered(2)
    assert listed.with_absent().surely_unregistered(2)
    assert health(listed.with_absent()).reason == "Ready"


async def test_a_cluster_is_not_ready_before_every_broker_has_told_its_directories() -> None:
    ready = {number: PodFacts(f"demo-{number}", "uid", number, ready=True) for number in range(3)}
    managed, scene = managed_with(KubeFacts(exists=True, replicas=3, pods=ready))
    whole = cluster_status(scene.view, scene.cluster.status)
    told = {where: found for where, found in scene.view.directories.items() if where.broker != 1}
    seen = replace(scene.view, directories=told, described=frozenset({0, 2}))
    verdict = managed._health(scene, cluster_status(seen, scene.cluster.status))
    assert (verdict.reason, verdict.ready, "yet: 1." in verdict.message) == ("DirectoriesUnknown", "False", True)
    # One that answered before and is silent now is shown as it was, and the cluster stays ready.
    assert managed._health(scene, cluster_status(seen, whole)).reason == "Ready"


@pytest.mark.spec("OPR-40", "OPR-44")
@pytest.mark.parametrize("security", [None, {"internal": {"tls": {"secretName": "inside"}}}])
def test_clients_are_told_a_new_port_of_a_broker_when_it_has_been_restarted(security: Any) -> None:
    """It does not listen there before."""
    listeners = [{"name": "NEW", "port": 9094}, {"name": "OLD", "port": 9092}]
    subject = cluster(brokers=3, listeners=listeners, security=security)
    layout = held_layout(subject, Identity("id", (0, 1, 2)), KubeFacts())
    made = pods.pod_template(layout, names.BROKER_ROLE)
    before = cluster(brokers=3, listeners=listeners[1:], security=security)
    old = pods.pod_template(replace(layout, cluster=before), names.BROKER_ROLE)
    bodies = {n: deepcopy(template) for n, template in enumerate((made, old, made))}
    for n, body in bodies.items():
        body["metadata"] |= {"name": f"demo-{n}", "uid": f"uid-{n}"}
    managed, scene = managed_with(kube_facts(subject, None, list(bodies.values()), []))
    status = managed._base_status(replace(scene, cluster=subject), subject.status)
    assert status.bootstrap_servers == "host-0:9094,host-1:9092,host-2:9094"


class Refusing(KubeObjects):
    """Of an API server whose storage class does not let volumes grow; the embedded one's does."""

    def __init__(self) -> None:
        """It speaks to nobody."""

    async def grow_claim(self, *_: object) -> str:
        return "the storage class does not allow it"


async def test_a_volume_that_may_not_grow_is_said() -> None:
    subject = cluster()
    small = (ClaimFacts("a-demo-0", "uid", "a", "demo-0", "1Gi"),)
    kube = KubeFacts(exists=True, replicas=3, volumes={v.name: v for v in subject.spec.volumes}, claims=small)
    layout = held_layout(subject, Identity("id", (0, 1, 2)), kube)
    verdict = await claims.bring(Refusing(), layout, kube, view())
    assert verdict is not None
    assert verdict.reason == "VolumeTooSmall"
    assert "the storage class does not allow it. Use a storage class" in verdict.message


async def test_a_volume_whose_claims_of_before_are_of_another_storage_class_is_not_added() -> None:
    volumes = [{"name": "a", "size": "10Gi"}, {"name": "b", "size": "10Gi", "storageClassName": "fast"}]
    subject = cluster(volumes=volumes)
    labels = {"ballast.dev/role": "broker"}
    former = {
        "metadata": {"name": "b-demo-0", "uid": "uid", "labels": labels},
        "spec": {"storageClassName": "slow", "resources": {"requests": {"storage": "10Gi"}}},
    }
    kube = replace(kube_facts(subject, None, [], [former]), volumes={"a": subject.spec.volumes[0]})
    layout = held_layout(subject, Identity("id", (0, 1, 2)), kube)
    verdict = await claims.bring(Refusing(), layout, kube, view())
    assert verdict is not None
    assert (verdict.reason, "b-demo-0, are of storage class slow" in verdict.message) == ("VolumeClaimed", True)


def managed_with(kube: KubeFacts, **spec: Any) -> tuple[ManagedCluster, ManagedScene]:
    subject = cluster(**spec)
    managed = ManagedCluster(subject.key, SimpleNamespace(api=None, cache=None, now=lambda: "2026-01-02T04:00:00Z"))  # type: ignore[arg-type]
    managed._kube = kube
    return managed, ManagedScene(subject, Identity("id", (0, 1, 2)), kube, view(), None, Requeue())  # type: ignore[arg-type]


@pytest.mark.parametrize(("since", "reason"), [("03:59:50", "Starting"), ("03:50:00", "BrokersOffline")])
def test_a_broker_whose_pod_has_just_become_ready_is_starting_and_no_cause_for_concern(since: str, reason: str) -> None:
    """Each restart ended with a Warning that sent people to its logs."""
    pods = {n: PodFacts(f"demo-{n}", "uid", n, ready=True, ready_since=f"2026-01-02T{since}Z") for n in range(3)}
    managed, scene = managed_with(KubeFacts(exists=True, replicas=3, pods=pods))
    restarted = replace(scene, view=view(offline=[2]))
    verdict = managed._health(restarted, cluster_status(restarted.view, scene.cluster.status))
    assert verdict.reason == reason
    assert managed._health(scene, cluster_status(scene.view, scene.cluster.status)).reason == "Ready"


@pytest.mark.spec("OPR-45")
def test_a_pod_on_a_node_that_does_not_answer_is_left_alone_and_the_taint_is_named() -> None:
    ending = PodFacts("demo-1", "uid", 1, node="worker-3", deleting_since=NOW)
    managed, _ = managed_with(KubeFacts(exists=True, replicas=3, pods={1: ending}))
    verdict = managed.explain()
    assert verdict is not None
    assert verdict.reason == "NodeLost"
    assert "kubectl taint nodes worker-3 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in verdict.message


@pytest.mark.spec("OPR-45")
def test_a_pod_that_finalizers_keep_names_these_and_no_taint() -> None:
    kept = PodFacts("demo-1", "uid", 1, node="worker-3", deleting_since=NOW, held_by=("mesh.example/proxy",))
    managed, _ = managed_with(KubeFacts(exists=True, replicas=3, pods={1: kept}))
    verdict = managed.explain()
    assert verdict is not None
    assert verdict.reason == "PodHeld"
    assert "mesh.example/proxy" in verdict.message
    assert "taint" not in verdict.message


@pytest.mark.spec("OPR-40")
def test_brokers_without_a_rack_are_named_and_why() -> None:
    pod = PodFacts("demo-0", "uid", 0, ready=True, node="worker-1")
    managed, scene = managed_with(KubeFacts(exists=True, pods={0: pod}), rack={"topologyKey": "zone"})
    managed._objects.nodes = {"worker-1": NodeFacts("worker-1", error="nodes is forbidden")}
    verdict = managed._racks(scene)
    assert verdict is not None
    assert (verdict.reason, "nodes is forbidden" in verdict.message) == ("RackUnknown", True)


@pytest.mark.timeout(120)
def test_an_object_that_cannot_be_read_is_told_so(ballast_world: World) -> None:
    """Only an API server without our schemas lets one in; here the operator hears of one, in another namespace."""
    world = ballast_world
    world.api("create", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    world.apply("KafkaTopic", "odd", {"clusterRef": {"name": "demo"}, "partitions": 1}, namespace="elsewhere")
    body = {**(world.get("KafkaTopic", "odd", "elsewhere") or {}), "spec": {"partitions": "many"}}

    async def until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def hear() -> None:
        runtime = Runtime(read_kubeconfig(world.kubeconfig), ("elsewhere",), lease_namespace="elsewhere")
        await runtime.start()
        try:
            await until(lambda: runtime.leader.leads)
            runtime.heard("KafkaTopic", body)
            await until(lambda: all(task.done() for task in runtime._telling))
            found = await runtime.api.get(world.path("KafkaTopic", "odd", "elsewhere"))
        finally:
            await runtime.stop()
        said = {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}
        assert said == {"Ready": ("False", "InvalidSpec"), "Stalled": ("True", "InvalidSpec")}

    world.run(hear())
