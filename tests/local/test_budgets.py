"""Evictions, as `kubectl drain` sends them: all at once, and again until a budget lets them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.local.conftest import Api, Refused, Running
from tests.local.test_controllers import available
from tests.local.test_workloads import stateful_set
from tests.waiting import eventually

from ballast_local import meta


def evict(running: Running, path: str) -> int:
    try:
        running.api().post(f"{path}/eviction", {"metadata": {"name": path.rpartition("/")[2]}})
    except Refused as refusal:
        return refusal.code
    return 201


def budget(api: Api, namespace: str, **spec: Any) -> str:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "s"}}
    api.post(path, {"metadata": {"name": "b"}, "spec": {"selector": selector, **spec}})
    return f"{path}/b"


@pytest.mark.parametrize("limit", [{"maxUnavailable": 1}, {"minAvailable": "60%"}])
def test_of_evictions_at_once_a_budget_lets_one(
    running: Running, api: Api, namespace: str, pods: str, limit: dict[str, Any]
) -> None:
    """Pods that go are missing from what there should be, until others are there for them."""
    path = budget(api, namespace, **limit)
    owner = api.post(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "as-an-operator-has-it"}})
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    body = stateful_set(3)
    body["metadata"]["ownerReferences"] = [meta.owner_reference(owner)]
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 60
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "trap '' TERM; touch ready; while :; do sleep 1; done"]
    container["readinessProbe"] = {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1}
    api.post(sets, body)
    available(api, f"{sets}/s", 3)
    eventually(lambda: api.get(path)["status"]["disruptionsAllowed"] == 1)
    with ThreadPoolExecutor(3) as together:
        answers = list(together.map(lambda number: evict(running, f"{pods}/s-{number}"), range(3)))
    assert sorted(answers) == [201, 429, 429]
    eventually(lambda: api.get(path)["status"]["currentHealthy"] == 2)
    status = api.get(path)["status"]
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (3, 2, 0)
    other = answers.index(429)
    assert evict(running, f"{pods}/s-{other}") == 429
    gone = answers.index(201)
    assert evict(running, f"{pods}/s-{gone}") == 201, "it goes already"
    api.delete(f"{sets}/s", {"propagationPolicy": "Orphan"})
    for number in range(3):
        api.delete(f"{pods}/s-{number}", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize(("policy", "answer"), [("IfHealthyBudget", 429), ("AlwaysAllow", 201)])
def test_a_pod_that_is_not_ready_goes_if_nobody_ready_is_lost_or_always(
    running: Running, api: Api, namespace: str, pods: str, policy: str, answer: int
) -> None:
    path = budget(api, namespace, minAvailable=1, unhealthyPodEvictionPolicy=policy)
    container = {"name": "main", "image": "none", "command": ["sleep", "600"],
                 "readinessProbe": {"exec": {"command": ["false"]}}}  # fmt: skip
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    api.post(pods, {"metadata": {"name": "p", "labels": {"app": "s"}}, "spec": spec})
    eventually(lambda: api.get(f"{pods}/p")["status"]["phase"] == "Running")
    eventually(lambda: api.get(path).get("status", {}).get("expectedPods") == 1)
    assert evict(running, f"{pods}/p") == answer


def test_an_empty_selector_is_every_pod(running: Running, api: Api, namespace: str, pods: str) -> None:
    path = budget(api, namespace, minAvailable=1, selector={})
    spec = {"containers": [{"name": "main", "image": "none", "command": ["sleep", "600"]}]}
    api.post(pods, {"metadata": {"name": "p"}, "spec": spec | {"terminationGracePeriodSeconds": 0}})
    eventually(lambda: api.get(path).get("status", {}).get("currentHealthy") == 1)
    assert evict(running, f"{pods}/p") == 429


def test_an_eviction_that_is_only_tried_evicts_nobody(api: Api, pods: str) -> None:
    """`kubectl drain --dry-run=server` says so in the eviction's options."""
    spec = {"containers": [{"name": "main", "image": "none", "command": ["sleep", "600"]}]}
    api.post(pods, {"metadata": {"name": "p"}, "spec": spec | {"terminationGracePeriodSeconds": 0}})
    api.post(f"{pods}/p/eviction", {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}})
    assert "deletionTimestamp" not in api.get(f"{pods}/p")["metadata"]
