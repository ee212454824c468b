"""Reading over the wire: lists, pages, selectors, watches, tables, discovery, documents."""

import contextlib
import gc
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import Api, Refused, Running
from tests.waiting import eventually

from ballast_local.watch import Watch

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


def fill(api: Api, path: str, count: int, **labels: str) -> None:
    for index in range(count):
        api.post(path, {"metadata": {"name": f"w{index}", "labels": {"n": str(index)} | labels}, "spec": {"size": 1}})


def names(answer: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


def test_selectors(api: Api, widgets: str) -> None:
    fill(api, widgets, 4)
    for query, wanted in (
        ("labelSelector=n%3D1", ["w1"]),
        ("labelSelector=n+in+(1,3)", ["w1", "w3"]),
        ("labelSelector=n+notin+(1,3)", ["w0", "w2"]),
        ("labelSelector=n!%3D0,n!%3D1", ["w2", "w3"]),
        ("labelSelector=!n", []),
        ("labelSelector=n>1", ["w2", "w3"]),
        ("fieldSelector=metadata.name%3Dw2", ["w2"]),
        ("fieldSelector=metadata.name!%3Dw2", ["w0", "w1", "w3"]),
    ):
        assert names(api.get(f"{widgets}?{query}")) == wanted, query
    with pytest.raises(Refused, match="field label not supported"):
        api.get(f"{widgets}?fieldSelector=spec.size%3D1")


def test_pages_show_one_moment(api: Api, widgets: str) -> None:
    fill(api, widgets, 5)
    first = api.get(f"{widgets}?limit=2")
    assert names(first) == ["w0", "w1"]
    assert first["metadata"]["remainingItemCount"] == 3
    api.delete(f"{widgets}/w2")
    api.patch(f"{widgets}/w3", {"spec": {"size": 7}})
    api.post(widgets, {"metadata": {"name": "w1b"}, "spec": {"size": 1}})
    second = api.get(f"{widgets}?limit=9&continue={first['metadata']['continue']}")
    assert names(second) == ["w2", "w3", "w4"]
    assert second["items"][1]["spec"]["size"] == 1
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names(api.get(widgets)) == ["w0", "w1", "w1b", "w3", "w4"]


@pytest.mark.parametrize("token", ["NQ==", "e30=", "WzEsMl0=", "x"])
def test_a_page_that_nobody_offered_is_refused(api: Api, widgets: str, token: str) -> None:
    with pytest.raises(Refused, match="continue key is not valid") as refused:
        api.get(f"{widgets}?limit=1&continue={token}")
    assert refused.value.code == 400


def test_a_watch_shows_every_change_after_a_revision(api: Api, widgets: str) -> None:
    fill(api, widgets, 1)
    version = api.get(widgets)["metadata"]["resourceVersion"]
    api.patch(f"{widgets}/w0", {"metadata": {"labels": {"x": "1"}}})
    api.post(widgets, {"metadata": {"name": "new"}, "spec": {"size": 1}})
    api.delete(f"{widgets}/w0")
    events = api.watch(f"{widgets}?watch=1&resourceVersion={version}", 3)
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("MODIFIED", "w0"), ("ADDED", "new"), ("DELETED", "w0"),
    ]  # fmt: skip
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


def test_a_selecting_watch_sees_objects_enter_and_leave(api: Api, widgets: str) -> None:
    version = api.get(widgets)["metadata"]["resourceVersion"]
    fill(api, widgets, 1)
    for value in ("in", "out"):
        api.patch(f"{widgets}/w0", {"metadata": {"labels": {"s": value}}})
    events = api.watch(f"{widgets}?watch=1&resourceVersion={version}&labelSelector=s%3Din", 2)
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]


def test_a_watch_without_revision_begins_with_what_there_is(api: Api, widgets: str) -> None:
    fill(api, widgets, 2)
    assert [event["type"] for event in api.watch(f"{widgets}?watch=1", 2)] == ["ADDED", "ADDED"]
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    *added, bookmark = api.watch(f"{widgets}?{query}", 3)
    assert [event["type"] for event in added] == ["ADDED", "ADDED"]
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_ends_on_time_with_a_bookmark(api: Api, widgets: str) -> None:
    fill(api, widgets, 1)
    version = api.get(widgets)["metadata"]["resourceVersion"]
    events = api.watch(f"{widgets}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion={version}", 9)
    assert [event["type"] for event in events] == ["BOOKMARK"]
    assert int(events[0]["object"]["metadata"]["resourceVersion"]) >= int(version)


def test_a_history_that_is_too_short_says_410(tmp_path: Path) -> None:
    running = Running(tmp_path, history_limit=10)
    try:
        api = running.api()
        path = "/api/v1/namespaces/default/configmaps"
        version = api.get(path)["metadata"]["resourceVersion"]
        api.post(path, {"metadata": {"name": "c"}})
        page = api.get("/api/v1/namespaces?limit=1")["metadata"]["continue"]
        for index in range(40):
            api.patch(f"{path}/c", {"data": {"i": str(index)}})
        (event,) = api.watch(f"{path}?watch=1&resourceVersion={version}", 1)
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert api.get(f"/api/v1/namespaces?limit=1&continue={page}")["items"], "other resources keep their history"
    finally:
        running.close()


def test_who_goes_away_is_not_waited_for(
    running: Running, api: Api, pods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a watch in which nothing happens, nor by one who follows a log in which nothing is written."""
    monkeypatch.setattr("ballast_local.watch.BOOKMARK_SECONDS", 0.1)
    container = {"name": "c", "image": "none", "command": ["sh", "-c", "echo up; exec sleep 600"]}
    uid = api.post(pods, {"metadata": {"name": "p"}, "spec": {"containers": [container]}})["metadata"]["uid"]
    eventually(lambda: api.raw("GET", f"{pods}/p/log")[1] == b"up\n")
    log = running.data / "pods" / uid / "logs" / "c.log"

    async def watches() -> int:
        return sum(1 for each in gc.get_objects() if isinstance(each, Watch))

    before = running.run(watches())
    for path in (f"{pods}?watch=1", f"{pods}/p/log?follow=true"):
        connection = api.connect()
        connection.request("GET", path, headers={"Authorization": f"Bearer {api.token}"})
        assert connection.getresponse().readline()
        connection.close()
    eventually(lambda: log not in opened() and running.run(watches()) <= before)
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 0})


def test_who_goes_away_before_the_answer_begins_leaves_no_trace(
    running: Running, api: Api, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.post(
        pods,
        {
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "none", "command": ["sleep", "600"]}]},
        },
    )
    eventually(lambda: api.raw("GET", f"{pods}/p/log")[0] == 200)
    server = running.cluster._server
    assert server is not None
    served = server.requests_served
    half_sent = f"/api/v1/namespaces/{namespace}/configmaps"
    for path in (pods, f"{pods}?watch=1", f"{pods}/p/log?follow=true", "/openapi/v3", half_sent):
        connection = api.connect()
        connection.connect()
        # The request and the end of its connection come in one turn of the loop.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        held, go = threading.Event(), threading.Event()
        running._loop.call_soon_threadsafe(hold, held, go)
        assert held.wait(10)
        method, body = ("GET", "") if path != half_sent else ("POST", "{")
        headers = {"Authorization": f"Bearer {api.token}", "Content-Length": str(2 * len(body))}
        connection.request(method, path, body, headers)
        connection.close()
        go.set()
    eventually(lambda: server.requests_served >= served + 5)
    assert api.exists(pods)
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 0})
    assert not caplog.records


def hold(held: threading.Event, go: threading.Event) -> None:
    held.set()
    go.wait(10)


def opened() -> set[Path]:
    """The files that this process has open, but for what its children write to."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(link.readlink())
    return found


def test_tables(api: Api, widgets: str) -> None:
    fill(api, widgets, 1)
    api.patch(f"{widgets}/w0/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    answer = api.get(widgets, Accept=TABLE)
    assert answer["kind"] == "Table"
    assert [column["name"] for column in answer["columnDefinitions"]] == ["Name", "Size", "Ready", "Age"]
    cells = answer["rows"][0]["cells"]
    assert cells[:3] == ["w0", 1, "True"]
    assert cells[3].endswith("s")
    assert answer["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_partial_metadata(api: Api, widgets: str) -> None:
    fill(api, widgets, 1)
    answer = api.get(widgets, Accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert answer["kind"] == "PartialObjectMetadataList"
    assert "spec" not in answer["items"][0]


def test_discovery_plain_and_aggregated_agree(api: Api, widgets: str) -> None:
    plain = {row["name"]: row for row in api.get("/apis/test.dev/v1")["resources"]}
    assert plain["widgets"]["shortNames"] == ["wi"]
    assert {"widgets/status", "widgets/scale"} <= plain.keys()
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = {group["metadata"]["name"]: group for group in api.get("/apis", Accept=accept)["items"]}
    (version,) = groups["test.dev"]["versions"]
    row = next(one for one in version["resources"] if one["resource"] == "widgets")
    assert row["scope"] == "Namespaced"
    assert [one["subresource"] for one in row["subresources"]] == ["status", "scale"]
    assert {group["name"] for group in api.get("/apis")["groups"]} == groups.keys()


def test_what_only_begins_like_a_path_is_none(api: Api) -> None:
    for path in ("/apifoo", "/apisfoo", "/openapi/v3foo", "/openapi/v2foo"):
        assert api.raw("GET", path)[0] == 404, path
    for path in ("/api", "/api/", "/apis", "/apis/", "/openapi/v3", "/openapi/v3/"):
        assert api.raw("GET", path)[0] == 200, path


def test_openapi_describes_custom_and_built_in_kinds(api: Api, widgets: str) -> None:
    index = api.get("/openapi/v3")["paths"]
    custom = api.get(index["apis/test.dev/v1"]["serverRelativeURL"])
    schema = custom["components"]["schemas"]["dev.test.v1.Widget"]
    assert schema["properties"]["spec"]["properties"]["size"]["description"] == "How large it is."
    item = custom["paths"]["/apis/test.dev/v1/namespaces/{namespace}/widgets/{name}"]
    assert "fieldValidation" in [parameter["name"] for parameter in item["patch"]["parameters"]]
    core = api.get(index["api/v1"]["serverRelativeURL"])["components"]["schemas"]
    assert core["V1PodSpec"]["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"
    references = {one["$ref"].rpartition("/")[2] for one in _references(core)}
    assert references <= core.keys(), "no reference leads nowhere"


def _references(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node
        for child in node.values():
            yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


def test_review_and_health(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert api.post(path, {"spec": {}})["status"]["allowed"] is True
    for check in ("/healthz", "/readyz", "/livez"):
        assert api.raw("GET", check, Authorization="")[0] == 200
    assert api.get("/version")["gitVersion"].startswith("v1.")
