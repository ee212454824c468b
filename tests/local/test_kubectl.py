"""kubectl, unchanged, built here or named by BALLAST_KUBECTL: everything that people do with it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from e2e.kubernetes.binaries import kubectl as kubectl_program
from tests.local.conftest import Api, Running, definition
from tests.waiting import eventually

KUBECTL = kubectl_program()
pytestmark = [pytest.mark.kubernetes, pytest.mark.skipif(not KUBECTL, reason="no kubectl is built, none is named")]

SERVER = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: none, command: [sh, -c, "echo ready; sleep 600"]}
"""


@pytest.fixture
def kubectl(running: Running, namespace: str, tmp_path: Path) -> Callable[..., str]:
    """kubectl WORDS: what it printed. `fails=True`: what it complained."""

    def call(*words: str, stdin: str | None = None, fails: bool = False, **more: str) -> str:
        environment = {"KUBECONFIG": str(running.kubeconfig), "HOME": str(tmp_path), "PATH": os.environ["PATH"], **more}
        command = [KUBECTL, "-n", namespace, *words]
        done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=30)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return call


@pytest.fixture
def gears(kubectl: Callable[..., str]) -> Callable[..., str]:
    """A definition that kubectl applied, and a document of its kind."""
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(definition("gears")))
    kubectl("wait", "--for=condition=Established", "crd/gears.test.dev", "--timeout=10s")
    document = {"apiVersion": "test.dev/v1", "kind": "Gear", "metadata": {"name": "g"}, "spec": {"size": 2}}
    return lambda **spec: yaml.safe_dump(document | {"spec": {"size": 2} | spec})


@pytest.mark.spec("OPR-01")
@pytest.mark.spec("OPR-03")
def test_custom_resources(kubectl: Callable[..., str], gears: Callable[..., str], api: Api, namespace: str) -> None:
    assert kubectl("apply", "-f", "-", stdin=gears()) == "gear.test.dev/g created\n"
    assert kubectl("apply", "-f", "-", stdin=gears()) == "gear.test.dev/g unchanged\n"
    assert kubectl("apply", "-f", "-", stdin=gears(size=3)) == "gear.test.dev/g configured\n"
    assert "size cannot shrink" in kubectl("apply", "-f", "-", stdin=gears(size=1), fails=True)
    assert 'unknown field "spec.colour"' in kubectl("apply", "-f", "-", stdin=gears(size=3, colour="red"), fails=True)
    assert kubectl("get", "ge").split()[:4] == ["NAME", "SIZE", "READY", "AGE"]
    assert "How large it is." in kubectl("explain", "gears.spec.size")
    assert kubectl("scale", "gear/g", "--replicas=2") == "gear.test.dev/g scaled\n"
    kubectl("patch", "gear", "g", "--type=json", "-p", '[{"op":"add","path":"/spec/mode","value":"Safe"}]')
    assert kubectl("get", "gear", "g", "-o", "jsonpath={.spec.mode}{.spec.replicas}") == "Safe2"
    kubectl("edit", "gear", "g", EDITOR="sed -i s/Safe/Fast/")
    assert kubectl("get", "gear", "g", "-o", "jsonpath={.spec.mode}") == "Fast"
    kubectl("label", "gear", "g", "a=b")
    assert kubectl("get", "gear", "-l", "a=b", "-o", "name") == "gear.test.dev/g\n"
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    api.patch(f"/apis/test.dev/v1/namespaces/{namespace}/gears/g/status", status)
    kubectl("wait", "--for=condition=Ready", "gear/g", "--timeout=10s")
    assert "Type:" in kubectl("describe", "gear", "g")
    assert "deleted" in kubectl("delete", "gear", "g")


def test_a_kind_that_is_not_there_is_told(kubectl: Callable[..., str], gears: Callable[..., str]) -> None:
    for wrong in (gears().replace("kind: Gear", "kind: Gaer"), gears().replace("test.dev/v1", "other.dev/v1")):
        kind, version = ("Gaer", "test.dev/v1") if "Gaer" in wrong else ("Gear", "other.dev/v1")
        complaint = kubectl("apply", "-f", "-", stdin=wrong, fails=True)
        assert f'no matches for kind "{kind}" in version "{version}"' in complaint


def test_server_side_apply_and_diff(kubectl: Callable[..., str], gears: Callable[..., str]) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=gears())
    assert kubectl("diff", "--server-side", "-f", "-", stdin=gears()) == ""
    complaint = kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", stdin=gears(size=4), fails=True)
    assert 'conflict with "kubectl": .spec.size' in complaint
    kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-", stdin=gears(size=4))
    assert kubectl("apply", "--dry-run=server", "-f", "-", stdin=gears(size=5)).endswith("(server dry run)\n")
    assert "f:size" in kubectl("get", "gear", "g", "-o", "yaml", "--show-managed-fields")


def test_workloads(kubectl: Callable[..., str]) -> None:
    kubectl("apply", "-f", "-", stdin=SERVER)
    assert "roll out complete" in kubectl("rollout", "status", "sts/web", "--timeout=20s")
    eventually(lambda: kubectl("logs", "web-0") == "ready\n")
    assert "Started container main" in kubectl("describe", "pod", "web-0")
    assert kubectl("get", "pods").splitlines()[1].split()[:3] == ["web-0", "1/1", "Running"]
    assert "501" in kubectl("exec", "web-0", "--", "true", fails=True) or "NotImplemented" in kubectl(
        "exec", "web-0", "--", "true", fails=True
    )
    kubectl("scale", "sts/web", "--replicas=2")
    kubectl("wait", "--for=jsonpath={.status.readyReplicas}=2", "sts/web", "--timeout=20s")
    kubectl("delete", "sts", "web", "--cascade=orphan")
    assert kubectl("get", "pods", "-o", "name").split() == ["pod/web-0", "pod/web-1"]
    kubectl("apply", "-f", "-", stdin=SERVER)
    kubectl("wait", "--for=delete", "pod/web-1", "--timeout=20s")
    note = ("-o", "jsonpath={.spec.template.metadata.annotations}")
    kubectl("patch", "sts", "web", "-p", '{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}')
    assert kubectl("get", "sts", "web", *note) == '{"a":"b"}'
    eventually(lambda: "\n2 " in kubectl("rollout", "history", "sts/web"))
    kubectl("rollout", "undo", "sts/web")
    assert kubectl("get", "sts", "web", *note) == ""
    kubectl("delete", "sts,pods", "--all")
    assert kubectl("get", "all") == ""


def test_created_from_the_command_line(kubectl: Callable[..., str], namespace: str) -> None:
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "--from-literal=p=q")
    kubectl("create", "serviceaccount", "robot")
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data.a}") == "b"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.p}") == "cQ=="
    kubectl("create", "namespace", f"{namespace}-x")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    kubectl("delete", "namespace", f"{namespace}-x")
    assert "reads no Job in protobuf" in kubectl("create", "job", "j", "--image=x", "--", "true", fails=True)


def test_reading(kubectl: Callable[..., str]) -> None:
    assert "statefulsets" in kubectl("api-resources")
    assert "apps/v1" in kubectl("api-versions")
    assert "KIND:       Pod" in kubectl("explain", "pod.spec.containers")
    for words in (("get", "nonsense"), ("explain", "nonsense"), ("delete", "nonsense", "x")):
        assert 'the server doesn\'t have a resource type "nonsense"' in kubectl(*words, fails=True)
    assert "couldn't find resource" in kubectl("explain", "pod", "--output=plaintext-openapiv2", fails=True)
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert "running at https://127.0.0.1" in kubectl("cluster-info")
    assert kubectl("get", "nodes").splitlines()[1].split()[:2] == ["local", "Ready"]
