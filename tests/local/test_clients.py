"""Clients written by others, unchanged: the Kubernetes client for Python, Kopf, and our own commands."""

import asyncio
import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kopf
import kubernetes
import pytest
import yaml
from tests.local.conftest import DEFINITIONS, Api, Running, definition
from tests.waiting import eventually

from ballast_cli import CommandError
from ballast_cli.__main__ import load
from ballast_cli.kube_api import Refused as CommandRefused

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def client(running: Running) -> Iterator[kubernetes.client.ApiClient]:
    made = kubernetes.config.new_client_from_config(str(running.kubeconfig))
    yield made
    made.close()


def test_the_python_client(client: kubernetes.client.ApiClient, namespace: str) -> None:
    core = kubernetes.client.CoreV1Api(client)
    body = kubernetes.client.V1ConfigMap(metadata=kubernetes.client.V1ObjectMeta(name="c"), data={"a": "1"})
    core.create_namespaced_config_map(namespace, body)
    core.patch_namespaced_config_map("c", namespace, {"data": {"b": "2"}})
    assert core.read_namespaced_config_map("c", namespace).data == {"a": "1", "b": "2"}
    watch = kubernetes.watch.Watch()
    events = watch.stream(core.list_namespaced_config_map, namespace, timeout_seconds=1)
    assert [(event["type"], event["object"].metadata.name) for event in events] == [("ADDED", "c")]
    with pytest.raises(kubernetes.client.ApiException) as refused:
        core.read_namespaced_config_map("none", namespace)
    assert refused.value.status == 404
    core.delete_namespaced_config_map("c", namespace)
    assert core.list_namespaced_config_map(namespace).items == []
    (node,) = core.list_node().items
    assert node.metadata is not None
    assert node.metadata.name == "local"


def test_the_python_clients_leases(client: kubernetes.client.ApiClient, namespace: str) -> None:
    api = kubernetes.client.CoordinationV1Api(client)
    meta = kubernetes.client.V1ObjectMeta(name="l")
    spec = kubernetes.client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=10)
    lease = api.create_namespaced_lease(namespace, kubernetes.client.V1Lease(metadata=meta, spec=spec))
    assert lease.spec is not None
    lease.spec.holder_identity = "you"
    api.replace_namespaced_lease("l", namespace, lease)
    with pytest.raises(kubernetes.client.ApiException) as refused:
        api.replace_namespaced_lease("l", namespace, lease)
    assert refused.value.status == 409


@pytest.fixture
def operator(running: Running, api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A small Kopf operator on a thread: handlers, a finalizer, a timer, status and events."""
    if not api.exists(f"{DEFINITIONS}/robots.test.dev"):
        api.post(DEFINITIONS, definition("robots"))
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig))
    registry = kopf.OperatorRegistry()
    deleted: list[str] = []

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = True
        settings.networking.error_backoffs = [0.1]

    @kopf.on.login(registry=registry)
    def login(**given: Any) -> Any:
        return kopf.login_with_kubeconfig(**given)

    @kopf.on.create("robots.test.dev", registry=registry)
    @kopf.on.update("robots.test.dev", registry=registry, field="spec")
    def changed(*, spec: kopf.Spec, patch: kopf.Patch, body: kopf.Body, **_: Any) -> None:
        patch.status["seen"] = spec["size"]
        kopf.event(body, type="Normal", reason="Seen", message=f"size {spec['size']}")

    @kopf.on.delete("robots.test.dev", registry=registry)
    def removed(name: str, **_: Any) -> None:
        deleted.append(name)

    @kopf.timer("robots.test.dev", registry=registry, interval=0.2)
    def tick(*, patch: kopf.Patch, status: kopf.Status, **_: Any) -> None:
        patch.status["ticks"] = status.get("ticks", 0) + 1

    ready, stop = threading.Event(), threading.Event()

    def run() -> None:
        loop = asyncio.new_event_loop()
        kopf.run(registry=registry, loop=loop, clusterwide=True, ready_flag=ready, stop_flag=stop, standalone=True)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(20)
    yield deleted
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


def test_kopf(operator: list[str], api: Api, namespace: str) -> None:
    robots = f"/apis/test.dev/v1/namespaces/{namespace}/robots"
    api.post(robots, {"metadata": {"name": "r"}, "spec": {"size": 1}})
    eventually(lambda: api.get(f"{robots}/r").get("status", {}).get("seen") == 1)
    assert "kopf.zalando.org/KopfFinalizerMarker" in api.get(f"{robots}/r")["metadata"]["finalizers"]
    api.patch(f"{robots}/r", {"spec": {"size": 2}})
    eventually(lambda: api.get(f"{robots}/r")["status"].get("seen") == 2)
    eventually(lambda: api.get(f"{robots}/r")["status"].get("ticks", 0) >= 2)
    events = f"/api/v1/namespaces/{namespace}/events"
    eventually(lambda: "size 2" in {event["message"] for event in api.get(events)["items"]})
    api.delete(f"{robots}/r")
    eventually(lambda: not api.exists(f"{robots}/r"))
    assert operator == ["r"]


class Command:
    """`./ballast WORDS` against the running API, in this process: what it printed."""

    def __init__(self, options: list[str]) -> None:
        self._options = options
        self.code: int | None = None

    def __call__(self, *words: str) -> str:
        command = load(words[0])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            self.code = command.module.run(command.parse([*words[1:], *self._options]))
        return printed.getvalue()


@pytest.fixture
def ballast(running: Running, namespace: str) -> Command:

    return Command(["--kubeconfig", str(running.kubeconfig), "-n", namespace])


def test_all_of_a_type_is_said_and_never_meant_by_leaving_a_name_out(
    ballast: Command, tmp_path: Path, namespace: str
) -> None:
    body = [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}} for name in ("one", "two")]
    (tmp_path / "two.yaml").write_text(yaml.safe_dump_all(body))
    ballast("apply", "-f", str(tmp_path))
    for words in (("delete", "secrets"), ("wait", "secrets", "--for", "delete")):
        with pytest.raises(CommandError, match=r"say which: .*TYPE --all"):
            ballast(*words)
        with pytest.raises(CommandError, match="--all is all of a TYPE"):
            ballast(*words, "one", "--all")
    with pytest.raises(CommandError, match="timed out waiting for its deletion on secret/one"):
        ballast("wait", "secrets", "--all", "--for", "delete", "--timeout", "0.1s")
    told = [f'secret "{name}" deleted from {namespace} namespace' for name in ("one", "two")]
    assert ballast("delete", "secrets", "--all").splitlines() == told
    assert ballast("wait", "secrets", "--all", "--for", "delete") == ""


def test_our_own_commands(ballast: Command, tmp_path: Path, namespace: str) -> None:
    path = tmp_path / "all.yaml"
    spec = {"size": 1}
    robot = {"apiVersion": "test.dev/v1", "kind": "Gizmo", "metadata": {"name": "g"}, "spec": spec}
    path.write_text(yaml.safe_dump_all([definition("gizmos"), robot]))
    assert ballast("apply", "-f", str(path)).splitlines()[1:] == ["gizmo.test.dev/g created"]
    assert "gizmo.test.dev/g unchanged" in ballast("apply", "-f", str(path))
    spec["size"] = 3
    path.write_text(yaml.safe_dump(robot))
    dry = ("apply", "-f", str(path), "--dry-run", "server")
    assert ballast(*dry) == "gizmo.test.dev/g configured (server dry run)\n"
    assert ballast("apply", "-f", str(path)) == "gizmo.test.dev/g configured\n"
    assert ballast(*dry) == "gizmo.test.dev/g unchanged (server dry run)\n"
    head, row = ballast("get", "gizmos").splitlines()
    assert head.split() == ["NAME", "SIZE", "READY", "AGE"]
    assert row.split()[:3] == ["g", "3", "<none>"]
    assert yaml.safe_load(ballast("get", "gi/g", "-o", "yaml"))["spec"]["size"] == 3
    assert "Events:  <none>" in ballast("describe", "gizmo", "g")
    with pytest.raises(CommandError, match="timed out waiting for the condition Ready") as waited:
        ballast("wait", "gizmo/g", "--for", "condition=Ready", "--timeout", "0.3s")
    assert waited.value.exit_code == 1
    assert ballast("get", "gizmo", "g", "-o", "name") == "gizmo.test.dev/g\n"
    spec["size"] = 1
    path.write_text(yaml.safe_dump(robot))
    assert "size cannot shrink" in ballast("apply", "-f", str(path))
    assert ballast.code == 1
    assert ballast("delete", "-f", str(path)) == f'gizmo.test.dev "g" deleted from {namespace} namespace\n'
    assert 'gizmos.test.dev "g" not found' in ballast("get", "gizmo", "g")
    assert ballast.code == 1
    assert ballast("wait", "gizmo/g", "--for", "delete") == ""
    with pytest.raises(CommandError, match="resource type"):
        ballast("get", "nonsense")
    assert "default" in ballast("get", "namespaces")
    assert namespace in ballast("get", "sa", "-A")


def test_a_plan_is_found_and_approved_without_kubectl(ballast: Command, tmp_path: Path) -> None:
    """What docs/operations.md types: wait for a value, read one, write one."""
    path = tmp_path / "all.yaml"
    gadget = {"apiVersion": "test.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"size": 1}}
    path.write_text(yaml.safe_dump_all([definition("gadgets"), gadget]))
    ballast("apply", "-f", str(path))
    with pytest.raises(CommandError, match=r"timed out waiting for \{\.spec\.size\}=2 on gadget\.test\.dev/g"):
        ballast("wait", "gadget/g", "--for=jsonpath={.spec.size}=2", "--timeout=0.1s")
    size = ("patch", "gadget", "g", "--type", "merge", "-p")
    assert ballast(*size, "spec: {size: 2}", "--dry-run=server") == "gadget.test.dev/g patched (server dry run)\n"
    assert ballast(*size, '{"spec": {"size": 2}}') == "gadget.test.dev/g patched\n"
    assert ballast(*size, '{"spec": {"size": 2}}') == "gadget.test.dev/g patched (no change)\n"
    assert ballast("wait", "gadget/g", "--for=jsonpath={.spec.size}=2") == "gadget.test.dev/g condition met\n"
    by_json = '[{"op": "replace", "path": "/spec/size", "value": 3}]'
    assert ballast("patch", "gadget/g", "--type=json", "-p", by_json) == "gadget.test.dev/g patched\n"
    assert ballast("get", "gadget/g", "-o", "jsonpath={.spec.size}") == "3"
    assert ballast("get", "gadget", "-o", "jsonpath={.items[*].metadata.name}") == "g"
    columns = "custom-columns=NAME:.metadata.name,SIZE:.spec.size,NONE:{.status.none}"
    assert ballast("get", "gadgets", "-o", columns) == "NAME   SIZE   NONE\ng      3      <none>\n"
    for patch, says in (("[]", "is an object"), ("", "is an object"), ("a: b: c", "neither JSON nor YAML")):
        with pytest.raises(CommandError, match=says):
            ballast(*size, patch)
    with pytest.raises(CommandError, match="say which"):
        ballast("patch", "gadgets", "--type=merge", "-p", "{}")
    with pytest.raises(CommandRefused, match="size cannot shrink"):
        ballast(*size, "spec: {size: 1}")


def configmap(tmp_path: Path, name: str, **metadata: Any) -> str:
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}))
    return str(path)


def test_what_is_asked_for_is_not_answered_with_something_else(
    ballast: Command, tmp_path: Path, namespace: str
) -> None:
    """Options that do not go together are refused, as kubectl refuses them, and nothing is done by halves."""
    path = configmap(tmp_path, "c")
    ballast("apply", "-f", path)
    elsewhere = configmap(tmp_path, "elsewhere", namespace="default")
    assert 'provided object "default" does not match' in ballast("apply", "-f", elsewhere)
    assert ballast.code == 2
    for words, says in (
        (["delete", "-f", elsewhere], "does not match the namespace"),
        (["delete", "-f", path, "cm/c"], "does not go with TYPE NAME"),
        (["delete", "-f", path, "-l", "a=b"], "does not go with TYPE NAME"),
        (["delete", "cm", "c", "-l", "a=b"], "name cannot be provided when a selector is specified"),
        (["get", "cm/c", "-l", "a=b"], "name cannot be provided when a selector is specified"),
        (["get", "cm", "c", "-A"], "by name across all namespaces"),
        (["get", "cm,secrets", "-w"], "only specify a single resource type"),
        (["get", "cm", "c", "d", "-w"], "only specify a single resource type"),
        (["get", "cm", "c", "-w", "-o", "yaml"], "does not go with -o yaml"),
    ):
        with pytest.raises(CommandError, match=says):
            ballast(*words)
    with pytest.raises(SystemExit, match="2"):
        ballast("delete", "cm", "c", "--timeout", "soon")
    assert ballast("get", "cm/c", "-o", "name") == "configmap/c\n"
    ballast("delete", "cm", "c", "--timeout", "0")
    assert 'configmaps "c" not found' in ballast("get", "cm", "c")
    assert ballast.code == 1
