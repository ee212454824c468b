"""What the README and the examples tell people to type, typed with the real kubectl against a real `ballast up`.

Every file of manifests/examples is applied as it stands, in the order of a story, and waited for as a person would.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes.binaries import kubectl as kubectl_program

from ballast_local.workloads import launch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
KUBECTL = kubectl_program()
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


class Up:
    """`ballast up` in a process of its own, and a shell in which kubectl is the real one."""

    def __init__(self, data: Path) -> None:
        self.data = data
        (data / "bin").mkdir()
        (data / "bin" / "kubectl").symlink_to(KUBECTL)
        paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
        self.environment = {**os.environ, "PYTHONPATH": paths, "HOME": str(data)}
        self.environment["PATH"] = f"{data / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.idle_before = os.getloadavg()[0] < (os.cpu_count() or 1) / 2
        # It ends with the tests, however these end.
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()),
             sys.executable, "-m", "ballast_cli", "up", "--data", str(data / "up")],
            stdout=subprocess.PIPE, env=self.environment, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.printed: list[str] = []
        # What it still prints when it is ready has to go somewhere.
        self._drain = threading.Thread(target=self.process.stdout.read, daemon=True)

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.strip())
            if line.startswith("KUBECONFIG="):
                self.environment["KUBECONFIG"] = line.strip().partition("=")[2]
            if line.startswith("ready after"):
                break
        self.cpu_seconds = self._cpu_seconds()
        self._drain.start()

    def shell(self, command: str, seconds: float = 150.0) -> str:
        done = subprocess.run(
            ["sh", "-ec", command], cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self._log()}"
        return done.stdout

    def apply(self, name: str, *wait_for: str) -> None:
        """An example, and `kubectl wait` until each of these is Ready."""
        APPLIED.add(name)
        self.shell(f"kubectl apply -f manifests/examples/{name}.yaml")
        for what in wait_for:
            self.shell(f"kubectl wait --for=condition=Ready {what} --timeout=140s")

    def get(self, what: str) -> Any:
        return json.loads(self.shell(f"kubectl get {what} -o json"))

    def approve(self, name: str) -> None:
        """With the command that the example itself names."""
        self.shell(f"kubectl wait --for=jsonpath='{{.status.phase}}'=AwaitingApproval bkr/{name} --timeout=60s")
        text = (EXAMPLES / "drain-broker.yaml").read_text()
        command = re.search(r"^#   (kubectl patch .*)$", text, re.MULTILINE)
        assert command is not None
        self.shell(command[1].replace("drain-broker-2", shlex.quote(name)))

    def _log(self) -> str:
        return (self.data / "up" / "operator.log").read_text()[-2000:]

    def _pids(self) -> list[int]:
        return [self.process.pid, *_children(self.process.pid)]

    def _cpu_seconds(self) -> float:
        ticks = 0
        for pid in self._pids():
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def ready_seconds(self) -> float:
        """As it told itself."""
        found = [re.match(r"ready after ([\d.]+) s", line) for line in self.printed]
        return next(float(one[1]) for one in found if one)

    def memory_mb(self) -> float:
        """Of all processes; what they share is counted once."""
        rows = [row for pid in self._pids() for row in _read(f"/proc/{pid}/smaps_rollup").splitlines()]
        return sum(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024

    def stop(self) -> None:
        try:
            self.process.send_signal(signal.SIGINT)
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()
            self.process.wait()
            if self._drain.is_alive():
                self._drain.join(10)
            assert self.process.stdout is not None
            self.process.stdout.close()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in _entries(f"/proc/{pid}/task"):
        for child in _read(f"{task}/children").split():
            found += [int(child), *_children(int(child))]
    return found


def _entries(path: str) -> list[Path]:
    try:
        return list(Path(path).iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: str) -> str:
    """Nothing of a process or thread that has ended meanwhile."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("up"))
    try:
        found.await_ready()
        yield found
    finally:
        if found.process.poll() is None:
            found.stop()


def test_it_is_ready_soon_with_little_memory_and_says_what_to_do_next(up: Up) -> None:
    assert up.process.poll() is None
    assert up.cpu_seconds < READY_CPU_SECONDS
    assert up.ready_seconds() < READY_SECONDS or not up.idle_before
    assert any(line.startswith("bootstrap address: 127.") for line in up.printed)
    assert up.memory_mb() < MAX_MEMORY_MB
    assert "demo" in up.shell("kubectl get kafkaclusters,kafkatopics,reassignments")


@pytest.mark.spec("OPR-21")
def test_a_topic_its_expansion_and_its_configuration(up: Up) -> None:
    up.apply("topic", "kafkatopic/orders")
    up.apply("topic-expanded", "kafkatopic/orders")
    assert up.get("bkt/orders")["status"]["partitions"] == 12
    up.apply("topic-config", "kafkatopic/orders")
    assert up.get("bkt/orders")["status"]["managedConfig"] == ["cleanup.policy"]


@pytest.mark.spec("OPR-30")
def test_moves_between_volumes(up: Up) -> None:
    up.apply("move-between-volumes", "bkr/move-orders-0")
    up.apply("drain-volume", "bkr/drain-disk-2")
    rows = up.get("bkc/demo")["status"]["brokers"][1]["directories"]
    (drained,) = (number for number, row in enumerate(rows) if "disk-2" in row["path"])
    path = f"{{.status.brokers[1].directories[{drained}].replicas}}"
    up.shell(f"kubectl wait --for=jsonpath='{path}'=0 bkc/demo --timeout=120s")  # the cluster is looked at in its turn


@pytest.mark.spec("OPR-42")
@pytest.mark.spec("OPR-32")
def test_a_broker_more_another_one_drained_and_one_fewer(up: Up) -> None:
    up.apply("cluster-scaled-up", "bkc/demo")
    assert up.get("bkc/demo")["status"]["brokersText"] == "4/4"
    up.apply("drain-broker")
    up.approve("drain-broker-2")
    up.shell("kubectl wait --for=condition=Ready bkr/drain-broker-2 --timeout=140s")
    up.shell("kubectl wait --for=jsonpath='{.status.brokers[2].replicas}'=0 bkc/demo --timeout=120s")
    # Without a byte in the topics there is nothing to level, and nobody has to approve that.
    up.apply("level", "bkr/level")
    up.apply("cluster", "bkc/demo")
    assert up.get("bkc/demo")["status"]["brokersText"] == "3/3"
    assert up.shell("kubectl get pod demo-3 --ignore-not-found") == ""


@pytest.mark.spec("REB-01")
def test_a_rebalance_job_on_a_schedule(up: Up) -> None:
    """What the job itself does is shown where Spark is; here, that applying the example is enough to have it."""
    up.apply("cluster-rebalanced", "bkc/demo")
    up.shell("kubectl wait --for=jsonpath='{.status.conditions[?(@.type==\"Balanced\")].reason}'=NotLookedYet bkc/demo")
    assert up.get("cronjob/demo-rebalance")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    up.apply("cluster", "bkc/demo")
    up.shell("kubectl wait --for=delete cronjob/demo-rebalance --timeout=60s")


@pytest.mark.spec("OPR-43")
def test_a_volume_removed(up: Up) -> None:
    up.apply("cluster-volume-removed", "bkc/demo")
    assert [len(row["directories"]) for row in up.get("bkc/demo")["status"]["brokers"]] == [2, 2, 2]
    up.shell("kubectl wait --for=condition=Ready kafkatopic/orders --timeout=60s")


@pytest.mark.spec("OPR-25")
def test_a_cluster_elsewhere_is_told_unreachable_while_it_is(up: Up) -> None:
    up.apply("external-cluster")
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


# Of docs/operations.md: what the scenarios on a real node do by a kustomization of their own (e2e/kubernetes/story.py),
# as the operator is a process of `ballast up` here; what needs the Prometheus operator; what never ends; and what waits
# for a plan to approve, for which there would have to be gigabytes (`Up.approve` types the same for another plan).
ELSEWHERE = (
    "-k manifests/",
    "deployment/ballast-operator",
    "status --watch",
    "AwaitingApproval bkr/level",
    "patch bkr level",
)


def test_the_page_about_operations_from_top_to_bottom(up: Up, tmp_path: Path) -> None:
    """Every command as it stands there, in its order."""
    for name in ("manifests", "ballast"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    commands = re.findall(r"^ {4}((?:kubectl|\./ballast) .*)$", page, re.MULTILINE)
    assert len(commands) > 15
    up.shell("kubectl delete bkr --all")
    for command in commands:
        if not any(part in command for part in ELSEWHERE):
            up.shell(f"cd {tmp_path}; {command}", 200)
    kept = (tmp_path / "backup.yaml").read_text("utf-8")
    assert "kind: KafkaCluster" in kept
    assert "kind: Reassignment" in kept
    assert up.shell("kubectl get ballast -o name") == ""


def test_every_example_was_applied(up: Up) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == APPLIED


def test_it_ends_with_ctrl_c(up: Up) -> None:
    began = time.monotonic()
    up.stop()
    assert time.monotonic() - began < 60
