"""What clients rely on beyond what was recorded: the same tests against the embedded API and a real kube-apiserver."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.local.conftest import APPLY, DEFINITIONS, JSON_PATCH, MERGE, Api, Refused, definition, refusal
from tests.waiting import eventually


def widget(name: str = "w", meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} | (meta or {})
    return {"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": 1} | spec}


def config_map(**data: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def applied(api: Api, path: str, body: dict[str, Any], manager: str = "one", **query: str) -> Any:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return api.call("PATCH", f"{path}/{body['metadata']['name']}?fieldManager={manager}{more}", body, APPLY)


def managers(obj: dict[str, Any]) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields") or []}


def test_custom_resources_say_what_they_are(server: Api, path: str) -> None:
    untyped = {"metadata": {"name": "w"}, "spec": {"size": 1}}
    code, said = refusal(server, "POST", path, untyped)
    assert (code, "Object 'Kind' is missing" in said) == (400, True)
    code, said = refusal(server, "POST", path, untyped | {"kind": "Widget"})
    assert (code, "the API version in the data () does not match" in said) == (400, True)


def test_a_replacement_names_the_version_that_it_replaces(server: Api, path: str, maps: str) -> None:
    made = server.call("POST", path, widget())
    code, said = refusal(server, "PUT", f"{path}/w", widget(size=2))
    assert code == 422
    assert said.endswith("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    server.call("PUT", f"{path}/w", made | {"spec": {"size": 2}})
    server.call("POST", maps, config_map(a="1"))
    assert server.call("PUT", f"{maps}/c", config_map(a="2"))["data"] == {"a": "2"}, "built-in kinds do without"


def test_metadata_holds_only_what_it_knows(server: Api, path: str) -> None:
    made = server.call("POST", path, widget(meta={"fool": 1, "labels": {"a": None}, "annotations": None}))
    assert made["metadata"]["labels"] == {"a": ""}
    assert not {"fool", "annotations"} & made["metadata"].keys()
    assert server.warnings == ['299 - "unknown field \\"metadata.fool\\""']
    code, said = refusal(server, "POST", f"{path}?fieldValidation=Strict", widget("v", {"fool": 1}))
    assert (code, 'strict decoding error: unknown field "metadata.fool"' in said) == (400, True)


def test_apply_takes_no_field_that_is_not_there(server: Api, path: str) -> None:
    for body, field in ((widget(nope=1), ".spec.nope"), (widget(meta={"fool": 1}), ".metadata.fool")):
        code, said = refusal(server, "PATCH", f"{path}/w?fieldManager=one", body, APPLY)
        assert (code, said.endswith(f"Kind=Widget): {field}: field not declared in schema")) == (500, True)
    assert not server.exists(f"{path}/w")


def test_what_is_applied_no_more_goes_with_its_defaults(server: Api, path: str) -> None:
    """Nobody owns a default; it stays as long as anybody owns something beside it."""
    made = applied(server, path, widget(box={"colour": "red"}))
    assert made["spec"]["box"] == {"colour": "red", "lid": "closed"}
    applied(server, path, widget(box={"colour": "red"}), "two")
    assert applied(server, path, widget())["spec"]["box"] == made["spec"]["box"]
    assert "box" not in applied(server, path, widget(), "two")["spec"]


def test_apply_says_what_it_applies(server: Api, maps: str) -> None:
    untyped = {"metadata": {"name": "c"}, "data": {}}
    assert refusal(server, "PATCH", f"{maps}/c?fieldManager=one", untyped, APPLY) == (
        400,
        "invalid object type: /, Kind=",
    )


def test_apply_makes_nothing_anew_that_was_another(server: Api, path: str) -> None:
    code, said = refusal(server, "PATCH", f"{path}/w?fieldManager=one", widget(meta={"uid": "u"}), APPLY)
    assert (code, "uid mismatch: the provided object specified uid u" in said) == (409, True)
    assert applied(server, path, widget(meta={"resourceVersion": "7"}))["metadata"]["name"] == "w"


def test_conflicts_in_words(server: Api, path: str) -> None:
    applied(server, path, widget(size=1, config={"a": "b"}))
    code, said = refusal(server, "PATCH", f"{path}/w?fieldManager=two", widget(size=2), APPLY)
    assert (code, said) == (409, 'Apply failed with 1 conflict: conflict with "one": .spec.size')
    _, said = refusal(server, "PATCH", f"{path}/w?fieldManager=two", widget(size=2, config={"a": "c"}), APPLY)
    assert said == 'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.size\n- .spec.config.a'
    status = {"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}}
    server.call("PATCH", f"{path}/w/status?fieldManager=one", status | {"status": {"a": 1}}, APPLY)
    other = status | {"status": {"a": 2}}
    _, said = refusal(server, "PATCH", f"{path}/w/status?fieldManager=two", other, APPLY)
    assert said == 'Apply failed with 1 conflict: conflict with "one" with subresource "status": .status.a'


def test_a_client_may_hand_fields_over(server: Api, maps: str) -> None:
    """As kubectl does when `apply --server-side` follows an `apply` without it."""
    server.call("POST", f"{maps}?fieldManager=before", config_map(a="1", b="2"))
    entry: dict[str, Any] = {"manager": "after", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    entry["fieldsV1"] = {"f:data": {"f:a": {}, "f:b": {}}}
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": [entry]}]
    handed = server.call("PATCH", f"{maps}/c", patch, JSON_PATCH)
    assert managers(handed) == {"after": {"f:data": {"f:a": {}, "f:b": {}}}}
    assert applied(server, maps, config_map(a="9"), "after")["data"] == {"a": "9"}
    patch[0]["value"] = [entry | {"operation": "Guess"}]
    assert managers(server.call("PATCH", f"{maps}/c", patch, JSON_PATCH)).keys() == {"after"}


def test_kubectl_goes_on_at_the_server_where_it_began_at_the_client(server: Api, maps: str) -> None:
    note = "kubectl.kubernetes.io/last-applied-configuration"
    body = config_map(a="1", b="2")
    noted = body | {"metadata": {"name": "c", "annotations": {note: json.dumps(body)}}}
    server.call("POST", f"{maps}?fieldManager=kubectl-client-side-apply", noted)
    server.call("PATCH", f"{maps}/c?fieldManager=hand", {"data": {"b": "9"}}, MERGE)
    code, said = refusal(server, "PATCH", f"{maps}/c?fieldManager=kubectl", config_map(a="3", b="3"), APPLY)
    assert (code, said) == (409, 'Apply failed with 1 conflict: conflict with "hand" using v1: .data.b')
    now = applied(server, maps, config_map(a="3"), "kubectl")
    assert now["data"] == {"a": "3", "b": "9"}
    assert json.loads(now["metadata"]["annotations"][note]) == config_map(a="3")
    _, said = refusal(server, "PATCH", f"{maps}/c?fieldManager=other", config_map(a="4"), APPLY)
    assert said == 'Apply failed with 1 conflict: conflict with "kubectl": .data.a'


def test_one_empty_entry_clears_the_managers(server: Api, maps: str) -> None:
    server.call("POST", f"{maps}?fieldManager=before", config_map(a="1"))
    cleared = server.call("PATCH", f"{maps}/c", {"metadata": {"managedFields": [{}]}, "data": {"b": "2"}}, MERGE)
    assert "managedFields" not in cleared["metadata"]
    assert "managedFields" not in server.call("PATCH", f"{maps}/c", {"data": {"b": "3"}}, MERGE)["metadata"]
    owners = managers(applied(server, maps, config_map(a="1")))
    assert owners["before-first-apply"] == {"f:data": {".": {}, "f:a": {}, "f:b": {}}}
    assert owners["one"] == {"f:data": {"f:a": {}}}
    code, said = refusal(server, "PATCH", f"{maps}/c?fieldManager=one", config_map(a="1", b="4"), APPLY)
    assert (code, said.endswith('conflict with "before-first-apply" using v1: .data.b')) == (409, True)


def test_who_owns_nothing_is_not_listed(server: Api, maps: str) -> None:
    made = server.call("POST", maps, {"metadata": {"generateName": "c-"}})
    assert [entry["fieldsV1"] for entry in made["metadata"]["managedFields"]] == [
        {"f:metadata": {"f:generateName": {}}}
    ]
    assert "managedFields" not in server.call("POST", maps, {"metadata": {"name": "bare"}})["metadata"]


def test_a_json_patch_replaces_what_is_not_there(server: Api, maps: str) -> None:
    server.call("POST", maps, config_map(a="1"))
    patch = [{"op": "replace", "path": "/data/b", "value": "2"}]
    assert server.call("PATCH", f"{maps}/c", patch, JSON_PATCH)["data"] == {"a": "1", "b": "2"}


def test_a_limit_holds_for_deleting_too(server: Api, maps: str) -> None:
    for name in "abc":
        server.call("POST", maps, {"metadata": {"name": name}})
    gone = server.call("DELETE", f"{maps}?limit=2")
    assert [one["metadata"]["name"] for one in gone["items"]] == ["a", "b"]
    assert [one["metadata"]["name"] for one in server.get(maps)["items"]] == ["c"]


@pytest.mark.parametrize(
    "query",
    ["limit=x", "watch=1&timeoutSeconds=x", "resourceVersion=x", "resourceVersion=x&resourceVersionMatch=Exact"],
)
def test_a_number_that_is_none_is_the_clients_fault(server: Api, maps: str, query: str) -> None:
    assert refusal(server, "GET", f"{maps}?{query}", None)[0] == 400


def test_a_limit_below_one_is_none(server: Api, maps: str) -> None:
    server.call("POST", maps, config_map())
    assert len(server.get(f"{maps}?limit=-1")["items"]) == 1


def pod(**container: Any) -> dict[str, Any]:
    first = {"name": "c", "image": "i", "command": ["sleep", "9"]} | container
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [first]}}


@pytest.mark.parametrize(
    ("container", "where"),
    [
        (
            {"env": [{"name": "A", "value": 1}]},
            "number into Go struct field EnvVar.spec.containers.env.value of type s",
        ),
        (
            {"env": [{"name": "A", "value": True}]},
            "bool into Go struct field EnvVar.spec.containers.env.value of type s",
        ),
        ({"command": "sleep 1"}, "string into Go struct field Container.spec.containers.command of type []string"),
        ({"args": [1]}, "number into Go struct field Container.spec.containers.args of type string"),
        (
            {"ports": [{"containerPort": "80"}]},
            "string into Go struct field ContainerPort.spec.containers.ports.contai",
        ),
    ],
)
def test_texts_and_numbers_are_not_mixed_up(server: Api, place: str, container: dict[str, Any], where: str) -> None:
    code, said = refusal(server, "POST", f"/api/v1/{place}/pods?dryRun=All", pod(**container))
    assert (code, f"json: cannot unmarshal {where}" in said) == (400, True), said


@pytest.mark.parametrize(
    ("container", "missing"),
    [
        ({"env": [{"value": "1"}]}, "env[0].name: Required value"),
        ({"ports": [{"name": "a"}]}, "ports[0].containerPort: Required value"),
        ({"livenessProbe": {"periodSeconds": 1}}, "livenessProbe: Required value: must specify a handler type"),
        ({"envFrom": [{"configMapRef": {}}]}, "envFrom[0].configMapRef.name: Required value"),
    ],
)
def test_what_a_pod_cannot_do_without(server: Api, place: str, container: dict[str, Any], missing: str) -> None:
    code, said = refusal(server, "POST", f"/api/v1/{place}/pods?dryRun=All", pod(**container))
    assert (code, said) == (422, f'Pod "p" is invalid: spec.containers[0].{missing}')


def test_what_a_stateful_set_cannot_do_without(server: Api, place: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    spec: dict[str, Any] = {"serviceName": "s", "selector": {}, "template": template}
    path, body = f"/apis/apps/v1/{place}/statefulsets?dryRun=All", {"metadata": {"name": "s"}, "spec": spec}
    code, said = refusal(server, "POST", path, body)
    assert (code, "empty selector is invalid for statefulset" in said) == (422, True), said
    spec["selector"] = {"matchLabels": {"a": "b"}}
    spec["volumeClaimTemplates"] = [{"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    code, said = refusal(server, "POST", path, body)
    assert (code, "volumeClaimTemplates[0].spec.resources[storage]: Required value" in said) == (422, True), said
    template["spec"]["volumes"] = [{"name": "v", "configMap": {}}]
    code, said = refusal(server, "POST", path, body)
    assert (code, ".configMap.name: Required value" in said) == (422, True), said


def test_names_are_texts(server: Api, maps: str) -> None:
    assert refusal(server, "POST", maps, {"metadata": {"name": ["c"]}})[0] == 400


def test_a_template_is_read_like_a_pod(server: Api, place: str) -> None:
    template = pod(env=[{"name": "A", "value": 1}]) | {"metadata": {"labels": {"a": "b"}}}
    body: dict[str, Any] = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {key: template[key] for key in ("metadata", "spec")},
        },
    }
    code, said = refusal(server, "POST", f"/apis/apps/v1/{place}/deployments?dryRun=All", body)
    assert (code, "EnvVar.spec.template.spec.containers.env.value of type string" in said) == (400, True), said
    body["spec"]["replicas"] = "2"
    del template["spec"]["containers"][0]["env"]
    code, said = refusal(server, "POST", f"/apis/apps/v1/{place}/deployments?dryRun=All", body)
    assert (code, "string into Go struct field DeploymentSpec.spec.replicas of type int32" in said) == (400, True), said


def template(*names: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": name, "image": "i", "command": ["true"]} for name in names]
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers, **spec}}


def deployment(*names: str) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template(*names)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def test_applied_lists_are_in_the_order_of_who_applied_last(server: Api, place: str) -> None:
    """As init containers have to be. What others added keeps its place."""
    path = f"/apis/apps/v1/{place}/deployments"
    for manager, names, order in (
        ("one", "abc", "abc"),
        ("one", "cab", "cab"),
        ("two", "xa", "cxab"),
        ("one", "bca", "xbca"),
        ("one", "ycb", "xycab"),
    ):
        now = applied(server, path, deployment(*names), manager)
        assert "".join(one["name"] for one in now["spec"]["template"]["spec"]["containers"]) == order
    code, said = refusal(server, "PATCH", f"{path}/d?fieldManager=one", deployment("b", "b"), APPLY)
    assert (code, said.endswith('.spec.containers: duplicate entries for key [name="b"]')) == (500, True), said


def test_nothing_that_is_created_has_a_status_or_managers_already(server: Api, place: str, maps: str) -> None:
    """As in what `kubectl get -o yaml` wrote down: a job of it runs."""
    done = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    job = {"metadata": {"name": "j"}, "spec": {"template": template("c", restartPolicy="Never")}, "status": done}
    assert not server.call("POST", f"/apis/batch/v1/{place}/jobs?dryRun=All", job).get("status")
    body = config_map(a="1")
    body["metadata"]["managedFields"] = [{"manager": "x", "operation": "Update", "fieldsType": "FieldsV1"}]
    assert managers(server.call("POST", maps, body)) == {"tests": {"f:data": {".": {}, "f:a": {}}}}


def test_who_applies_a_status_to_the_main_endpoint_does_not_own_it(server: Api, path: str) -> None:
    made = applied(server, path, widget() | {"status": {"a": 1}})
    assert "status" not in made
    assert "f:status" not in managers(made)["one"]


def test_a_definition_that_got_stricter_does_not_tie_what_there_is(server: Api, place: str) -> None:
    """An operator still writes the status and takes its finalizers; only what is changed has to be right."""
    made, path = definition("gizmos"), f"/apis/test.dev/v1/{place}/gizmos"
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["x-kubernetes-validations"][1]["messageExpression"]
    server.post(DEFINITIONS, made)
    body = {"apiVersion": "test.dev/v1", "kind": "Gizmo", "metadata": {"name": "g"}}
    parts = [{"name": "one", "weight": 5}, {"name": "two"}]
    body["spec"] = {"size": 1, "config": {"a": "abc", "b": "x"}, "parts": parts}
    eventually(lambda: server.raw("POST", path, body)[0] == 201, seconds=60)

    stricter = server.get(f"{DEFINITIONS}/gizmos.test.dev")
    spec = stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["size"]["minimum"] = 10
    spec["properties"]["config"]["additionalProperties"]["maxLength"] = 2
    spec["properties"]["parts"]["items"]["properties"]["weight"]["maximum"] = 3
    spec["properties"]["parts"]["x-kubernetes-validations"] = [{"rule": "self.size() < 2", "message": "too many"}]
    spec["properties"]["extra"] = {"type": "string", "default": "new"}
    server.put(f"{DEFINITIONS}/gizmos.test.dev", stricter)
    eventually(lambda: server.get(f"{path}/g")["spec"].get("extra") == "new", seconds=60)

    assert server.patch(f"{path}/g", {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"] == {"a": "b"}
    assert server.patch(f"{path}/g/status", {"status": {"a": 1}})["status"] == {"a": 1}
    assert server.patch(f"{path}/g", {"spec": {"config": {"b": "y"}}})["spec"]["config"] == {"a": "abc", "b": "y"}
    for change, said in (
        ({"size": 2}, "spec.size in body should be greater than or equal to 10"),
        ({"config": {"a": "abcd"}}, "spec.config.a: Too long: may not be more than 2 bytes"),
        ({"parts": [parts[0], {"name": "two", "weight": 2}]}, 'spec.parts: Invalid value: "array": too many'),
        ({"parts": [{"name": "one", "weight": 4}]}, "spec.parts[0].weight in body should be less than or equal to 3"),
    ):
        code, told = refusal(server, "PATCH", f"{path}/g", {"spec": change}, MERGE)
        assert (code, said in told) == (422, True), told
    assert server.patch(f"{path}/g", {"spec": {"parts": parts[:1]}})["spec"]["parts"] == parts[:1]


def test_a_definition_names_its_versions(server: Api) -> None:
    body = definition("nameless")
    body["spec"]["versions"].append(body["spec"]["versions"][0] | {"storage": False})
    del body["spec"]["versions"][1]["name"]
    code, said = refusal(server, "POST", f"{DEFINITIONS}?dryRun=All", body)
    assert (code, "spec.versions[1].name: " in said) == (422, True), said


def test_a_service_keeps_its_node_port_until_its_type_has_none(server: Api, place: str) -> None:
    """Also when it is replaced by what a person wrote, who did not choose the port."""
    path = f"/api/v1/{place}/services"
    port = {"port": 80, "nodePort": 32111}
    spec = {"type": "NodePort"}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    server.call("POST", path, body | {"spec": spec | {"ports": [port]}})
    try:
        replaced = server.call("PUT", f"{path}/s", body | {"spec": spec | {"ports": [{"port": 80}]}})
        assert replaced["spec"]["ports"][0]["nodePort"] == 32111
        inside = server.call("PATCH", f"{path}/s", {"spec": {"type": "ClusterIP"}}, MERGE)
        assert "nodePort" not in inside["spec"]["ports"][0]
    finally:
        server.delete(f"{path}/s")


def test_a_node_port_is_one_services(server: Api, place: str) -> None:
    path = f"/api/v1/{place}/services"

    def service(name: str, *ports: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": list(ports)}}

    web, other = ({"name": name, "port": number} for name, number in (("web", 80), ("other", 81)))
    server.call("POST", path, service("s", web | {"nodePort": 32112}))
    try:
        taken = service("t", other, web | {"nodePort": 32112})
        said = "spec.ports[1].nodePort: Invalid value: 32112: provided port is already allocated"
        for query in ("", "?dryRun=All"):
            code, why = refusal(server, "POST", path + query, taken)
            assert (code, said in why) == (422, True), why
        server.call("POST", path, service("t", other))
        try:
            code, why = refusal(server, "PATCH", f"{path}/t", {"spec": {"ports": taken["spec"]["ports"]}}, MERGE)
            assert (code, said in why) == (422, True), why
            server.call("PATCH", f"{path}/s", {"metadata": {"labels": {"still": "its"}}}, MERGE)
            server.delete(f"{path}/s")
            server.call("PATCH", f"{path}/t", {"spec": {"ports": taken["spec"]["ports"]}}, MERGE)
        finally:
            server.delete(f"{path}/t")
    finally:
        server.raw("DELETE", f"{path}/s")


def test_nobody_deletes_in_all_namespaces_at_once(server: Api) -> None:
    assert server.raw("DELETE", "/api/v1/configmaps?dryRun=All")[0] == 405


def test_json_patches_that_are_none(server: Api, maps: str) -> None:
    server.call("POST", maps, config_map(a="1"))
    assert refusal(server, "PATCH", f"{maps}/c", [1], JSON_PATCH)[0] == 400
    absent = [{"op": "test", "path": "/data/z", "value": None}]
    assert server.call("PATCH", f"{maps}/c", absent, JSON_PATCH)["data"] == {"a": "1"}


def test_a_list_of_the_future_is_not_made_up(server: Api, maps: str) -> None:
    with pytest.raises(Refused, match="Too large resource version") as refused:
        server.get(f"{maps}?resourceVersion=99999999")
    assert refused.value.code == 504
    assert refused.value.status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_numbers_that_are_none_and_times_that_are_none(server: Api, maps: str, place: str) -> None:
    assert server.raw("POST", maps, b'{"metadata":{"name":"c"},"data":{"a":NaN}}')[0] == 400
    event = {"metadata": {"name": "e"}, "lastTimestamp": "x"}
    code, said = refusal(server, "POST", f"/api/v1/{place}/events", event)
    assert (code, 'parsing time "x"' in said) == (400, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "nope"}, 'spec.schedule: Invalid value: "nope": expected exactly 5 fields, found 1: [nope]'),
        ({"schedule": "TZ=UTC * * * * *"}, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
        ({"timeZone": "Foo/Bar"}, 'spec.timeZone: Invalid value: "Foo/Bar": unknown time zone Foo/Bar'),
        ({"concurrencyPolicy": "X"}, 'Unsupported value: "X": supported values: "Allow", "Forbid", "Replace"'),
        ({"startingDeadlineSeconds": -1}, "Invalid value: -1: must be greater than or equal to 0"),
        (
            {"jobTemplate": {"spec": {"template": template("c")}}},
            'spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ),
    ],
)
def test_a_cron_job_that_could_never_run_is_refused(server: Api, place: str, change: dict[str, Any], said: str) -> None:
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template("c", restartPolicy="Never")}}}
    body = {"metadata": {"name": "c"}, "spec": spec | change}
    code, told = refusal(server, "POST", f"/apis/batch/v1/{place}/cronjobs?dryRun=All", body)
    assert (code, told.endswith(said)) == (422, True), told


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"type": "X"}, 'supported values: "Recreate", "RollingUpdate"'),
        (
            {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}},
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}, "may not be 0 when `maxSurge` is 0"),
    ],
)
def test_a_strategy_that_is_none_is_refused(server: Api, place: str, strategy: dict[str, Any], said: str) -> None:
    body = deployment("c")
    body["spec"]["strategy"] = strategy
    code, told = refusal(server, "POST", f"/apis/apps/v1/{place}/deployments?dryRun=All", body)
    assert (code, said in told) == (422, True), told


def test_data_is_text(server: Api, maps: str) -> None:
    code, said = refusal(server, "POST", maps, config_map(a=1))
    assert code == 400
    assert said.endswith("json: cannot unmarshal number into Go struct field ConfigMap.data of type string")
    code, said = refusal(server, "POST", maps, config_map(**{"a b": "1"}))
    assert (code, 'data[a b]: Invalid value: "a b": a valid config key must consist of' in said) == (422, True)
    code, said = refusal(server, "POST", maps, config_map() | {"metadata": {"name": "c", "labels": {"a": 1}}})
    assert (code, "number into Go struct field ObjectMeta.metadata.labels of type string" in said) == (400, True), said


def test_what_has_another_shape_altogether_is_refused(server: Api, place: str) -> None:
    body = pod() | {"spec": []}
    assert refusal(server, "POST", f"/api/v1/{place}/pods", json.dumps(body).encode())[0] == 400
