"""What Kubernetes knows of a cluster's pods and volumes, and its status did not tell: pods that are not made, how a
container ended, volumes that do not grow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.making import NOW, cluster, view

from ballast_operator.cache import Cache
from ballast_operator.handlers import claims, late_pods
from ballast_operator.handlers.late_pods import MISSING_SECONDS, STARTING_SECONDS, LatePods
from ballast_operator.handlers.managed import ManagedCluster
from ballast_operator.plan.claims import growing_claims
from ballast_operator.plan.kube import KubeFacts, PodFacts, kube_facts, pod_facts
from ballast_operator.resources.layout import Identity, Layout


def pods_of(*ordinals: int) -> dict[int, PodFacts]:
    return {n: PodFacts(f"demo-{n}", "uid", n, ready=True) for n in ordinals}


@pytest.mark.spec("OPR-02", "OPR-44")
def test_a_pod_that_kubernetes_does_not_make_is_told_with_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota that is used up, for instance: "The others are starting", for ever, and Argo CD waited with it."""
    now, subject = [1000.0], cluster(brokers=3)
    monkeypatch.setattr(late_pods, "monotonic", lambda: now[0])
    shared = SimpleNamespace(api=None, cache=Cache(), writer=None, events=None, now=lambda: NOW)
    managed = ManagedCluster(subject.key, cast(Any, shared))

    def told(kube: KubeFacts, seconds: float) -> str:
        now[0] += seconds
        managed._kube = kube
        managed._late.look(subject, kube)
        said = managed.explain()
        return f"{said.reason}: {said.message}" if said is not None else ""

    lacking = KubeFacts(exists=True, replicas=3, pods=pods_of(0, 2))
    assert told(lacking, 0) == "", "it restarts"
    assert told(KubeFacts(exists=True, replicas=3, pods=pods_of(0, 1, 2)), MISSING_SECONDS) == ""
    assert told(lacking, 1) == ""
    assert told(lacking, MISSING_SECONDS) == (
        "PodsMissing: Pods that Kubernetes has not made: demo-1. Why (a quota, a policy, an admission webhook) is in "
        "the events of the StatefulSet: `kubectl describe statefulset demo`"
    )
    many = KubeFacts(exists=True, replicas=9, controller_replicas=1)
    told(many, 0)
    assert "not made: demo-0, demo-1, demo-2, demo-3, demo-4 and 5 more." in told(many, MISSING_SECONDS)
    slow = {0: PodFacts("demo-0", "uid", 0, starting=True)}
    assert told(KubeFacts(exists=True, replicas=1, pods=slow), 0) == ""
    assert told(KubeFacts(exists=True, replicas=1, pods=slow), STARTING_SECONDS).startswith(
        "PodsNotStarting: Pods that have not started for five minutes: demo-0. Why "
    )
    again = {0: replace(slow[0], uid="another")}
    assert told(KubeFacts(exists=True, replicas=1, pods=again), 0) == ""
    # Made anew around its pods, or not made yet: there is nobody who would make them.
    assert told(KubeFacts(exists=True, deleting=True, replicas=3), MISSING_SECONDS) == ""


@pytest.mark.spec("OPR-02", "OPR-43")
@pytest.mark.parametrize(
    ("kind", "reason", "stalled"),
    [
        ("FileSystemResizePending", "VolumeGrowing", False),
        ("Resizing", "VolumeGrowing", False),
        ("ControllerResizeError", "VolumeTooSmall", True),
        ("NodeResizeError", "VolumeTooSmall", True),
        ("Other", None, False),
    ],
)
async def test_a_volume_that_the_storage_does_not_grow_is_told(kind: str, reason: str | None, stalled: bool) -> None:
    """The API server had taken the size, and the cluster was Ready with volumes that never grew."""
    subject = cluster(brokers=1)
    labels = {"ballast.dev/cluster": "demo", "ballast.dev/role": "broker"}
    spec = {"resources": {"requests": {"storage": "10Gi"}}}
    condition = {"type": kind, "status": "True", "message": "rpc error: out of space."}
    rows = [
        {"metadata": {"name": name, "uid": name, "labels": labels}, "spec": spec, "status": {"conditions": conditions}}
        for name, conditions in (("a-demo-0", []), ("b-demo-0", [condition]), ("b-demo-7", [condition]))
    ]
    kube = replace(kube_facts(subject, None, [], rows), replicas=1)
    layout = Layout(subject, Identity("id", (0,)), 1, subject.spec.volumes)
    assert [claim.name for claim in growing_claims(layout, kube)] == (["b-demo-0"] if reason else [])
    said = await claims.bring(cast(Any, None), layout, kube, view())
    assert (said and said.reason, said is not None and said.stalled) == (reason, stalled)
    if said is not None:
        assert "claim b-demo-0: rpc error: out of space." in said.message
    grown = {"type": kind, "status": "False"}
    rows[1]["status"] = {"conditions": [grown]}
    assert growing_claims(layout, kube_facts(subject, None, [], rows[:2])) == []


@pytest.mark.spec("OPR-02", "OPR-45")
def test_how_a_container_ended_is_told_with_what_it_waits_for() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}

    def trouble(last: dict[str, Any]) -> str | None:
        states = [{"state": {"waiting": waiting}, "lastState": last}]
        body = {"metadata": {"name": "demo-0", "uid": "u"}, "spec": {}, "status": {"containerStatuses": states}}
        return pod_facts(body).trouble

    waits = "CrashLoopBackOff: back-off 5m0s restarting failed container"
    assert trouble({}) == waits
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert trouble(killed) == f"{waits}; it ended last with exit code 137 (OOMKilled)"
    assert trouble({"terminated": {"exitCode": 1, "reason": "Error"}}) == f"{waits}; it ended last with exit code 1"
    said = "began\ndemo-0.properties: Invalid value x for configuration log.retention.ms: Not a number\n\n"
    failed = {"exitCode": 2, "reason": "Error", "message": said}
    told = f"{waits}; it ended last with exit code 2, and said at last: "
    assert trouble({"terminated": failed}) == told + said.splitlines()[1]
    assert trouble({"terminated": failed | {"message": "\x1b[31mno\ttext\x00"}}) == f"{told}[31mno text"
    assert trouble({"terminated": failed | {"message": "x" * 2048}}) == f"{told}{'x' * 300}..."
    states = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    body = {"metadata": {"name": "demo-0", "uid": "u"}, "spec": {}, "status": {"containerStatuses": states}}
    assert (pod_facts(body).starting, pod_facts(body).trouble) == (True, None)


@pytest.mark.spec("OPR-02")
def test_a_pod_that_fails_again_and_again_is_in_trouble_also_while_it_runs_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(late_pods, "monotonic", lambda: now)
    late, runs = LatePods(), PodFacts("demo-0", "u", 0)
    loops = replace(runs, trouble="CrashLoopBackOff: see its logs")

    def told(pod: PodFacts) -> str | None:
        return late.as_before({0: pod})[0].trouble

    assert (told(runs), told(loops), told(runs)) == (None, loops.trouble, loops.trouble)
    assert told(replace(runs, ready=True)) is None
    assert told(replace(runs, uid="another")) is None
    now = 31.0
    assert told(runs) is None, "it takes its time, and runs"
