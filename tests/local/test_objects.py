"""The life of objects over the wire: creating, changing, conflicts, finalizers, owners, namespaces."""

from typing import Any

import pytest
from tests.local.conftest import APPLY, DEFINITIONS, JSON_PATCH, MERGE, STRATEGIC, Api, Refused, definition
from tests.waiting import eventually


def widget(name: str = "w", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"size": 3} | spec}


def test_created_objects_have_what_the_server_sets(api: Api, widgets: str) -> None:
    made = api.post(widgets, widget())
    assert made["kind"] == "Widget"
    assert made["apiVersion"] == "test.dev/v1"
    assert made["spec"] == {"size": 3, "replicas": 1}
    assert made["metadata"]["generation"] == 1
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
    assert api.get(f"{widgets}/w") == made
    with pytest.raises(Refused) as refused:
        api.post(widgets, widget())
    assert (refused.value.code, refused.value.reason) == (409, "AlreadyExists")


def test_generate_name_and_bad_names(api: Api, widgets: str) -> None:
    made = api.post(widgets, {"metadata": {"generateName": "gen-"}, "spec": {"size": 1}})
    assert made["metadata"]["name"].startswith("gen-")
    assert len(made["metadata"]["name"]) == 9
    with pytest.raises(Refused, match="RFC 1123") as refused:
        api.post(widgets, widget("Bad_Name"))
    assert refused.value.code == 422


def test_generation_counts_changes_of_spec_only(api: Api, widgets: str) -> None:
    api.post(widgets, widget())
    labelled = api.patch(f"{widgets}/w", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    status = api.patch(f"{widgets}/w/status", {"status": {"x": 1}})
    assert status["metadata"]["generation"] == 1
    changed = api.patch(f"{widgets}/w", {"spec": {"size": 4}, "status": {"x": 99}})
    assert changed["metadata"]["generation"] == 2
    assert changed["status"] == {"x": 1}, "the main endpoint leaves the status alone"
    sneaky = api.patch(f"{widgets}/w/status", {"spec": {"size": 9}, "status": {"x": 2}})
    assert (sneaky["spec"]["size"], sneaky["status"]) == (4, {"x": 2}), "the status endpoint leaves the spec alone"


def test_a_write_that_changes_nothing_is_no_write(api: Api, widgets: str) -> None:
    made = api.post(widgets, widget())
    assert (
        api.patch(f"{widgets}/w", {"spec": {"size": 3}})["metadata"]["resourceVersion"]
        == (made["metadata"]["resourceVersion"])
    )
    assert api.put(f"{widgets}/w", made)["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_stale_writes_conflict(api: Api, widgets: str) -> None:
    old = api.post(widgets, widget())
    api.patch(f"{widgets}/w", {"spec": {"size": 4}})
    old["spec"]["size"] = 5
    for write in (
        lambda: api.put(f"{widgets}/w", old),
        lambda: api.patch(f"{widgets}/w", {"metadata": {"resourceVersion": "1"}}),
        lambda: api.delete(f"{widgets}/w", {"preconditions": {"uid": "other"}}),
        lambda: api.delete(f"{widgets}/w", {"preconditions": {"resourceVersion": "1"}}),
    ):
        with pytest.raises(Refused) as refused:
            write()
        assert (refused.value.code, refused.value.reason) == (409, "Conflict")


def test_finalizers_hold_an_object_until_they_are_gone(api: Api, widgets: str) -> None:
    api.post(widgets, {"metadata": {"name": "w", "finalizers": ["test.dev/hold"]}, "spec": {"size": 1}})
    held = api.delete(f"{widgets}/w")
    assert held["metadata"]["deletionTimestamp"]
    with pytest.raises(Refused, match="no new finalizers"):
        api.patch(f"{widgets}/w", {"metadata": {"finalizers": ["test.dev/hold", "test.dev/more"]}})
    assert api.exists(f"{widgets}/w")
    api.patch(f"{widgets}/w", {"metadata": {"finalizers": None}})
    assert not api.exists(f"{widgets}/w")


def test_dry_run_changes_nothing(api: Api, widgets: str) -> None:
    made = api.post(f"{widgets}?dryRun=All", widget())
    assert made["spec"]["replicas"] == 1
    assert not api.exists(f"{widgets}/w")
    api.post(widgets, widget())
    assert api.patch(f"{widgets}/w?dryRun=All", {"spec": {"size": 8}})["spec"]["size"] == 8
    api.delete(f"{widgets}/w?dryRun=All")
    assert api.get(f"{widgets}/w")["spec"]["size"] == 3


def configmap(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"k": "v"}}


def owner_of(obj: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"],
            "uid": obj["metadata"]["uid"], **more}  # fmt: skip


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_dependents_follow_their_owner_or_are_orphaned(api: Api, namespace: str, policy: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = api.post(path, configmap("owner"))
    api.post(path, configmap("child", ownerReferences=[owner_of(owner, blockOwnerDeletion=True)]))
    api.delete(f"{path}/owner", {"propagationPolicy": policy})
    eventually(lambda: not api.exists(f"{path}/owner"))
    if policy == "Orphan":
        assert "ownerReferences" not in api.get(f"{path}/child")["metadata"]
    else:
        eventually(lambda: not api.exists(f"{path}/child"))


def test_an_owner_that_never_was_takes_its_dependents_along(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    ghost = {"apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": "no-such-uid"}
    api.post(path, configmap("child", ownerReferences=[ghost]))
    eventually(lambda: not api.exists(f"{path}/child"))


def test_deleting_a_namespace_empties_it(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(path, configmap("held", finalizers=["test.dev/hold"]))
    api.post(path, configmap("free"))
    api.delete(f"/api/v1/namespaces/{namespace}")
    eventually(lambda: not api.exists(f"{path}/free"))
    with pytest.raises(Refused, match="being terminated"):
        api.post(path, configmap("late"))
    assert api.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"] == "Terminating"
    api.patch(f"{path}/held", {"metadata": {"finalizers": None}})
    eventually(lambda: not api.exists(f"/api/v1/namespaces/{namespace}"))


def test_delete_collection_by_label(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        api.post(path, configmap(name, labels={"l": label}))
    assert len(api.delete(f"{path}?labelSelector=l%3Dx")["items"]) == 2
    assert [item["metadata"]["name"] for item in api.get(path)["items"]] == ["c"]


def test_patches_of_every_kind(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(path, configmap("c"))
    assert api.patch(f"{path}/c", {"data": {"a": "1", "k": None}}, MERGE)["data"] == {"a": "1"}
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/b~1c", "value": "2"},
    ]
    assert api.patch(f"{path}/c", operations, JSON_PATCH)["metadata"]["annotations"] == {"b/c": "2"}
    with pytest.raises(Refused, match="testing path"):
        api.patch(f"{path}/c", [{"op": "test", "path": "/data/a", "value": "9"}], JSON_PATCH)
    pods = f"/api/v1/namespaces/{namespace}/services"
    api.post(pods, {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}})
    patched = api.patch(f"{pods}/s", {"spec": {"ports": [{"port": 2, "targetPort": 20}]}}, STRATEGIC)
    assert [(port["name"], port["targetPort"]) for port in patched["spec"]["ports"]] == [("a", 1), ("b", 20)]


def test_a_strategic_patch_of_a_custom_resource_is_refused(api: Api, widgets: str) -> None:
    api.post(widgets, widget())
    with pytest.raises(Refused) as refused:
        api.patch(f"{widgets}/w", {"spec": {"size": 4}}, STRATEGIC)
    assert refused.value.code == 415


def apply(api: Api, path: str, manager: str, spec: dict[str, Any], force: bool = False) -> Any:
    body = {"apiVersion": "test.dev/v1", "kind": "Widget", "spec": spec}
    return api.patch(f"{path}?fieldManager={manager}&force={str(force).lower()}", body, APPLY)


def test_server_side_apply_owns_shares_and_gives_up_fields(api: Api, widgets: str) -> None:
    path = f"{widgets}/w"
    made = apply(api, path, "one", {"size": 3, "config": {"a": "1", "b": "2"}, "parts": [{"name": "x", "weight": 2}]})
    assert made["metadata"]["managedFields"][0]["operation"] == "Apply"
    again = apply(api, path, "one", {"size": 3, "config": {"a": "1", "b": "2"}, "parts": [{"name": "x", "weight": 2}]})
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"], "applying again is no write"
    both = apply(api, path, "two", {"size": 3, "parts": [{"name": "y"}]})
    assert [part["name"] for part in both["spec"]["parts"]] == ["x", "y"]
    less = apply(api, path, "one", {"size": 3, "config": {"a": "1"}})
    assert less["spec"]["config"] == {"a": "1"}
    assert [part["name"] for part in less["spec"]["parts"]] == ["y"], "what its manager no longer names goes"


def test_server_side_apply_conflicts_until_forced(api: Api, widgets: str) -> None:
    path = f"{widgets}/w"
    apply(api, path, "one", {"size": 3})
    with pytest.raises(Refused, match=r'conflict with "one": \.spec\.size') as refused:
        apply(api, path, "two", {"size": 4})
    assert refused.value.code == 409
    assert refused.value.status["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    forced = apply(api, path, "two", {"size": 4}, force=True)
    assert forced["spec"]["size"] == 4
    assert apply(api, path, "one", {"replicas": 2})["spec"] == {"size": 4, "replicas": 2}


def test_an_update_takes_the_fields_it_changes(api: Api, widgets: str) -> None:
    path = f"{widgets}/w"
    apply(api, path, "one", {"size": 3})
    api.patch(path, {"spec": {"size": 5}})
    with pytest.raises(Refused, match=r'conflict with "tests" using test\.dev/v1'):
        apply(api, path, "one", {"size": 6})


def test_scale(api: Api, widgets: str) -> None:
    api.post(widgets, widget())
    assert api.get(f"{widgets}/w/scale")["spec"] == {"replicas": 1}
    api.patch(f"{widgets}/w/scale", {"spec": {"replicas": 4}})
    scaled = api.get(f"{widgets}/w")
    assert (scaled["spec"]["replicas"], scaled["metadata"]["generation"]) == (4, 2)
    with pytest.raises(Refused, match="9 replicas are too many"):
        api.patch(f"{widgets}/w/scale", {"spec": {"replicas": 9}})


def test_deleting_a_definition_deletes_its_objects(api: Api, namespace: str) -> None:
    api.post(DEFINITIONS, definition("gadgets"))
    path = f"/apis/test.dev/v1/namespaces/{namespace}/gadgets"
    api.post(path, widget("g") | {"kind": "Gadget"})
    api.delete(f"{DEFINITIONS}/gadgets.test.dev")
    eventually(lambda: not api.exists(f"{DEFINITIONS}/gadgets.test.dev"))
    with pytest.raises(Refused, match="could not find the requested resource"):
        api.get(path)
    api.post(DEFINITIONS, definition("gadgets"))
    assert api.get(path)["items"] == []


def test_events_are_one_set_in_both_groups(api: Api, namespace: str) -> None:
    newer = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    regarding = {"kind": "Pod", "name": "p", "namespace": namespace}
    body = {"metadata": {"name": "e"}, "note": "hello", "regarding": regarding, "type": "Normal", "reason": "R"}
    api.post(newer, body)
    core = api.get(f"/api/v1/namespaces/{namespace}/events/e")
    assert (core["message"], core["involvedObject"]) == ("hello", regarding)
    assert api.get(f"{newer}/e")["note"] == "hello"
    assert len(api.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3Dp")["items"]) == 1


def test_what_is_not_there_is_refused_with_a_sentence(api: Api, pods: str) -> None:
    spec = {"containers": [{"name": "c", "image": "none", "command": ["sleep", "60"]}]}
    api.post(pods, {"metadata": {"name": "p"}, "spec": spec})
    for path in (f"{pods}/p/exec", f"{pods}/p/portforward", "/openapi/v2", "/metrics"):
        with pytest.raises(Refused, match="embedded Kubernetes API does not have") as refused:
            api.get(path)
        assert refused.value.code == 501
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 0})
    status, _ = api.raw("GET", pods, Authorization="Bearer wrong")
    assert status == 401
