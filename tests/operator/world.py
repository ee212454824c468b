"""The embedded Kubernetes, the operator in a process of its own, and a Kafka cluster, as tests use them from outside.

Everything asynchronous runs on one event loop in a thread; a test says what it wants and waits with a deadline.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from e2e.processes import free_ports
from e2e.sockets import forget_sockets

from ballast_cli.places import ROOT
from ballast_cli.status import observe_cluster
from ballast_cli.up import Stack
from ballast_local.workloads import node
from ballast_operator.apply.kubernetes import ApiError, path_of
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError
from ballast_operator.model.kafka import KafkaView

T = TypeVar("T")
API = "ballast.dev/v1alpha1"
PLURALS = {"KafkaCluster": "kafkaclusters", "KafkaTopic": "kafkatopics", "Reassignment": "reassignments"}
Body = dict[str, Any]
Bodies = list[Body]  # within World, `list` is a method
LEASE = path_of("coordination.k8s.io/v1", "leases", "default", "ballast-operator")


class World:
    """A Kubernetes with an operator, and the cluster that tests make in it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.cluster = "demo"
        self.bootstrap = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="world", daemon=True)
        self._thread.start()
        self._stack = Stack(data)
        self.probe_port = 0
        self._choose_settings()
        self._kafka: KafkaConnection | None = None
        self._others: list[subprocess.Popen[bytes]] = []

    def _choose_settings(self) -> None:
        """Relist often, so that a lost watch event is noticed in seconds, not minutes; use another port per start."""
        (self.probe_port,) = free_ports(1)
        self._stack.operator_settings = ("--relist-seconds", "3", "--probe-port", str(self.probe_port))

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.run(self._stack.start(), 90)

    def start_cluster(self, **spec: Any) -> None:
        """Create the cluster that scenarios share and wait until it is Ready."""
        self.apply("KafkaCluster", self.cluster, spec)
        self.bootstrap = self.until_ready("KafkaCluster", self.cluster, 90)["status"]["bootstrapServers"]

    def fill(self, topics: Iterable[str], partitions: int, records: int, size: int = 100_000) -> None:
        """Write `records` records of `size` bytes to each partition."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","), acks="all", batch_size=1 << 20, linger_ms=10
        )
        try:
            for topic in topics:
                for index in range(records * partitions):
                    producer.send(topic, bytes(size), partition=index % partitions)
            producer.flush(60)
        finally:
            producer.close()

    def movable_topic(self, name: str, rows: Sequence[Sequence[int]], records: int = 0) -> None:
        """Create a topic, wait until it is Ready, and pause it, or the operator would undo every move. Fill it with
        `records` per partition."""
        self.topic(name, replicaAssignment=rows)
        self.until_ready("KafkaTopic", name)
        self.pause("KafkaTopic", name)
        if records:
            self.fill([name], len(rows), records)

    def stop(self) -> None:
        for process in self._others:
            process.kill()
            process.wait(10)
        self.hang_up()
        # The data of the brokers is not needed any more: kill them.
        node.STOP_SECONDS, before = 0.0, node.STOP_SECONDS
        self.run(self._stack.stop(), 90)
        node.STOP_SECONDS = before
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        forget_sockets()

    # The operator's processes.

    @property
    def operator_log(self) -> str:
        return (self.data / "operator.log").read_text()

    def end_operator(self) -> None:
        """SIGTERM, as when Kubernetes deletes a pod."""
        process = self._stack._operator
        assert process is not None
        process.terminate()
        self.run(process.wait())

    def kill_operator(self, keep_lease: bool = False) -> None:
        """kill -9. Its Lease is deleted, unless a test is about waiting for it to expire."""
        process = self._stack._operator
        assert process is not None
        process.send_signal(signal.SIGKILL)
        self.run(process.wait())
        if not keep_lease:
            self.api("delete", LEASE)

    @property
    def kubeconfig(self) -> Path:
        return self._stack.kubeconfig

    def restart_operator(self, kubeconfig: Path | None = None) -> None:
        """Start it again, with another kubeconfig than its own if one is given."""
        self._choose_settings()
        self.run(self._stack._start_operator(kubeconfig))

    def leader(self) -> str:
        """The holder of the Lease; empty if there is none."""
        lease = self.run(self._stack.api.find(LEASE))
        return str(lease["spec"].get("holderIdentity") or "") if lease else ""

    def start_another_operator(self, kubeconfig: Path | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or self._stack.kubeconfig)}
        environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
        with (self.data / "other.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ballast_cli", "operator", "--namespace", "default"],
                env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        self._others.append(process)
        return process

    # Objects.

    def path(self, kind: str, name: str | None = None, namespace: str = "default", sub: str = "") -> str:
        return path_of(API, PLURALS[kind], namespace, name, sub)

    def apply(self, kind: str, name: str, spec: Mapping[str, Any], namespace: str = "default", **meta: Any) -> Body:
        metadata = {"name": name, "namespace": namespace, **meta}
        body = {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": dict(spec)}
        return self.run(self._stack.api.apply(self.path(kind, name, namespace), body))

    def topic(self, name: str, **spec: Any) -> Body:
        return self.apply("KafkaTopic", name, {"clusterRef": {"name": self.cluster}, **spec})

    def reassign(self, name: str, **spec: Any) -> Body:
        return self.apply("Reassignment", name, {"clusterRef": {"name": self.cluster}, **spec})

    def get(self, kind: str, name: str, namespace: str = "default") -> Body | None:
        return self.run(self._stack.api.find(self.path(kind, name, namespace)))

    def list(self, kind: str, namespace: str = "default") -> list[Body]:
        async def items() -> list[Body]:
            return [item async for item in self._stack.api.items(self.path(kind, None, namespace))]

        return self.run(items())

    def objects(self, api_version: str, plural: str, selector: str = "") -> Bodies:
        async def items() -> Bodies:
            return [item async for item in self._stack.api.items(path_of(api_version, plural, "default"), selector)]

        return self.run(items())

    def patch(self, kind: str, name: str, patch: Mapping[str, Any], sub: str = "") -> Body:
        return self.run(self._stack.api.merge(self.path(kind, name, sub=sub), patch))

    def pause(self, kind: str, name: str, wanted: bool = True) -> None:
        self.patch(kind, name, {"metadata": {"annotations": {"ballast.dev/paused": "true" if wanted else None}}})

    def touch(self, kind: str, name: str) -> None:
        """Change a label, so that the operator retries at once what was refused, not only after its back-off."""
        self.patch(kind, name, {"metadata": {"labels": {"touched": "again"}}})

    def delete(self, kind: str, name: str) -> None:
        self.run(self._stack.api.delete(self.path(kind, name)))

    def api(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self.run(getattr(self._stack.api, method)(*arguments, **options))

    # Waiting.

    def until(self, what: str, found: Callable[[], T | None], seconds: float = 40.0) -> T:
        """Poll `found` until its result is truthy, and return that."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value: T | None = found()
            except TimeoutError:
                value = None  # a busy machine may leave the embedded API waiting for longer than one call does
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self._evidence()}")
            time.sleep(0.05)

    def condition(self, kind: str, name: str) -> tuple[str, str, str]:
        """(status, reason, message) of Ready for the current generation; empty until the operator has observed it."""
        body = self.get(kind, name)
        if body is None or body.get("status", {}).get("observedGeneration") != body["metadata"]["generation"]:
            return ("", "", "")
        for condition in body["status"].get("conditions", ()):
            if condition["type"] == "Ready":
                return condition["status"], condition["reason"], condition["message"]
        return ("", "", "")

    def until_ready(self, kind: str, name: str, seconds: float = 40.0) -> Body:
        self.until(f"{kind} {name} is Ready", lambda: self.condition(kind, name)[0] == "True", seconds)
        return self.get(kind, name) or {}

    def until_all_ready(self, names: Iterable[str], seconds: float = 90.0) -> None:
        """Wait until these KafkaTopics are Ready."""
        wanted = set(names)

        def ready() -> set[str]:
            return {
                body["metadata"]["name"]
                for body in self.list("KafkaTopic")
                if body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
                and any(c["type"] == "Ready" and c["status"] == "True" for c in body["status"]["conditions"])
            }

        self.until(f"{len(wanted)} topics are Ready", lambda: wanted <= ready(), seconds)

    def until_reason(self, kind: str, name: str, reason: str, seconds: float = 40.0) -> str:
        self.until(f"{kind} {name} says {reason}", lambda: self.condition(kind, name)[1] == reason, seconds)
        return self.condition(kind, name)[2]

    def until_phase(self, name: str, *phases: str, seconds: float = 60.0) -> Body:
        def found() -> Body | None:
            body = self.get("Reassignment", name)
            return body if body and body.get("status", {}).get("phase") in phases else None

        return self.until(f"Reassignment {name} is {' or '.join(phases)}", found, seconds)

    def until_gone(self, kind: str, name: str, seconds: float = 40.0) -> None:
        self.until(f"{kind} {name} is gone", lambda: self.get(kind, name) is None, seconds)

    def _evidence(self) -> str:
        lines = []
        for kind in PLURALS:
            for body in self.list(kind):
                name = body["metadata"]["name"]
                lines.append(f"{kind} {name}: {body.get('status', {}).get('phase', '')} {self.condition(kind, name)}")
        lines.sort(key=lambda line: "'True'" in line)
        return "\n".join([*lines[:40], "operator.log:", self.operator_log[-3000:]])

    # Kafka.

    @property
    def kafka(self) -> KafkaConnection:
        if self._kafka is not None and self._kafka.settings.bootstrap_servers != self.bootstrap:
            self.hang_up()
        if self._kafka is None:
            self._kafka = KafkaConnection(ConnectionSettings(self.bootstrap))
        return self._kafka

    def hang_up(self) -> None:
        """Close the Kafka connection; the next use opens another."""
        if self._kafka is not None:
            self.run(self._kafka.close())
            self._kafka = None

    def view(self) -> KafkaView:
        """The whole Kafka cluster as the operator observes it, once all brokers that are online answer."""

        def look() -> KafkaView | None:
            try:
                found = self.run(observe_cluster(self.kafka))
            except KafkaUnavailableError:
                return None
            online = {broker.id for broker in found.brokers.values() if broker.online}
            return found if online and online <= found.described else None

        return self.until("Kafka answers", look, 60)


__all__ = ["API", "LEASE", "ApiError", "World"]
