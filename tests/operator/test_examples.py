"""Every file of manifests/examples, typed with the real kubectl against a real `ballast up`.

Each is applied as it stands, in the order of a story, and waited for as a person would.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator

import pytest
from tests.certificates import Authority
from tests.docs.up import KUBECTL, ROOT, Up

from ballast_local.workloads.addresses import Addresses

EXAMPLES = ROOT / "manifests" / "examples"
MAX_MEMORY_MB = 400
READY_SECONDS = 15.0
# On a machine that does other things as well, the seconds that the processes themselves computed are what counts.
READY_CPU_SECONDS = 15.0
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not KUBECTL, reason="no kubectl is built, none is named"),
]
APPLIED: set[str] = set()


def apply(up: Up, name: str, *wait_for: str) -> None:
    """An example, and `kubectl wait` until each of these is Ready."""
    APPLIED.add(name)
    up.shell(f"kubectl apply -f manifests/examples/{name}.yaml")
    for what in wait_for:
        up.shell(f"kubectl wait --for=condition=Ready {what} --timeout=140s")


def approve(up: Up, name: str) -> None:
    """With the command that the example itself names."""
    up.shell(f"kubectl wait --for=jsonpath='{{.status.phase}}'=AwaitingApproval bkr/{name} --timeout=60s")
    text = (EXAMPLES / "drain-broker.yaml").read_text()
    command = re.search(r"^#   (kubectl patch .*)$", text, re.MULTILINE)
    assert command is not None
    up.shell(command[1].replace("drain-broker-2", shlex.quote(name)))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up")) as found:
        yield found


def test_it_is_ready_soon_with_little_memory_and_says_what_to_do_next(up: Up) -> None:
    assert up.process.poll() is None
    assert up.cpu_seconds < READY_CPU_SECONDS
    assert up.ready_seconds() < READY_SECONDS or not up.idle_before
    assert any(line.startswith("bootstrap address: 127.") for line in up.printed)
    assert up.memory_mb() < MAX_MEMORY_MB
    assert "demo" in up.shell("kubectl get kafkaclusters,kafkatopics,reassignments")


@pytest.mark.spec("OPR-21")
def test_a_topic_its_expansion_and_its_configuration(up: Up) -> None:
    apply(up, "topic", "kafkatopic/orders")
    apply(up, "topic-expanded", "kafkatopic/orders")
    assert up.get("bkt/orders")["status"]["partitions"] == 12
    apply(up, "topic-config", "kafkatopic/orders")
    assert up.get("bkt/orders")["status"]["managedConfig"] == ["cleanup.policy"]


@pytest.mark.spec("OPR-30")
def test_moves_between_volumes(up: Up) -> None:
    apply(up, "move-between-volumes", "bkr/move-orders-0")
    apply(up, "drain-volume", "bkr/drain-disk-2")
    rows = up.get("bkc/demo")["status"]["brokers"][1]["directories"]
    (drained,) = (number for number, row in enumerate(rows) if "disk-2" in row["path"])
    path = f"{{.status.brokers[1].directories[{drained}].replicas}}"
    up.shell(f"kubectl wait --for=jsonpath='{path}'=0 bkc/demo --timeout=120s")  # the cluster is looked at in its turn


@pytest.mark.spec("OPR-42")
@pytest.mark.spec("OPR-32")
def test_a_broker_more_another_one_drained_and_one_fewer(up: Up) -> None:
    apply(up, "cluster-scaled-up", "bkc/demo")
    assert up.get("bkc/demo")["status"]["brokersText"] == "4/4"
    apply(up, "drain-broker")
    approve(up, "drain-broker-2")
    up.shell("kubectl wait --for=condition=Ready bkr/drain-broker-2 --timeout=140s")
    up.shell("kubectl wait --for=jsonpath='{.status.brokers[2].replicas}'=0 bkc/demo --timeout=120s")
    # Without a byte in the topics there is nothing to level, and nobody has to approve that.
    apply(up, "level", "bkr/level")
    apply(up, "cluster", "bkc/demo")
    assert up.get("bkc/demo")["status"]["brokersText"] == "3/3"
    assert up.shell("kubectl get pod demo-3 --ignore-not-found") == ""


@pytest.mark.spec("REB-01")
def test_a_rebalance_job_on_a_schedule(up: Up) -> None:
    """What the job itself does is shown where Spark is; here, that applying the example is enough to have it."""
    apply(up, "cluster-rebalanced", "bkc/demo")
    up.shell("kubectl wait --for=jsonpath='{.status.conditions[?(@.type==\"Balanced\")].reason}'=NotLookedYet bkc/demo")
    assert up.get("cronjob/demo-rebalance")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    apply(up, "cluster", "bkc/demo")
    up.shell("kubectl wait --for=delete cronjob/demo-rebalance --timeout=60s")


@pytest.mark.spec("OPR-43")
def test_a_volume_removed(up: Up) -> None:
    apply(up, "cluster-volume-removed", "bkc/demo")
    assert [len(row["directories"]) for row in up.get("bkc/demo")["status"]["brokers"]] == [2, 2, 2]
    up.shell("kubectl wait --for=condition=Ready kafkatopic/orders --timeout=60s")


@pytest.mark.spec("OPR-40")
def test_a_cluster_with_tls_and_rights_waits_for_its_secrets(up: Up) -> None:
    """cert-manager would make them; here openssl does, with the addresses that the embedded pods are going to have."""
    up.shell("kubectl apply -f manifests/examples/cluster-secured.yaml")
    up.shell("kubectl wait --for=jsonpath='{.status.conditions[0].reason}'=SecretNotFound bkc/secured --timeout=60s")
    known = Addresses(up.folder / "addresses.log", str(up.data))
    hosts = [known.take(f"pod/default/secured-{number}") for number in range(3)]
    pods = [f"secured-{number}.secured-brokers.default.svc" for number in range(3)]
    names = ",".join([f"IP:{host}" for host in hosts] + [f"DNS:{pod}" for pod in pods])
    for name in ("secured-internal", "secured-clients"):
        authority = Authority(up.folder / name, name)
        key = authority.issue("tls", names=names).with_suffix(".key")
        files = {"tls.crt": key.with_suffix(".crt"), "tls.key": key, "ca.crt": authority.ca}
        given = " ".join(f"--from-file={file}={shlex.quote(str(path))}" for file, path in files.items())
        up.shell(f"kubectl create secret generic {name} --type=kubernetes.io/tls {given}")
    apply(up, "cluster-secured", "bkc/secured")
    assert up.get("bkc/secured")["status"]["brokersText"] == "3/3"
    up.shell("kubectl delete bkc secured")


@pytest.mark.spec("OPR-25")
def test_a_cluster_elsewhere_is_told_unreachable_while_it_is(up: Up) -> None:
    apply(up, "external-cluster")
    up.shell("kubectl wait --for=condition=Ready=Unknown bkc/existing --timeout=120s")
    assert "has not answered since" in up.shell("kubectl describe bkc existing")
    up.shell("kubectl delete bkc existing")


@pytest.mark.spec("OPR-03")
def test_columns_descriptions_and_events_answer_the_first_question(up: Up) -> None:
    assert {"PHASE", "%", "MOVED", "TOTAL", "ETA", "AGE"} <= set(up.shell("kubectl get bkr").splitlines()[0].split())
    assert "BROKERS" in up.shell("kubectl get ballast")
    assert "Succeeded" in up.shell("kubectl describe bkr drain-disk-2")
    assert "DESCRIPTION" in up.shell("kubectl explain kafkacluster.spec.volumes")
    assert "Ballast broker and controller 0 is ready" in up.shell("kubectl logs demo-0")
    assert up.shell("kubectl scale bkc demo --replicas=3") == "kafkacluster.ballast.dev/demo scaled\n"
    up.shell("kubectl delete kafkatopic orders")


def test_every_example_was_applied(up: Up) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == APPLIED


def test_it_ends_with_ctrl_c(up: Up) -> None:
    began = time.monotonic()
    up.stop()
    assert time.monotonic() - began < 60
