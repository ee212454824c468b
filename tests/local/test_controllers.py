"""What people rely on of controllers beyond that their pods run: deadlines, pauses, orphans, the order of going."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.local.conftest import DEFINITIONS, MERGE, STRATEGIC, Api, definition
from tests.local.test_workloads import condition, stateful_set
from tests.waiting import eventually


def container(text: str = "exec sleep 600", **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "none", "command": ["sh", "-c", text], **more}


def workload(text: str = "exec sleep 600", probe: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    more = {"readinessProbe": probe} if probe else {}
    pod = {"terminationGracePeriodSeconds": 1, "containers": [container(text, **more)]}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod}
    common = {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    return {"metadata": {"name": "d"}, "spec": common | spec}


@pytest.fixture
def base(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}"


@pytest.fixture
def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def names(api: Api, path: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in api.get(path)["items"])


def available(api: Api, path: str, count: int) -> dict[str, Any]:
    return eventually(lambda: (found := api.get(path)).get("status", {}).get("availableReplicas", 0) == count and found)


def reason(obj: dict[str, Any], kind: str) -> str:
    held = obj.get("status", {}).get("conditions") or []
    return next((one["reason"] for one in held if one["type"] == kind), "")


def test_a_deployment_that_lost_its_replica_set_takes_it_back(api: Api, base: str, pods: str) -> None:
    """As after `kubectl delete --cascade=orphan`."""
    api.post(f"{base}/deployments", workload())
    available(api, f"{base}/deployments/d", 1)
    before = names(api, pods)
    api.delete(f"{base}/deployments/d", {"propagationPolicy": "Orphan"})
    made = api.post(f"{base}/deployments", workload())
    available(api, f"{base}/deployments/d", 1)
    (replica_set,) = api.get(f"{base}/replicasets")["items"]
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert names(api, pods) == before


def test_the_history_of_a_rollout_tells_why(api: Api, base: str) -> None:
    cause = {"kubernetes.io/change-cause": "first", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    body = workload()
    body["metadata"]["annotations"] = cause
    api.post(f"{base}/deployments", body)
    available(api, f"{base}/deployments/d", 1)
    second = {"metadata": {"annotations": {"kubernetes.io/change-cause": "second"}},
              "spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}  # fmt: skip
    api.patch(f"{base}/deployments/d", second, STRATEGIC)

    def history() -> dict[str, str]:
        held = [one["metadata"]["annotations"] for one in api.get(f"{base}/replicasets")["items"]]
        assert not any("kubectl.kubernetes.io/last-applied-configuration" in one for one in held)
        return {one["deployment.kubernetes.io/revision"]: one["kubernetes.io/change-cause"] for one in held}

    eventually(lambda: history() == {"1": "first", "2": "second"})


def test_a_paused_deployment_scales(api: Api, base: str) -> None:
    api.post(f"{base}/deployments", workload())
    available(api, f"{base}/deployments/d", 1)
    api.patch(f"{base}/deployments/d", {"spec": {"paused": True}})
    api.patch(f"{base}/deployments/d/scale", {"spec": {"replicas": 2}})
    available(api, f"{base}/deployments/d", 2)


def test_a_rollout_that_does_not_get_on_says_so(api: Api, base: str) -> None:
    api.post(f"{base}/deployments", workload(probe={"exec": {"command": ["false"]}}, progressDeadlineSeconds=1))
    path = f"{base}/deployments/d"
    found = eventually(lambda: condition(one := api.get(path), "Progressing") == "False" and one)
    assert reason(found, "Progressing") == "ProgressDeadlineExceeded"
    better = {"spec": {"template": {"spec": {"containers": [{"name": "main", "readinessProbe": None}]}}}}
    api.patch(path, better, STRATEGIC)
    found = eventually(lambda: reason(one := api.get(path), "Progressing") == "NewReplicaSetAvailable" and one)
    assert condition(found, "Progressing") == "True"


def test_a_deployment_that_recreates_forgets_old_templates_too(api: Api, base: str) -> None:
    spec = workload(strategy={"type": "Recreate"}, revisionHistoryLimit=0)
    api.post(f"{base}/deployments", spec)
    available(api, f"{base}/deployments/d", 1)
    api.patch(f"{base}/deployments/d", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}, STRATEGIC)
    eventually(lambda: reason(api.get(f"{base}/deployments/d"), "Progressing") == "NewReplicaSetAvailable"
               and len(api.get(f"{base}/replicasets")["items"]) == 1)  # fmt: skip


def test_available_is_who_has_been_ready_for_long_enough(api: Api, base: str) -> None:
    api.post(f"{base}/deployments", workload(minReadySeconds=3600))
    path = f"{base}/deployments/d"
    status = eventually(lambda: (found := api.get(path)["status"]).get("readyReplicas") == 1 and found)
    assert (status["availableReplicas"], status["unavailableReplicas"]) == (0, 1)
    api.patch(path, {"spec": {"minReadySeconds": 0}})
    available(api, path, 1)
    stateful = workload(minReadySeconds=1, serviceName="s", replicas=2)
    stateful["spec"]["selector"]["matchLabels"] = stateful["spec"]["template"]["metadata"]["labels"] = {"app": "s"}
    api.post(f"{base}/statefulsets", stateful)
    available(api, f"{base}/statefulsets/d", 2)
    first, second = (
        one["status"] for one in api.get(f"/api/v1/{base.partition('v1/')[2]}/pods?labelSelector=app=s")["items"]
    )
    ready = next(one["lastTransitionTime"] for one in first["conditions"] if one["type"] == "Ready")
    assert second["startTime"] > ready, "the second waited until the first was available"


def test_the_youngest_goes_first(api: Api, base: str, pods: str) -> None:
    api.post(f"{base}/replicasets", workload())
    available(api, f"{base}/replicasets/d", 1)
    (first,) = api.get(pods)["items"]
    eventually(lambda: later(first["metadata"]["creationTimestamp"]))
    api.patch(f"{base}/replicasets/d/scale", {"spec": {"replicas": 2}})
    available(api, f"{base}/replicasets/d", 2)
    api.patch(f"{base}/replicasets/d/scale", {"spec": {"replicas": 1}})
    eventually(lambda: len(api.get(pods)["items"]) == 1)
    assert names(api, pods) == [first["metadata"]["name"]]


def later(timestamp: str) -> bool:
    from ballast_local import meta

    return meta.now() > timestamp


def test_below_the_partition_the_template_before_is_kept(api: Api, base: str, pods: str) -> None:
    """Also for a pod that is lost and made anew; and the set can go back to it."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    api.post(f"{base}/statefulsets", stateful_set(2, updateStrategy=rolling))
    before = available(api, f"{base}/statefulsets/s", 2)["status"]["currentRevision"]
    api.patch(f"{base}/statefulsets/s", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}, STRATEGIC)
    eventually(lambda: (one := api.find(f"{pods}/s-1")) and "annotations" in one["metadata"])
    lost = api.get(f"{pods}/s-0")["metadata"]["uid"]
    api.delete(f"{pods}/s-0")
    anew = eventually(lambda: (one := api.find(f"{pods}/s-0")) and one["metadata"]["uid"] != lost and one)
    assert "annotations" not in anew["metadata"]
    assert anew["metadata"]["labels"]["controller-revision-hash"] == before
    old, new = sorted(api.get(f"{base}/controllerrevisions")["items"], key=lambda one: one["revision"])
    assert (old["metadata"]["name"], old["revision"], new["revision"]) == (before, 1, 2)
    undone = api.patch(f"{base}/statefulsets/s", old["data"], STRATEGIC)
    assert "annotations" not in undone["spec"]["template"]["metadata"]
    eventually(lambda: api.get(f"{base}/controllerrevisions/{before}")["revision"] == 3)
    available(api, f"{base}/statefulsets/s", 2)
    assert api.get(f"{base}/statefulsets/s")["status"]["updateRevision"] == before


def test_claims_of_pods_that_are_scaled_away_go_where_it_is_asked_for(
    api: Api, namespace: str, base: str, pods: str
) -> None:
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
    api.post(f"{base}/statefulsets", stateful_set(2, persistentVolumeClaimRetentionPolicy=policy))
    available(api, f"{base}/statefulsets/s", 2)
    api.patch(f"{base}/statefulsets/s/scale", {"spec": {"replicas": 1}})
    eventually(lambda: names(api, claims) == ["data-s-0"] and names(api, pods) == ["s-0"])
    api.patch(f"{base}/statefulsets/s/scale", {"spec": {"replicas": 2}})
    available(api, f"{base}/statefulsets/s", 2)
    assert names(api, claims) == ["data-s-0", "data-s-1"]


def owners(api: Api, path: str) -> list[str]:
    return [one["kind"] for one in api.get(path)["metadata"].get("ownerReferences") or []]


def test_claims_go_with_their_set_as_it_says_last(api: Api, namespace: str, base: str, pods: str) -> None:
    """Who says Retain before the set is deleted has the data."""
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    policy = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    api.post(f"{base}/statefulsets", stateful_set(1, persistentVolumeClaimRetentionPolicy=policy))
    available(api, f"{base}/statefulsets/s", 1)
    assert owners(api, f"{claims}/data-s-0") == ["StatefulSet"]
    retain = {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}}
    api.patch(f"{base}/statefulsets/s", retain)
    eventually(lambda: owners(api, f"{claims}/data-s-0") == [])
    api.delete(f"{base}/statefulsets/s", {"propagationPolicy": "Foreground"})
    eventually(lambda: not api.exists(f"{base}/statefulsets/s") and names(api, pods) == [])
    assert names(api, claims) == ["data-s-0"]
    api.post(f"{base}/statefulsets", stateful_set(1, persistentVolumeClaimRetentionPolicy=policy))
    eventually(lambda: owners(api, f"{claims}/data-s-0") == ["StatefulSet"])
    api.delete(f"{base}/statefulsets/s")
    eventually(lambda: names(api, claims) == [])


def test_scaled_back_in_time_a_pod_finds_its_claim(api: Api, namespace: str, base: str, pods: str) -> None:
    claim = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/data-s-1"
    policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
    api.post(f"{base}/statefulsets", stateful_set(2, persistentVolumeClaimRetentionPolicy=policy))
    available(api, f"{base}/statefulsets/s", 2)
    api.patch(f"{pods}/s-1", {"metadata": {"finalizers": ["test.dev/look"]}})
    before = api.get(claim)["metadata"]["uid"]
    api.patch(f"{base}/statefulsets/s/scale", {"spec": {"replicas": 1}})
    eventually(lambda: owners(api, claim) == ["Pod"])
    api.patch(f"{base}/statefulsets/s/scale", {"spec": {"replicas": 2}})
    eventually(lambda: owners(api, claim) == [])
    api.patch(f"{pods}/s-1", {"metadata": {"finalizers": None}})
    eventually(lambda: (one := api.find(f"{pods}/s-1")) and condition(one, "Ready") == "True")
    assert api.get(claim)["metadata"]["uid"] == before


def test_what_has_another_owner_stays(api: Api, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"

    def owner(name: str) -> dict[str, Any]:
        uid = api.post(maps, {"metadata": {"name": name}})["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": True}

    goes, stays = owner("goes"), owner("stays")
    api.post(maps, {"metadata": {"name": "of-both", "ownerReferences": [goes, stays]}})
    api.post(maps, {"metadata": {"name": "of-one", "ownerReferences": [goes]}})
    api.delete(f"{maps}/goes", {"propagationPolicy": "Foreground"})
    eventually(lambda: not api.exists(f"{maps}/goes"))
    assert api.get(f"{maps}/of-both")["metadata"]["ownerReferences"] == [stays]
    assert not api.exists(f"{maps}/of-one")


def test_a_set_leaves_pods_alone_that_only_have_its_labels(api: Api, base: str, pods: str) -> None:
    """A client that somebody runs beside it, for instance: taken for a pod too many, it would be ended."""
    for name in ("client", "s-01", "other-0"):
        labels = {"labels": {"app": "s"}, "name": name}
        api.post(pods, {"metadata": labels, "spec": {"containers": [container()], "terminationGracePeriodSeconds": 0}})
    api.post(base + "/statefulsets", stateful_set(1))
    available(api, f"{base}/statefulsets/s", 1)
    assert names(api, pods) == ["client", "other-0", "s-0", "s-01"]
    assert owners(api, f"{pods}/client") == []
    api.delete(f"{base}/statefulsets/s", {"propagationPolicy": "Orphan"})
    eventually(lambda: owners(api, f"{pods}/s-0") == [])
    api.post(base + "/statefulsets", stateful_set(1))
    eventually(lambda: owners(api, f"{pods}/s-0") == ["StatefulSet"])


def test_a_pod_is_not_made_with_a_claim_that_goes(api: Api, namespace: str, base: str, pods: str) -> None:
    """It would hold the claim and wait for it."""
    claim = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/data-s-0"
    api.post(f"{base}/statefulsets", stateful_set(1))
    available(api, f"{base}/statefulsets/s", 1)
    api.patch(claim, {"metadata": {"finalizers": ["test.dev/hold", "kubernetes.io/pvc-protection"]}})
    api.delete(claim)
    before = api.get(f"{pods}/s-0")["metadata"]["uid"]
    api.delete(f"{pods}/s-0", {"gracePeriodSeconds": 0})
    eventually(lambda: api.get(claim)["metadata"]["finalizers"] == ["test.dev/hold"])
    assert not api.exists(f"{pods}/s-0")
    api.patch(claim, {"metadata": {"finalizers": None}})
    eventually(lambda: (one := api.find(f"{pods}/s-0")) and one["metadata"]["uid"] != before)
    available(api, f"{base}/statefulsets/s", 1)


def job(name: str, text: str, policy: str = "Never", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": policy, "containers": [container(text)], "terminationGracePeriodSeconds": 1}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_restarts_in_a_pod_count_against_the_limit_of_its_job(api: Api, jobs: str) -> None:
    api.post(jobs, job("j", "exit 1", "OnFailure", backoffLimit=1))
    found = eventually(lambda: condition(one := api.get(f"{jobs}/j"), "Failed") == "True" and one)
    assert reason(found, "Failed") == "BackoffLimitExceeded"


def test_a_job_that_is_suspended_has_not_begun(api: Api, jobs: str, pods: str) -> None:
    api.post(jobs, job("j", "echo done", suspend=True, activeDeadlineSeconds=30))
    found = eventually(lambda: condition(one := api.get(f"{jobs}/j"), "Suspended") == "True" and one)
    assert "startTime" not in found["status"]
    assert api.get(pods)["items"] == []
    api.patch(f"{jobs}/j", {"spec": {"suspend": False}}, MERGE)
    found = eventually(lambda: condition(one := api.get(f"{jobs}/j"), "Complete") == "True" and one)
    assert found["status"]["startTime"]
    assert (condition(found, "Suspended"), reason(found, "Suspended")) == ("False", "JobResumed")


def test_a_schedule_that_was_missed_while_nothing_ran_is_made_up_for(api: Api, namespace: str) -> None:
    """However long ago: without startingDeadlineSeconds there is no too late."""
    crons = f"/apis/batch/v1/namespaces/{namespace}/cronjobs"
    now = datetime.now(UTC)
    due = now - timedelta(days=3)
    template = {"spec": {"template": job("j", "echo done")["spec"]["template"]}}
    spec = {"schedule": f"0 0 {due.day} {due.month} *", "jobTemplate": template}
    api.post(crons, {"metadata": {"name": "c"}, "spec": spec})
    before = (now - timedelta(days=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    api.patch(f"{crons}/c/status", {"status": {"lastScheduleTime": before}})
    status = eventually(lambda: (found := api.get(f"{crons}/c")["status"])["lastScheduleTime"] != before and found)
    assert status["lastScheduleTime"] == due.strftime("%Y-%m-%dT00:00:00Z")
    assert len(api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]) == 1


def test_a_job_with_less_parallelism_ends_pods(api: Api, jobs: str, pods: str) -> None:
    api.post(jobs, job("j", "exec sleep 600", parallelism=3, completions=6))
    eventually(lambda: api.get(f"{jobs}/j").get("status", {}).get("ready") == 3)
    api.patch(f"{jobs}/j", {"spec": {"parallelism": 1}}, MERGE)
    eventually(lambda: len(names(api, pods)) == 1)
    assert eventually(lambda: api.get(f"{jobs}/j")["status"]["active"] == 1)


def gadgets(namespace: str, *versions: dict[str, Any]) -> tuple[dict[str, Any], str]:
    body = definition("gadgets")
    made = body["spec"]["versions"][0]
    body["spec"]["versions"] = [made | version for version in versions]
    return body, f"/apis/test.dev/v1/namespaces/{namespace}/gadgets"


def test_a_namespace_goes_whatever_became_of_definitions(api: Api, namespace: str) -> None:
    """One that stores a version which it does not serve, and one that was forced to go before its objects."""
    old, new = {"name": "v1", "storage": False}, {"name": "v2", "served": False}
    body, path = gadgets(namespace, old, new)
    api.post(DEFINITIONS, body)
    api.post(path, {"metadata": {"name": "a"}, "spec": {"size": 1}})
    api.delete(f"/api/v1/namespaces/{namespace}")
    eventually(lambda: not api.exists(f"/api/v1/namespaces/{namespace}"))
    assert api.get(path)["items"] == []
    api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.post(path, {"metadata": {"name": "a", "finalizers": ["test.dev/stuck"]}, "spec": {"size": 1}})
    api.delete(f"{DEFINITIONS}/gadgets.test.dev")
    api.patch(f"{DEFINITIONS}/gadgets.test.dev", {"metadata": {"finalizers": None}})
    assert not api.exists(f"{DEFINITIONS}/gadgets.test.dev")
    api.delete(f"/api/v1/namespaces/{namespace}")
    eventually(lambda: not api.exists(f"/api/v1/namespaces/{namespace}"))
