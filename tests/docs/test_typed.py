"""The pages typed from top to bottom with the real kubectl, beside one real `./ballast up`; `commands.py` says which.

What a page takes for granted is made first, so that each can be typed alone; the last one removes everything.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from kafka import KafkaProducer
from tests.docs.commands import block, to_type
from tests.docs.up import KUBECTL, Up

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not KUBECTL, reason="no kubectl is built, none is named"),
]
HERE = "tests/docs/test_typed.py::"
RECORDS, RECORD_BYTES = 20, 500_000
# Kinds of the Prometheus operator, as far as kubectl has to know them.
PROMETHEUS_OPERATOR = ("PodMonitor", "PrometheusRule", "ServiceMonitor")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up")) as found:
        yield found


@pytest.fixture
def orders(up: Up) -> None:
    """The topic of the README."""
    up.shell("kubectl apply -f manifests/examples/topic.yaml; kubectl wait --for=condition=Ready kafkatopic/orders")


@pytest.fixture
def level(up: Up, orders: None) -> None:
    """A Reassignment that has ended."""
    up.shell("kubectl apply -f manifests/examples/level.yaml; kubectl wait --for=condition=Ready bkr/level")


def test_readme(up: Up) -> None:
    """Also that what is exported is what `./ballast up` has printed."""
    told: dict[str, str] = {}
    exported = ""
    for command in to_type(f"{HERE}test_readme"):
        if command == "./ballast up":
            assert up.process.poll() is None
        elif command.startswith("export "):
            exported = f"{command}; "
            assert up.shell(f'{command}; echo "KUBECONFIG=$KUBECONFIG"').strip() in up.printed
        else:
            told[command] = up.shell(exported + command)
    assert "orders" in told["./ballast get ballast"]
    assert told["./ballast status"].count("disk-") == 9


def test_migrate_to_resources(up: Up, orders: None) -> None:
    """The cluster that exists is that of `up`, by its address."""
    addresses = up.get("bkc/demo")["status"]["bootstrapServers"]
    up.shell("kubectl delete kafkatopic orders")  # it stays in Kafka, as the page's topic that exists
    example = up.folder / "manifests" / "examples" / "external-cluster.yaml"
    text = example.read_text()
    example.write_text(text.replace("kafka-0.example:9092,kafka-1.example:9092", addresses))
    for command in to_type(f"{HERE}test_migrate_to_resources"):
        up.shell(command)
    topic = yaml.safe_load(block("docs/migrate.md", "apiVersion: ballast.dev"))
    topic["spec"]["partitions"] = 6  # those of the README's topic
    (up.folder / "adopted.yaml").write_text(yaml.safe_dump(topic))
    up.shell("kubectl apply -f adopted.yaml; kubectl wait --for=condition=Ready kafkatopic/orders")
    up.shell("""kubectl patch kafkatopic orders --type merge -p '{"spec": {"deletionPolicy": "Delete"}}'""")
    finalizer = "jsonpath='{.metadata.finalizers[0]}'=ballast.dev/finalizer"
    up.shell(f"kubectl wait --for={finalizer} kafkatopic/orders")  # before that nobody deletes anything in Kafka
    up.shell("kubectl delete kafkatopic orders; kubectl delete kafkacluster existing")


def test_runbooks(up: Up, level: None) -> None:
    """Beside the operator of manifests/base."""
    up.shell("kubectl apply -k manifests/base; kubectl rollout status deployment/ballast-operator")
    told = {command: up.shell(command) for command in to_type(f"{HERE}test_runbooks")}
    assert "level" in told["kubectl get reassignments"]
    assert {"demo-0", "demo-1", "demo-2"} <= set(told["kubectl get pods -l ballast.dev/cluster"].split())
    assert "Everything is where it should be" in told["kubectl describe reassignment level"]
    assert told["kubectl logs -l app.kubernetes.io/name=ballast-operator"]
    assert "ballast-operator" in told["kubectl get lease ballast-operator"]


def test_reasons(up: Up, level: None) -> None:
    for command in to_type(f"{HERE}test_reasons"):
        up.shell(command)
    up.shell("kubectl taint nodes local node.kubernetes.io/out-of-service-")


def test_rebalance(up: Up) -> None:
    for command in to_type(f"{HERE}test_rebalance"):
        up.shell(command)
    assert up.get("serviceaccount/ballast-rebalance")
    up.shell("kubectl apply --dry-run=server -n default -k manifests/spark-executors")  # as its spark-submit needs it


def test_kubernetes(up: Up) -> None:
    """In the folder of the kustomization that the page shows; the operator is a process of the embedded Kubernetes."""
    own = up.folder / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(block("docs/kubernetes.md", "namespace: kafka"))
    up.shell("kubectl create namespace argocd")
    for command in to_type(f"{HERE}test_kubernetes"):
        up.shell(command if "manifests/" in command else f"cd own; {command}")
    assert "resource.customizations.health.ballast.dev_KafkaTopic" in up.get("configmap/argocd-cm -n argocd")["data"]
    (own / "cluster.yaml").write_text(block("docs/kubernetes.md", "apiVersion: ballast.dev"))
    up.shell("kubectl apply --dry-run=server -f own/cluster.yaml")
    up.shell("kubectl delete namespace kafka")


def test_operations(up: Up, orders: None) -> None:
    """What the page takes for granted is made here: the kinds of the Prometheus operator, and skewed data."""
    (up.folder / "racks").mkdir()
    (up.folder / "racks" / "kustomization.yaml").write_text(block("docs/operations.md", "namespace: kafka"))
    up.shell("kubectl create namespace kafka; kubectl apply --dry-run=server -k racks")
    up.shell("kubectl create namespace ballast-system")
    for kind in PROMETHEUS_OPERATOR:
        (up.folder / f"{kind}.yaml").write_text(yaml.safe_dump(definition(kind)))
        up.shell(f"kubectl apply -f {kind}.yaml; kubectl wait --for=condition=Established -f {kind}.yaml")
    up.shell("kubectl delete bkr --all")
    skew(up)
    for command in to_type(f"{HERE}test_operations"):
        if command.endswith(" --watch"):
            watch(up, command)
        else:
            up.shell(command, 200)
        if command.endswith("condition=Ready bkr/level --timeout=1h"):
            assert up.get("bkr/level")["status"]["progress"]["movesDone"] > 0
    kept = (up.folder / "backup.yaml").read_text("utf-8")
    assert "kind: KafkaCluster" in kept
    assert "kind: Reassignment" in kept
    left = subprocess.run(["kubectl", "get", "ballast"], env=up.environment, capture_output=True, text=True, timeout=60)
    assert left.returncode != 0, "the kinds are gone with manifests/base"


def definition(kind: str) -> dict[str, object]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def skew(up: Up) -> None:
    """Bytes into two partitions that lie in the same directory of each broker: new topics go around the directories."""
    addresses = up.get("bkc/demo")["status"]["bootstrapServers"].split(",")
    producer = KafkaProducer(bootstrap_servers=addresses, acks="all")
    try:
        for partition in (0, 3):
            for _ in range(RECORDS):
                producer.send("orders", os.urandom(RECORD_BYTES), partition=partition)
        producer.flush(60)
    finally:
        producer.close()


def watch(up: Up, command: str) -> None:
    """Until it has shown the cluster twice; then Ctrl-C."""
    with subprocess.Popen(
        ["sh", "-c", f"exec {command}"], cwd=up.folder, env=up.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        looks = 0
        for line in process.stdout:
            looks += line.startswith("cluster ")
            if looks == 2:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 130
