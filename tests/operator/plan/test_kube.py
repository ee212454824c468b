"""What is read from pods as Kubernetes shows them."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_operator.plan.kube import pod_facts
from ballast_operator.resources.names import REVISION


def pod(state: dict[str, Any] | None = None, **conditions: str) -> dict[str, Any]:
    status: dict[str, Any] = {
        "podIP": "10.0.0.7",
        "conditions": [{"type": name, "status": value, "message": "0/3 nodes"} for name, value in conditions.items()],
    }
    if state is not None:
        status["containerStatuses"] = [{"name": "other", "state": {"running": {}}}, {"name": "broker", "state": state}]
    meta = {"name": "demo-12", "uid": "u", "annotations": {REVISION: "r1"}}
    return {"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}


def test_a_pod_is_known_by_its_number_and_by_the_revision_that_it_was_made_of() -> None:
    found = pod_facts(pod(Ready="True"))
    assert (found.ordinal, found.revision, found.ready, found.address, found.node) == (12, "r1", True, "10.0.0.7", "n1")
    bare = pod_facts({"metadata": {"name": "demo-0", "uid": "u"}, "spec": {}})
    assert (bare.ordinal, bare.revision, bare.ready, bare.address, bare.trouble) == (0, None, False, None, None)


@pytest.mark.spec("OPR-02")
@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        (pod(), None),
        (pod({"running": {}}), None),
        (pod({"waiting": {}}), None),
        (pod({"waiting": {"reason": "ContainerCreating"}}), None),
        (pod({"waiting": {"reason": "PodInitializing"}}), None),
        (pod({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}), "ErrImagePull: no such image"),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoopBackOff: see its logs"),
        (pod(PodScheduled="True"), None),
        (pod(PodScheduled="False"), "it cannot be scheduled: 0/3 nodes"),
    ],
)
def test_what_keeps_a_pod_from_its_start_is_told_in_a_word(found: dict[str, Any], trouble: str | None) -> None:
    assert pod_facts(found).trouble == trouble


@pytest.mark.spec("OPR-02", "OPR-45")
def test_what_goes_before_the_broker_and_fails_is_told_as_well() -> None:
    """By podTemplate, or put there by a mesh: the broker itself only waits for its turn then."""
    found = pod({"waiting": {"reason": "PodInitializing"}})
    found["status"]["initContainerStatuses"] = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    assert pod_facts(found).trouble == "CrashLoopBackOff: see its logs"
    found["status"]["initContainerStatuses"] = [{"state": {"waiting": {"reason": "PodInitializing"}}}]
    assert pod_facts(found).trouble is None
