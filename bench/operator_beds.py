"""The test beds of `./ballast bench operator`: Kubernetes, the operator and three brokers, and what each of them uses.

`Embedded` is what `./ballast up` runs, processes of this machine; `RealNode` a real Kubernetes on this machine, where
operator and brokers are pods. Both take the same requests and give the same kinds of figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from bench.servers import ROOT, ServerFailed, cpu_seconds, free_port
from e2e.kubernetes.providers import Host, ProviderError, running
from e2e.kubernetes.story import ensure_cluster, ensure_operator
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World

from ballast_cli.kube_api import KubeApi
from ballast_local.workloads import launch

CREATORS = 16
READY_LIMIT_S = 900
POLL_S = 0.1
LOG_LINES = 20


@dataclass(frozen=True)
class Shape:
    topics: int
    partitions: int
    replicas: int

    @property
    def name(self) -> str:
        return f"{self.topics}x{self.partitions}x{self.replicas}"


class Bed(ABC):
    """Use as a context manager: Kubernetes runs within it, and nothing is left behind."""

    namespace: str

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._server = ""

    async def __aenter__(self) -> Bed:
        try:
            api = KubeApi.found(str(await self._start_kubernetes()))
            self._server = api.server.geturl()
            connector = aiohttp.TCPConnector(limit=CREATORS + 2, ssl=api.tls or False)
            self._session = aiohttp.ClientSession(headers=api.headers, connector=connector, read_bufsize=1 << 22)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self._stack.close)

    # -- what differs ---------------------------------------------------------------------------------------------
    @abstractmethod
    async def _start_kubernetes(self) -> Path:
        """The kubeconfig of a cluster admin; `_stack` ends what was started."""

    @abstractmethod
    async def start_operator(self) -> None: ...

    @abstractmethod
    async def kill_operator(self) -> None:
        """Kill it without grace; `start_operator` starts another one."""

    @abstractmethod
    async def start_cluster(self) -> None: ...

    @abstractmethod
    async def _read_metrics(self) -> str:
        """The operator's metrics, as they are served."""

    @abstractmethod
    def _processes(self) -> Iterator[tuple[str, int]]:
        """(part: kubernetes, operator or brokers; pid)."""

    @abstractmethod
    def _said(self) -> str:
        """What to show of the operator if something fails."""

    # -- processes ------------------------------------------------------------------------------------------------
    def cpu(self) -> dict[str, float]:
        """CPU seconds of each part so far."""
        found = dict.fromkeys(("kubernetes", "operator", "brokers"), 0.0)
        for part, pid in self._processes():
            found[part] += _cpu(pid)
        return found

    def operator_mb(self) -> float:
        """The operator's peak memory."""
        return max(_peak_mb(pid) for part, pid in self._processes() if part == "operator")

    # -- objects --------------------------------------------------------------------------------------------------
    def _topics(self) -> str:
        return f"/apis/ballast.dev/v1alpha1/namespaces/{self.namespace}/kafkatopics"

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        assert self._session is not None
        async with self._session.post(self._server + path, json=body) as answer:
            if answer.status >= 300:
                raise ServerFailed(f"POST {path}: {answer.status} {await answer.text()}")
            await answer.read()

    async def _get(self, path: str) -> dict[str, Any]:
        assert self._session is not None
        async with self._session.get(self._server + path) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def _cluster(self) -> dict[str, Any]:
        return await self._get(f"/apis/ballast.dev/v1alpha1/namespaces/{self.namespace}/kafkaclusters/{CLUSTER}")

    async def until_told(self, shape: Shape) -> None:
        """Wait until the KafkaCluster's status counts all these replicas: while they change, each resync writes it."""
        deadline = time.perf_counter() + READY_LIMIT_S
        while True:
            status = (await self._cluster())["status"]
            replicas = sum(broker.get("replicas", 0) for broker in status["brokers"])
            if replicas >= shape.topics * shape.partitions * shape.replicas:
                return
            if time.perf_counter() > deadline:
                raise ServerFailed(f"the status tells of {replicas} replicas:\n{self._said()}")
            await asyncio.sleep(POLL_S)

    async def create(self, shape: Shape) -> tuple[float, float]:
        """(seconds to the last create's answer, seconds to the last Ready), from the first create."""
        listed = await self._get(f"{self._topics()}?limit=1")
        watching = asyncio.create_task(self._watch(listed["metadata"]["resourceVersion"], shape.topics))
        numbers = iter(range(shape.topics))
        begun = time.perf_counter()
        await asyncio.gather(*(self._creator(numbers, shape) for _ in range(CREATORS)))
        created = time.perf_counter() - begun
        async with asyncio.timeout(READY_LIMIT_S):
            await watching
        return created, time.perf_counter() - begun

    async def _creator(self, numbers: Iterator[int], shape: Shape) -> None:
        for number in numbers:
            spec = {"clusterRef": {"name": CLUSTER}, "partitions": shape.partitions, "replicas": shape.replicas}
            body = {
                "apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaTopic",
                "metadata": {"name": f"topic-{number:05d}"}, "spec": spec,
            }  # fmt: skip
            await self._post(self._topics(), body)

    async def _watch(self, version: str, count: int) -> None:
        """Wait until `count` topics are Ready."""
        assert self._session is not None
        ready: set[str] = set()
        url = f"{self._server}{self._topics()}?watch=1&resourceVersion={version}"
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=READY_LIMIT_S)) as answer:
            async for line in answer.content:
                body = json.loads(line)["object"]
                if is_ready(body):
                    ready.add(body["metadata"]["name"])
                    if len(ready) == count:
                        return

    # -- the operator's own figures -------------------------------------------------------------------------------
    async def metrics(self) -> dict[str, float]:
        rows = (
            re.match(r"(\S+) (\S+)$", line)
            for line in (await self._read_metrics()).splitlines()
            if not line.startswith("#")
        )
        return {row[1]: float(row[2]) for row in rows if row}

    async def _text(self, url: str) -> str:
        assert self._session is not None
        async with self._session.get(url) as answer:
            return await answer.text()

    async def until_quiet(self, objects: int = 0) -> None:
        """Wait until the operator leads, has reconciled `objects` topics, and nothing is queued."""
        deadline = time.perf_counter() + READY_LIMIT_S
        while True:
            try:
                found = await self.metrics()
            except aiohttp.ClientError:
                found = {}
            looked = found.get('ballast_operator_reconciled_objects_total{kind="KafkaTopic"}', 0)
            idle = found.get("ballast_operator_queue_depth", 1) == found.get(
                "ballast_operator_oldest_reconcile_seconds", 1
            )
            if found.get("ballast_operator_leader") and idle and looked >= objects:
                return
            if time.perf_counter() > deadline:
                raise ServerFailed(f"the operator does not come to rest:\n{self._said()}")
            await asyncio.sleep(POLL_S)


class Embedded(Bed):
    namespace = "default"

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._kubernetes: subprocess.Popen[str] | None = None
        self._operator: subprocess.Popen[str] | None = None
        self._probe = 0

    async def __aenter__(self) -> Bed:
        await super().__aenter__()
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in ("kafkaclusters", "kafkatopics", "reassignments"):
            await self._post(definitions, yaml.safe_load((ROOT / "crds" / f"{file}.yaml").read_text()))
        return self

    async def _start_kubernetes(self) -> Path:
        self._kubernetes = self._spawn("kubernetes.log", "ballast_local", "--data", str(self._folder / "data"))
        assert self._kubernetes.stdout is not None
        lines = [await asyncio.to_thread(self._kubernetes.stdout.readline) for _ in range(2)]
        if not lines[1]:
            raise ServerFailed(f"the embedded API did not start:\n{self._tail('kubernetes.log')}")
        return self._folder / "data" / "kubeconfig"

    async def start_operator(self) -> None:
        self._probe = free_port()
        self._operator = self._spawn(
            "operator.log", "ballast_cli", "operator", "--namespace", "default", "--probe-port", str(self._probe)
        )

    def _spawn(self, log: str, *module: str) -> subprocess.Popen[str]:
        paths = [str(ROOT / part) for part in ("broker-image", "operator", "spark")]
        kubeconfig = str(self._folder / "data" / "kubeconfig")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "KUBECONFIG": kubeconfig}
        with (self._folder / log).open("ab") as file:
            process = subprocess.Popen(
                launch.under(sys.executable, "-m", *module),
                stdout=subprocess.PIPE, stderr=file, env=environment, text=True,
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    async def kill_operator(self) -> None:
        assert self._operator is not None
        self._operator.kill()
        self._operator.wait()

    async def start_cluster(self) -> None:
        body = yaml.safe_load((ROOT / "manifests" / "examples" / "cluster.yaml").read_text())
        await self._post("/apis/ballast.dev/v1alpha1/namespaces/default/kafkaclusters", body)
        deadline = time.perf_counter() + READY_LIMIT_S
        while not is_ready(await self._cluster()):
            if time.perf_counter() > deadline:
                raise ServerFailed(f"the cluster is not ready:\n{self._said()}")
            await asyncio.sleep(POLL_S)

    async def _read_metrics(self) -> str:
        return await self._text(f"http://127.0.0.1:{self._probe}/metrics")

    def _processes(self) -> Iterator[tuple[str, int]]:
        assert self._kubernetes is not None
        assert self._operator is not None
        yield "kubernetes", self._kubernetes.pid
        yield "operator", self._operator.pid
        for pid in _pids():
            if str(self._folder) in _place(pid) and b"broker" in _command(pid):
                yield "brokers", pid

    def _said(self) -> str:
        return self._tail("operator.log")

    def _tail(self, name: str) -> str:
        return "\n".join((self._folder / name).read_text(errors="replace").splitlines()[-LOG_LINES:])


class RealNode(Bed):
    """The node and the story of the e2e scenarios, with one operator."""

    namespace = NAMESPACE

    def __init__(self) -> None:
        super().__init__()
        self._provider = Host(lambda text: print(f"  {text}", file=sys.stderr, flush=True))
        self._world: World

    async def _start_kubernetes(self) -> Path:
        try:
            await asyncio.to_thread(self._stack.enter_context, running(self._provider))
        except ProviderError as error:
            raise ServerFailed(str(error)) from error
        self._world = World(self._provider)
        return self._provider.kubeconfig

    async def start_operator(self) -> None:
        if await asyncio.to_thread(self._world.get, "deployment", "ballast-operator"):
            return  # Kubernetes itself starts another one
        await asyncio.to_thread(ensure_operator, self._world)
        await asyncio.to_thread(self._world.kubectl, "scale", "deployment/ballast-operator", "--replicas=1")

    async def kill_operator(self) -> None:
        names = await asyncio.to_thread(self._operator_pods)
        await asyncio.to_thread(self._world.kubectl, "delete", "pod", *names, "--force", "--grace-period=0")

    async def start_cluster(self) -> None:
        await asyncio.to_thread(ensure_cluster, self._world)

    def _operator_pods(self) -> list[str]:
        pods = self._world.all("pods", "app.kubernetes.io/name=ballast-operator")
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def _read_metrics(self) -> str:
        """From the only operator pod, through the API server."""
        names = await asyncio.to_thread(self._operator_pods)
        if len(names) != 1:
            return ""
        return await self._text(f"{self._server}/api/v1/namespaces/{NAMESPACE}/pods/{names[0]}:8080/proxy/metrics")

    def _processes(self) -> Iterator[tuple[str, int]]:
        for pid in _descendants(self._provider.node.pid):
            command = _command(pid)
            part = "brokers" if b".properties" in command else "operator" if b"--probe-port" in command else ""
            yield part or "kubernetes", pid

    def _said(self) -> str:
        return self._world.evidence()


BEDS: dict[str, type[Bed]] = {"embedded": Embedded, "host": RealNode}


def is_ready(body: Mapping[str, Any]) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _descendants(root: int) -> set[int]:
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid))}
    found, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the program's name; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu(pid: int) -> float:
    try:
        return cpu_seconds(pid)
    except OSError:  # it has ended
        return 0.0


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _place(pid: int) -> str:
    """What tells whose process it is: its working directory and its command line."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") + _command(pid).decode(errors="replace")
    except OSError:
        return ""
