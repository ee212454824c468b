"""The vocabulary of scenarios: what a person at a terminal does and sees, the same for every provider.

Whatever a person would type goes through kubectl; every wait has a deadline and, if it is missed, shows the evidence.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from e2e.kubernetes.node_ports import Way, ways
from e2e.kubernetes.providers import Provider

from ballast_cli import CommandError
from ballast_cli.kube_api import Kind, KubeApi, Obj, Refused
from ballast_cli.status import observe_cluster
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError
from ballast_operator.model.kafka import KafkaView

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "kafka"
CLUSTER = "demo"
OUTSIDE_LISTENER = {"name": "OUTSIDE", "port": 9094}
WAIT_SECONDS = 240.0
POLL_SECONDS = 0.2
# How long Kafka may be silent before somebody looks whether its node ports lead to its pods, and then again.
ASTRAY_SECONDS = 45.0
# Set by `./ballast e2e --faults MINUTES --seed SEED`.
FAULT_MINUTES, FAULT_SEED = "BALLAST_E2E_FAULT_MINUTES", "BALLAST_E2E_FAULT_SEED"
# Set by `./ballast e2e --away MINUTES`.
AWAY_MINUTES = "BALLAST_E2E_AWAY_MINUTES"


class Disappointed(AssertionError):
    """Something that should have happened did not; the text shows what there was instead."""


class World:
    """One namespace of one Kubernetes, seen by a person with kubectl and a Kafka client."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.image = provider.image  # of the brokers
        self.began = time.monotonic()
        self._api: KubeApi | None = None

    def say(self, text: str) -> None:
        print(f"  {time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # ---- kubectl

    def kubectl(self, *words: str, stdin: str | None = None, seconds: float = 180.0) -> str:
        """Its output; raises Disappointed with kubectl's own message if it fails."""
        done = self.try_kubectl(*words, stdin=stdin, seconds=seconds)
        if done.returncode != 0:
            raise Disappointed(f"kubectl {' '.join(words)}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done.stdout

    def try_kubectl(
        self, *words: str, stdin: str | None = None, seconds: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        command = [self.provider.kubectl_program, "--namespace", NAMESPACE, *words]
        variables = os.environ | {"KUBECONFIG": str(self.provider.kubeconfig)}
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=variables, timeout=seconds, check=False
        )

    def apply(self, *bodies: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    def apply_example(self, name: str) -> None:
        """Apply one of manifests/examples as it is."""
        self.kubectl("apply", "-f", str(ROOT / "manifests" / "examples" / f"{name}.yaml"))

    def kustomize(self, content: Mapping[str, Any], *words: str) -> str:
        """Run kubectl apply -k (or `words`) on a kustomization; `resources` are paths in this project."""
        with tempfile.TemporaryDirectory(prefix="ballast-e2e-kustomize-") as folder:
            resources = [os.path.relpath(ROOT / path, os.path.realpath(folder)) for path in content["resources"]]
            text = yaml.safe_dump({**content, "resources": resources})
            (Path(folder) / "kustomization.yaml").write_text(text)
            return self.kubectl(*(words or ("apply", "--server-side", "-k")), folder)

    # ---- reading

    @property
    def api(self) -> KubeApi:
        if self._api is None:
            self._api = KubeApi.found(str(self.provider.kubeconfig))
        return self._api

    def get(self, kind: str, name: str) -> Obj | None:
        try:
            return self.api.call("GET", self._kind(kind).path(NAMESPACE, name))
        except Refused as refusal:
            if refusal.code == 404:
                return None
            raise

    def all(self, kind: str, selector: str = "") -> list[Obj]:
        query = {"labelSelector": selector} if selector else {}
        items: list[Obj] = self.api.call("GET", self._kind(kind).path(NAMESPACE), query)["items"]
        return items

    def names(self, kind: str, selector: str = "") -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.all(kind, selector))

    def _kind(self, text: str) -> Kind:
        try:
            return self.api.kind(text)
        except Exception:
            self._api = None  # a kind that was unknown at discovery may exist now
            return self.api.kind(text)

    def pods(self) -> dict[str, Obj]:
        """The brokers' pods by name."""
        found = self.all("pods", f"ballast.dev/cluster={CLUSTER}")
        return {pod["metadata"]["name"]: pod for pod in found}

    # ---- waiting

    def until(self, what: str, found: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
        """Poll `found` until it returns something true; returns that."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value: T | None = found()
            except CommandError as error:
                if isinstance(error, Refused) and not error.is_transient:
                    raise
                value = None  # an API server that does not answer now may answer soon
            if value:
                return value
            if time.monotonic() > deadline:
                raise Disappointed(f"not within {seconds:.0f} s: {what}\n{self.evidence()}")
            time.sleep(POLL_SECONDS)

    def ready(self, kind: str, name: str) -> tuple[str, str, str]:
        """(status, reason, message) of Ready for the current spec; empty until the operator has observed that."""
        body = self.get(kind, name)
        if body is None or body.get("status", {}).get("observedGeneration") != body["metadata"]["generation"]:
            return ("", "", "")
        conditions = body["status"].get("conditions", ())
        found = next((one for one in conditions if one["type"] == "Ready"), None)
        return (found["status"], found["reason"], found["message"]) if found else ("", "", "")

    def until_ready(self, kind: str, name: str, seconds: float = WAIT_SECONDS) -> Obj:
        self.until(f"{kind} {name} is Ready", lambda: self.ready(kind, name)[0] == "True", seconds)
        return self.get(kind, name) or {}

    def until_phase(self, name: str, *phases: str, seconds: float = WAIT_SECONDS) -> Obj:
        def found() -> Obj | None:
            body = self.get("reassignment", name)
            return body if body and body.get("status", {}).get("phase") in phases else None

        return self.until(f"Reassignment {name} is {' or '.join(phases)}", found, seconds) or {}

    def evidence(self) -> str:
        """What a person would look at: objects, pods, events, the last log lines of brokers, operator and node."""
        shown = [self.try_kubectl("get", what, "-o", "wide").stdout for what in ("ballast", "pods,pvc")]
        log = self.try_kubectl("logs", "deployment/ballast-operator", "--tail=25")
        events = self.try_kubectl("get", "events", "--sort-by=.lastTimestamp").stdout.splitlines()[-15:]
        of_brokers = ("--selector", f"ballast.dev/cluster={CLUSTER}")
        brokers = self.try_kubectl("logs", *of_brokers, "--prefix", "--tail=40").stdout
        try:
            led = [str(one) for one in self._ways()]
        except CommandError as error:
            led = [str(error)]
        told = [*shown, *events, brokers, "operator:", log.stdout[-4000:], "node ports:", *led]
        return "\n".join([*told, self.provider.evidence()])

    # ---- Kafka, from outside

    @property
    def bootstrap(self) -> str:
        """The node ports of the brokers that there are."""
        brokers = int((self.get("statefulset", CLUSTER) or {"spec": {"replicas": 3}})["spec"]["replicas"])
        return ",".join(
            f"{self.provider.outside}:{self.provider.first_node_port + broker}" for broker in range(brokers)
        )

    def view(self) -> KafkaView:
        """The whole state of the Kafka cluster, as its brokers report it."""
        import asyncio

        async def look() -> KafkaView:
            connection = KafkaConnection(ConnectionSettings(self.bootstrap))
            try:
                return await observe_cluster(connection)
            finally:
                await connection.close()

        last = ""
        looks = time.monotonic() + ASTRAY_SECONDS

        def found() -> KafkaView | None:
            nonlocal last, looks
            try:
                seen = asyncio.run(look())
            except KafkaUnavailableError as error:
                last = str(error)
            else:
                online = {broker.id for broker in seen.brokers.values() if broker.online}
                if online and online <= seen.described:
                    return seen
                last = f"of {sorted(online)}, {sorted(seen.described)} tell their directories"
            if time.monotonic() > looks:
                self.mend_node_ports()
                looks = time.monotonic() + ASTRAY_SECONDS
            return None

        try:
            return self.until("Kafka answers from outside", found)
        except Disappointed as late:
            raise Disappointed(f"{last}: {late}") from None

    def mend_node_ports(self) -> None:
        """Restart what makes node ports lead to pods, if they lead elsewhere: it is part of the node, which is not what
        scenarios test. What was found is told."""
        astray = [one for one in self._ways() if one.late]
        for name in sorted({one.late for one in astray}):
            self.say(f"{name} does not follow and is restarted: " + "; ".join(map(str, astray)))
            self.say(self.provider.node.shown(name))
            self.provider.node.kill(name)

    def _ways(self) -> list[Way]:
        rules = self.provider.rules()
        if rules is None:
            return []
        return ways(self.all("services"), self.pods(), self.all("endpointslices"), rules)

    # ---- Kafka, from a pod

    def run_in_pod(self, name: str, script: str, *arguments: str, seconds: float = WAIT_SECONDS) -> str:
        """Run a Python script in a pod of its own, with our image; returns its output."""
        return self.run_pod(restricted_pod(name, self.provider.image, ["python3", "-c", script, *arguments]), seconds)

    def run_pod(self, body: Obj, seconds: float = WAIT_SECONDS) -> str:
        """Run a pod to its end; returns its output."""
        name = body["metadata"]["name"]
        self.apply(body)
        try:
            phase = self.until(f"pod {name} ends", lambda: self.ended(name), seconds)
            said = self.kubectl("logs", name)
            if phase != "Succeeded":
                raise Disappointed(f"pod {name} failed: {without_frames(said)[-4000:]}")
            return said
        finally:
            self.try_kubectl("delete", "pod", name, "--grace-period=0", "--wait=true", "--ignore-not-found")

    def ended(self, pod: str) -> str:
        """The phase of a pod that has ended, else empty."""
        phase: str = (self.get("pod", pod) or {}).get("status", {}).get("phase", "")
        return phase if phase in ("Succeeded", "Failed") else ""


def without_frames(said: str) -> str:
    """A program's output without the frames of Java stack traces, which push the message out of sight."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("\tat "))


def restricted_pod(name: str, image: str, command: list[str], account: str = "") -> Obj:
    """A pod that meets the restricted Pod Security Standard; with an account, it may use the Kubernetes API as that."""
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": bool(account),
        "serviceAccountName": account or "default",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def cluster(world: World, **spec: Any) -> Obj:
    """The cluster of the story: three brokers with three volumes each, and a listener for outside."""
    volumes = [{"name": f"disk-{index}", "size": "1Gi"} for index in range(3)]
    outside = {
        **OUTSIDE_LISTENER,
        "nodePorts": {"host": world.provider.outside, "first": world.provider.first_node_port},
    }
    whole = {
        "brokers": 3,
        "volumes": volumes,
        "image": world.image,
        "listeners": [{"name": "PLAINTEXT", "port": 9092}, outside],
        "resyncSeconds": 5,
        **spec,
    }
    return {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "metadata": {"name": CLUSTER}, "spec": whole}


def topic(name: str, **spec: Any) -> Obj:
    whole = {"clusterRef": {"name": CLUSTER}, **spec}
    return {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaTopic", "metadata": {"name": name}, "spec": whole}


def reassignment(name: str, **spec: Any) -> Obj:
    whole = {"clusterRef": {"name": CLUSTER}, **spec}
    return {"apiVersion": "ballast.dev/v1alpha1", "kind": "Reassignment", "metadata": {"name": name}, "spec": whole}


def as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
