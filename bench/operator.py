"""`./ballast bench operator`: KafkaTopics from the first of 16 parallel creates to the last Ready, on the embedded API.

The embedded Kubernetes, the operator and three brokers run as they do in `./ballast up`, each in a process of its own.
Told: topics per second, the operator's memory and requests, what it writes when nothing happens, and how long an
operator that starts needs until it is quiet. CPU seconds per process say which of them the limit is.
"""

# ruff: noqa: A005  (named as the command is; nobody imports it by another path)
from __future__ import annotations

import argparse
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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml
from bench.servers import ROOT, TICKS_PER_SECOND, ServerFailed, free_port

API = "/apis/ballast.dev/v1alpha1/namespaces/default"
CREATORS = 16
READY_LIMIT_S = 900
QUIET_S = 70.0
QUICK_QUIET_S = 10.0
POLL_S = 0.1
TOPICS_PER_SECOND_GOAL = 200
MEMORY_GOAL_MB = 300
REQUESTS_GOAL = 3.0
RESTART_GOAL_S = 30.0


@dataclass(frozen=True)
class Shape:
    topics: int
    partitions: int
    replicas: int

    @property
    def name(self) -> str:
        return f"{self.topics}x{self.partitions}x{self.replicas}"


SHAPES = (Shape(1_000, 12, 3), Shape(10_000, 1, 1))
QUICK = (Shape(200, 12, 3), Shape(1_000, 1, 1))


@dataclass
class Row:
    """What one shape measured."""

    shape: str
    seconds: float = 0.0
    created_seconds: float = 0.0
    topics_per_second: float = 0.0
    requests_per_topic: float = 0.0
    operator_mb: float = 0.0
    quiet_seconds: float = 0.0
    quiet_writes: float = 0.0
    restart_seconds: float = 0.0
    restart_mb: float = 0.0
    restart_writes: float = 0.0
    cpu_seconds: Mapping[str, float] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", metavar="TOPICSxPARTITIONSxREPLICAS", help="only this one, such as 1000x12x3")


def run(args: argparse.Namespace) -> int:
    # Ended from outside it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    print(HEADER)
    for shape in _shapes(args):
        row = asyncio.run(measure(shape, QUICK_QUIET_S if args.quick else QUIET_S))
        print(_line(row), flush=True)
        rows.append(row)
    missed = [f"{row.shape}: {goal}" for row in rows for goal in missed_goals(row)]
    for line in missed:
        print(f"  missed  {line}")
    if args.json:
        print(json.dumps({"bench": "operator", "missed": missed, "cases": [asdict(row) for row in rows]}))
    return 0


def _shapes(args: argparse.Namespace) -> tuple[Shape, ...]:
    if args.shape:
        return (Shape(*(int(text) for text in args.shape.split("x"))),)
    return QUICK if args.quick else SHAPES


def missed_goals(row: Row) -> list[str]:
    goals = {
        f"{row.topics_per_second:.0f} topics/s, goal {TOPICS_PER_SECOND_GOAL}": row.topics_per_second
        >= TOPICS_PER_SECOND_GOAL,
        f"{row.operator_mb:.0f} MB, goal {MEMORY_GOAL_MB}": max(row.operator_mb, row.restart_mb) <= MEMORY_GOAL_MB,
        f"{row.requests_per_topic:.2f} requests per topic, goal {REQUESTS_GOAL}": row.requests_per_topic
        <= REQUESTS_GOAL,
        f"{row.quiet_writes:.0f} writes in quiet": row.quiet_writes == 0,
        f"quiet {row.restart_seconds:.1f} s after a start, goal {RESTART_GOAL_S}": row.restart_seconds
        <= RESTART_GOAL_S,
    }
    return [goal for goal, met in goals.items() if not met]


async def measure(shape: Shape, quiet_s: float) -> Row:
    row = Row(shape.name)
    async with Bed() as bed:
        await bed.start_operator()
        await bed.start_cluster()
        await bed.until_quiet()
        before, cpu_before = await bed.metrics(), bed.cpu()
        row.created_seconds, row.seconds = await bed.create(shape)
        await bed.until_quiet()
        after, cpu_after = await bed.metrics(), bed.cpu()
        row.topics_per_second = shape.topics / row.seconds
        row.requests_per_topic = (requests(after) - requests(before)) / shape.topics
        row.operator_mb = bed.operator_mb()
        row.cpu_seconds = {name: cpu_after[name] - cpu_before[name] for name in cpu_after}
        await bed.until_told(shape)
        told = await bed.metrics()
        await asyncio.sleep(quiet_s)
        row.quiet_seconds = quiet_s
        row.quiet_writes = writes(await bed.metrics()) - writes(told)
        bed.kill_operator()
        begun = time.perf_counter()
        await bed.start_operator()
        await bed.until_quiet(shape.topics)
        row.restart_seconds = time.perf_counter() - begun
        row.restart_mb = bed.operator_mb()
        row.restart_writes = writes(await bed.metrics())
    return row


def requests(metrics: Mapping[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("ballast_operator_api_requests_total"))


def writes(metrics: Mapping[str, float]) -> float:
    return requests(metrics) - metrics.get('ballast_operator_api_requests_total{verb="GET"}', 0.0)


class Bed:
    """The processes of one measurement. Use as a context manager."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
        self._kubernetes: subprocess.Popen[str] | None = None
        self._operator: subprocess.Popen[str] | None = None
        self._probe = 0
        self._session: aiohttp.ClientSession | None = None
        self._server = ""

    async def __aenter__(self) -> Bed:
        try:
            await self._start_kubernetes()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        for process in (self._operator, self._kubernetes):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.to_thread(process.wait, 30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for process in (self._operator, self._kubernetes):
            if process is not None and process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- processes ------------------------------------------------------------------------------------------------
    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT / part) for part in ("broker-image", "operator", "spark")]
        kubeconfig = str(self._folder / "data" / "kubeconfig")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "KUBECONFIG": kubeconfig}

    async def _start_kubernetes(self) -> None:
        self._kubernetes = self._spawn("kubernetes.log", "ballast_local", "--data", str(self._folder / "data"))
        assert self._kubernetes.stdout is not None
        lines = [await asyncio.to_thread(self._kubernetes.stdout.readline) for _ in range(2)]
        if not lines[1]:
            raise ServerFailed(f"the embedded API did not start:\n{self._tail('kubernetes.log')}")
        config = json.loads((self._folder / "data" / "kubeconfig").read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        connector = aiohttp.TCPConnector(limit=CREATORS + 2, ssl=False)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=1 << 22)
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in ("kafkaclusters", "kafkatopics", "reassignments"):
            await self._post(definitions, yaml.safe_load((ROOT / "crds" / f"{file}.yaml").read_text()))

    async def start_operator(self) -> None:
        self._probe = free_port()
        self._operator = self._spawn(
            "operator.log", "ballast_cli", "operator", "--namespace", "default", "--probe-port", str(self._probe)
        )

    def _spawn(self, log: str, *module: str) -> subprocess.Popen[str]:
        with (self._folder / log).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", *module],
                stdout=subprocess.PIPE, stderr=file, env=self._environment(), text=True,
            )  # fmt: skip

    def kill_operator(self) -> None:
        assert self._operator is not None
        assert self._operator.stdout is not None
        self._operator.kill()
        self._operator.wait()
        self._operator.stdout.close()

    def _tail(self, name: str) -> str:
        return "\n".join((self._folder / name).read_text(errors="replace").splitlines()[-20:])

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        assert self._kubernetes is not None
        assert self._operator is not None
        found = {"kubernetes": _cpu(self._kubernetes.pid), "operator": _cpu(self._operator.pid)}
        brokers = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdecimal() and str(self._folder) in _environ(path) and b"broker" in _command(path)
        ]
        found["brokers"] = sum(_cpu(pid) for pid in brokers)
        return found

    def operator_mb(self) -> float:
        """The most memory that the operator has had."""
        assert self._operator is not None
        status = Path(f"/proc/{self._operator.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    # -- objects --------------------------------------------------------------------------------------------------
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

    async def start_cluster(self) -> None:
        body = yaml.safe_load((ROOT / "manifests" / "examples" / "cluster.yaml").read_text())
        await self._post(f"{API}/kafkaclusters", body)
        deadline = time.perf_counter() + READY_LIMIT_S
        while not _ready(await self._get(f"{API}/kafkaclusters/{body['metadata']['name']}")):
            if time.perf_counter() > deadline:
                raise ServerFailed(f"the cluster is not ready:\n{self._tail('operator.log')}")
            await asyncio.sleep(POLL_S)

    async def until_told(self, shape: Shape) -> None:
        """The KafkaCluster's status counts all these replicas: it is written once per resync while they change."""
        deadline = time.perf_counter() + READY_LIMIT_S
        while True:
            status = (await self._get(f"{API}/kafkaclusters/demo"))["status"]
            replicas = sum(broker.get("replicas", 0) for broker in status["brokers"])
            if replicas >= shape.topics * shape.partitions * shape.replicas:
                return
            if time.perf_counter() > deadline:
                raise ServerFailed(f"the status tells of {replicas} replicas:\n{self._tail('operator.log')}")
            await asyncio.sleep(POLL_S)

    async def create(self, shape: Shape) -> tuple[float, float]:
        """(seconds to the last create's answer, seconds to the last Ready), from the first create."""
        listed = await self._get(f"{API}/kafkatopics?limit=1")
        watching = asyncio.create_task(self._watch(listed["metadata"]["resourceVersion"], shape.topics))
        numbers = iter(range(shape.topics))
        begun = time.perf_counter()
        await asyncio.gather(*(self._creator(numbers, shape) for _ in range(CREATORS)))
        created = time.perf_counter() - begun
        async with asyncio.timeout(READY_LIMIT_S):
            await watching
        return created, time.perf_counter() - begun

    async def _creator(self, numbers: Any, shape: Shape) -> None:
        for number in numbers:
            spec = {"clusterRef": {"name": "demo"}, "partitions": shape.partitions, "replicas": shape.replicas}
            body = {
                "apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaTopic",
                "metadata": {"name": f"topic-{number:05d}"}, "spec": spec,
            }  # fmt: skip
            await self._post(f"{API}/kafkatopics", body)

    async def _watch(self, version: str, count: int) -> None:
        """Until so many topics are Ready."""
        assert self._session is not None
        ready: set[str] = set()
        url = f"{self._server}{API}/kafkatopics?watch=1&resourceVersion={version}"
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=READY_LIMIT_S)) as answer:
            async for line in answer.content:
                if b'"Ready","status":"True"' in line or _ready(json.loads(line)["object"]):
                    ready.add(json.loads(line)["object"]["metadata"]["name"])
                    if len(ready) == count:
                        return

    # -- the operator's own figures -------------------------------------------------------------------------------
    async def metrics(self) -> dict[str, float]:
        assert self._session is not None
        async with self._session.get(f"http://127.0.0.1:{self._probe}/metrics") as answer:
            return read_metrics(await answer.text())

    async def until_quiet(self, objects: int = 0) -> None:
        """It leads, has looked at so many topics, and nothing waits."""
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
                raise ServerFailed(f"the operator does not come to rest:\n{self._tail('operator.log')}")
            await asyncio.sleep(POLL_S)


def read_metrics(text: str) -> dict[str, float]:
    rows = (re.match(r"(\S+) (\S+)$", line) for line in text.splitlines() if not line.startswith("#"))
    return {row[1]: float(row[2]) for row in rows if row}


def _ready(body: Mapping[str, Any]) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _environ(process: Path) -> str:
    """What tells whose process it is: where it works and what it was given."""
    try:
        return os.readlink(process / "cwd") + (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


HEADER = (
    f"{'shape':>12} {'seconds':>8} {'topics/s':>8} {'requests':>8} {'MB':>5} {'quiet writes':>14} "
    f"{'restart':>9} {'MB':>5} {'CPU s: operator':>15} {'Kubernetes':>10} {'brokers':>8}"
)


def _line(row: Row) -> str:
    cpu = row.cpu_seconds or {}
    return (
        f"{row.shape:>12} {row.seconds:>8.1f} {row.topics_per_second:>8.1f} {row.requests_per_topic:>8.2f} "
        f"{row.operator_mb:>5.0f} {f'{row.quiet_writes:.0f} in {row.quiet_seconds:.0f} s':>14} "
        f"{row.restart_seconds:>7.1f} s {row.restart_mb:>5.0f} {cpu.get('operator', 0):>15.1f} "
        f"{cpu.get('kubernetes', 0):>10.1f} {cpu.get('brokers', 0):>8.1f}"
    )


__all__ = ["Shape", "add_arguments", "measure", "run"]
