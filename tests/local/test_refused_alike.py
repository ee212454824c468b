"""What is refused, and what is understood where it is not: the embedded API and a real kube-apiserver alike."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.local.conftest import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, refusal
from tests.local.test_alike import config_map, deployment, pod, template


@pytest.mark.parametrize(
    ("spec", "container", "said"),
    [
        ({}, {"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}}, "periodSeconds: Invalid value: -1"),
        ({}, {"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}}, "Invalid value: 2: must be 1"),
        ({}, {"name": "A_b"}, 'containers[0].name: Invalid value: "A_b"'),
        ({}, {"env": [{"name": "a=b", "value": "x"}]}, 'env[0].name: Invalid value: "a=b"'),
        ({}, {"ports": [{"containerPort": 70000}]}, "containerPort: Invalid value: 70000: must be between 1 and 65535"),
        ({"volumes": [{"name": "../v"}]}, {}, 'spec.volumes[0].name: Invalid value: "../v"'),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, {}, 'spec.volumes[1].name: Duplicate value: "v"'),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}]}, {}, "more than 1 volume type"),
        (
            {"volumes": [{"name": "v"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}]},
            'volumeMounts[1].mountPath: Invalid value: "/a": must be unique',
        ),
        ({"restartPolicy": "Often"}, {}, 'spec.restartPolicy: Unsupported value: "Often"'),
        ({"activeDeadlineSeconds": 0}, {}, "spec.activeDeadlineSeconds: Invalid value: 0"),
        ({"initContainers": [{"name": "i", "image": "i"}]}, {"name": "A_b"}, "spec.containers[0].name: Invalid value"),
        ({"initContainers": [{"name": "A_b", "image": "i"}]}, {}, "spec.initContainers[0].name: Invalid value"),
        ({"initContainers": [{"name": "c", "image": "i"}]}, {}, 'spec.initContainers[0].name: Duplicate value: "c"'),
        (
            {"initContainers": [{"name": "i", "image": "i"}]},
            {"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}},
            "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1",
        ),
        (
            {"initContainers": [{"name": "i", "image": "i", "startupProbe": {"tcpSocket": {"port": 1}}}]},
            {},
            "spec.initContainers[0].startupProbe: Forbidden: may not be set for init containers",
        ),
        (
            {"initContainers": [{"name": "i", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}]},
            {},
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers",
        ),
    ],
)
def test_what_no_node_could_run_is_refused(
    server: Api, place: str, spec: dict[str, Any], container: dict[str, Any], said: str
) -> None:
    body = pod()
    body["spec"] |= spec
    body["spec"]["containers"][0] |= container
    code, told = refusal(server, "POST", f"/api/v1/{place}/pods?dryRun=All", body)
    assert (code, said in told) == (422, True), told


def test_data_are_as_large_as_they_are_without_base64(server: Api, place: str) -> None:
    limit = 1024 * 1024

    def body(kind: str, field: str, size: int) -> dict[str, Any]:
        data = {"k": base64.b64encode(bytes(size)).decode()}
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "d"}, field: data}

    secrets, maps = (f"/api/v1/{place}/{kind}?dryRun=All" for kind in ("secrets", "configmaps"))
    server.call("POST", secrets, body("Secret", "data", limit))
    server.call("POST", maps, body("ConfigMap", "binaryData", limit))
    for path, larger in (
        (secrets, body("Secret", "data", limit + 1)),
        (maps, body("ConfigMap", "binaryData", limit + 1)),
        (maps, config_map(k="x" * (limit - 1) + "é")),
    ):
        code, told = refusal(server, "POST", path, larger)
        assert (code, "may not be more than 1048576 bytes" in told) == (422, True), told


def test_zero_is_what_is_usual(server: Api, place: str) -> None:
    """Of how often to ask, and how long: a period of 0 s would be asking without end."""
    numbers = dict.fromkeys(("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"), 0)
    body = pod()
    body["spec"] |= {"volumes": [{"name": "v"}], "terminationGracePeriodSeconds": -5}
    body["spec"]["containers"][0]["livenessProbe"] = {"tcpSocket": {"port": 1}} | numbers
    made = server.call("POST", f"/api/v1/{place}/pods?dryRun=All", body)["spec"]
    probe = made["containers"][0]["livenessProbe"]
    assert [probe[field] for field in numbers] == [10, 1, 3, 1]
    assert made["volumes"][0] == {"name": "v", "emptyDir": {}}
    assert made["terminationGracePeriodSeconds"] == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "minAvailable and maxUnavailable cannot be both set"),
        ({"minAvailable": -1}, "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"),
        ({"maxUnavailable": "some"}, 'spec.maxUnavailable: Invalid value: "some": a valid percent string must be'),
    ],
)
def test_a_budget_that_is_none_is_refused(server: Api, place: str, spec: dict[str, Any], said: str) -> None:
    body = {"metadata": {"name": "b"}, "spec": spec}
    code, told = refusal(server, "POST", f"/apis/policy/v1/{place}/poddisruptionbudgets?dryRun=All", body)
    assert (code, said in told) == (422, True), told


@pytest.mark.parametrize("port", [80, 29999, 32768])
def test_a_node_port_is_of_the_range(server: Api, place: str, port: int) -> None:
    spec = {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}
    path, body = f"/api/v1/{place}/services", {"metadata": {"name": "s"}, "spec": spec}
    code, told = refusal(server, "POST", path, body)
    said = f"spec.ports[0].nodePort: Invalid value: {port}: provided port is not in the valid range. The range of valid"
    assert (code, f"{said} ports is 30000-32767" in told) == (422, True), told
    for taken in (30000, 32767):
        spec["ports"] = [{"port": 80, "nodePort": taken}]
        server.call("POST", f"{path}?dryRun=All", body)


def test_what_becomes_of_claims_is_said_in_two_words(server: Api, place: str) -> None:
    sets = f"/apis/apps/v1/{place}/statefulsets?dryRun=All"
    body = deployment("c") | {"kind": "StatefulSet"}
    body["spec"] |= {"serviceName": "s", "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "delete"}}
    code, told = refusal(server, "POST", sets, body)
    assert (code, 'whenDeleted: Unsupported value: "delete"' in told) == (422, True), told
    body["spec"]["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Delete"}
    made = server.call("POST", sets, body)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert made == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_a_patch_does_not_take_the_name_away(server: Api, maps: str) -> None:
    """Nor all of metadata with it: labels, owners and finalizers."""
    server.call("POST", maps, config_map(a="1") | {"metadata": {"name": "c", "labels": {"a": "b"}}})
    for kind, patch in (
        (JSON_PATCH, [{"op": "remove", "path": "/metadata"}]),
        (JSON_PATCH, [{"op": "remove", "path": "/metadata/name"}]),
        (MERGE, {"metadata": {"name": None}}),
    ):
        code, told = refusal(server, "PATCH", f"{maps}/c", patch, kind)
        assert (code, told) == (
            400, "the name of the object (c based on URL) was undeterminable: name must be provided"
        )  # fmt: skip
    assert server.get(f"{maps}/c")["metadata"]["labels"] == {"a": "b"}


def test_an_object_leaves_a_selection_as_what_it_was(server: Api, maps: str) -> None:
    made = server.call("POST", maps, config_map(a="1") | {"metadata": {"name": "c", "labels": {"a": "b"}}})
    since = made["metadata"]["resourceVersion"]
    gone = server.patch(f"{maps}/c", {"metadata": {"labels": {"a": "c"}}})
    query = f"watch=1&labelSelector=a%3Db&resourceVersion={since}&timeoutSeconds=5"
    (event,) = server.watch(f"{maps}?{query}", 1)
    assert (event["type"], event["object"]["metadata"]["labels"]) == ("DELETED", {"a": "b"})
    assert event["object"]["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("resourceVersionMatch=Exact&resourceVersion=0", 'resourceVersionMatch "exact" is forbidden'),
        ("resourceVersionMatch=NotOlderThan", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ("resourceVersionMatch=Any&resourceVersion=1", 'Unsupported value: "Any"'),
        ("sendInitialEvents=true", "sendInitialEvents is forbidden for list"),
        ("watch=1&sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ("watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1", "forbidden for watch unless sendInitialEvents"),
    ],
)
def test_options_that_do_not_go_together_are_refused(server: Api, maps: str, query: str, said: str) -> None:
    code, told = refusal(server, "GET", f"{maps}?{query}")
    assert (code, said in told) == (422, True), told


def test_two_policies_of_deletion_are_refused(server: Api, maps: str) -> None:
    server.call("POST", maps, config_map(a="1"))
    both = {"propagationPolicy": "Background", "orphanDependents": True}
    code, told = refusal(server, "DELETE", f"{maps}/c", both)
    assert (code, "orphanDependents and deletionPropagation cannot be both set" in told) == (422, True), told
    assert server.exists(f"{maps}/c")


def test_what_goes_is_still_in_the_way(server: Api, maps: str) -> None:
    server.call("POST", maps, config_map(a="1") | {"metadata": {"name": "c", "finalizers": ["test.dev/hold"]}})
    server.delete(f"{maps}/c")
    code, told = refusal(server, "POST", maps, config_map(a="1"))
    assert (code, told) == (409, 'object is being deleted: configmaps "c" already exists')
    server.patch(f"{maps}/c", {"metadata": {"finalizers": None}})


def test_owners_and_finalizers_that_nobody_would_understand_are_refused(server: Api, maps: str, path: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": True}
    for metadata, said in (
        ({"finalizers": ["hold"]}, 'Invalid value: "hold": name is neither a standard finalizer name nor'),
        ({"ownerReferences": [owner, owner | {"uid": "v"}]}, "Only one reference can have Controller set to true"),
    ):
        code, told = refusal(server, "POST", maps, config_map(a="1") | {"metadata": {"name": "c"} | metadata})
        assert (code, said in told) == (422, True), told
    plain = {"metadata": {"name": "w", "finalizers": ["hold"]}, "spec": {"size": 1}}
    assert server.post(path, plain)["metadata"]["finalizers"] == ["hold"], "only built-in kinds are that strict"
    server.patch(f"{path}/w", {"metadata": {"finalizers": None}})


def template_names(server: Api, path: str) -> list[str]:
    return [one["name"] for one in server.get(path)["spec"]["template"]["spec"]["containers"]]


def test_a_patch_of_a_list_puts_what_is_new_first_and_leaves_others_where_they_are(server: Api, place: str) -> None:
    """`kubectl apply` beside somebody who has put a container in: another order would be another template."""
    path = f"/apis/apps/v1/{place}/deployments/d"
    server.post(f"/apis/apps/v1/{place}/deployments", deployment("a", "others", "b"))

    def patch(names: list[str], **more: Any) -> list[str]:
        containers = [{"name": name, "image": "x"} for name in names]
        body = {"spec": {"template": {"spec": {"containers": containers} | more}}}
        server.patch(path, body, STRATEGIC)
        return template_names(server, path)

    order = {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}]}
    assert patch(["b"], **order) == ["a", "others", "b"]
    assert patch(["b", "a"]) == ["others", "b", "a"]
    assert patch(["new"]) == ["new", "others", "b", "a"]
    assert patch(["a"]) == ["new", "others", "b", "a"]
    order = {"$setElementOrder/containers": [{"name": "a"}, {"name": "new"}, {"name": "b"}]}
    assert patch(["a"], **order) == ["others", "a", "new", "b"]


@pytest.mark.parametrize("labels", [{"labels": {"a": "b"}}, {}])
def test_what_the_server_marks_a_job_with_belongs_to_nobody(server: Api, place: str, labels: dict[str, str]) -> None:
    """Else who created it with `kubectl apply` could not apply it server-side: that would take the marks away."""
    path = f"/apis/batch/v1/{place}/jobs"
    spec = {"suspend": True, "template": template("c", restartPolicy="Never") | {"metadata": labels}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    (owned,) = server.post(path, body)["metadata"]["managedFields"]
    assert "f:selector" not in owned["fieldsV1"]["f:spec"]
    assert "job-name" not in str(owned)
    upgraded = owned | {"manager": "kubectl", "operation": "Apply"}
    server.patch(f"{path}/j", {"metadata": {"managedFields": [upgraded]}})
    made = server.patch(f"{path}/j?fieldManager=kubectl", body, APPLY)
    assert made["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"


def test_a_claim_may_stand_for_a_volume_of_the_template_but_has_a_name(server: Api, place: str) -> None:
    sets = f"/apis/apps/v1/{place}/statefulsets?dryRun=All"
    body = deployment("c") | {"kind": "StatefulSet"}
    body["spec"]["template"]["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    assert server.call("POST", sets, body)["spec"]["template"]["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
    body["spec"]["volumeClaimTemplates"] = [{"metadata": {}, "spec": claim}]
    code, said = refusal(server, "POST", sets, body)
    assert code == 422, said
