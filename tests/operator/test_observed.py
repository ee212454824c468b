"""What the operator tells of itself: metrics, probes, lines of its log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.operator.world import World

from ballast_operator import metrics
from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.clock import monotonic
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.logs import CLUSTER, JsonLines, KopfOnce, about
from ballast_operator.model.meta import Key
from ballast_operator.runtime import STUCK_SECONDS, Runtime
from ballast_operator.worker import Requeue, Work, Worker

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (ballast_operator_\w+) \| (gauge|counter|histogram) \| ([\w, ]*)\| (.+) \|$", re.MULTILINE)
pytestmark = [pytest.mark.spec("OPR-06"), pytest.mark.timeout(240)]


def ask(world: World, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{world.probe_port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_the_metrics_are_those_that_the_page_names(ballast_world: World) -> None:
    ballast_world.topic("measured", partitions=1)
    ballast_world.until_ready("KafkaTopic", "measured")
    found = {family.name: family for family in text_string_to_metric_families(ask(ballast_world, "/metrics"))}
    rows = ROW.findall((ROOT / "docs" / "metrics.md").read_text().replace("`", ""))
    told = {name: (each.type, each.documentation) for name, each in found.items() if not name.endswith("_created")}
    assert told == {name.removesuffix("_total"): (kind, meaning) for name, kind, _, meaning in rows}
    for name, _, labels, _ in rows:
        for sample in found[name.removesuffix("_total")].samples:
            assert sample.labels.keys() - {"le"} == set(re.findall(r"\w+", labels))
    counts = {sample.name: 0.0 for family in found.values() for sample in family.samples}
    for family in found.values():
        for sample in family.samples:
            counts[sample.name] += sample.value
    busy = ("reconciled_objects_total", "reconcile_seconds_count", "watch_events_total", "status_writes_total")
    assert all(counts[f"ballast_operator_{name}"] > 0 for name in (*busy, "api_requests_total"))
    assert counts["ballast_operator_leader"] == 1
    assert (ask(ballast_world, "/live"), ask(ballast_world, "/ready")) == ("ok", "leads")


async def test_an_operator_that_only_waits_for_the_lead_has_no_queue() -> None:
    """Of two that run, both hear of everything: their sum would say for ever that objects wait."""
    runtime = Runtime(ApiAccess("http://127.0.0.1:1"))
    runtime._worker(Key("default", "demo")).add(topics=[Key("default", "orders")], reassignments=True, cluster=True)
    assert runtime.depth() == 0
    runtime.leader._renewed_at = monotonic()
    assert runtime.depth() == 3
    await runtime.stop()


async def test_a_cluster_that_was_deleted_is_told_of_to_those_who_miss_its_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An alert missed them for six hours. Those of a cluster that runs elsewhere do not go with its KafkaCluster."""
    runtime, clock = Runtime(ApiAccess("http://127.0.0.1:1")), [1_000.0]
    monkeypatch.setattr(metrics, "monotonic", lambda: clock[0])
    managed: dict[str, object] = {"brokers": 1, "volumes": [{"name": "a", "size": "1Gi"}]}

    def described(name: str, uid: str, spec: dict[str, object]) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "kafka", "uid": uid, "resourceVersion": "7"}, "spec": spec}

    def told() -> dict[str, float]:
        name = "ballast_operator_cluster_deleted"
        found = {each.name: each for each in text_string_to_metric_families(runtime.metrics.text().decode())}[name]
        assert {sample.labels["cluster_namespace"] for sample in found.samples} <= {"kafka"}
        return {sample.labels["cluster_name"]: sample.value for sample in found.samples}

    demo = described("demo", "u1", managed)
    other = described("other", "u2", {"external": {"bootstrapServers": "127.0.0.1:1"}})
    for body in (demo, other):
        runtime.heard("KafkaCluster", body)
    assert told() == {"demo": 0}
    for body in (demo, other):
        runtime.vanished("KafkaCluster", body)
    assert told() == {"demo": 1}
    runtime.heard("KafkaCluster", demo)  # which was under way when it was deleted
    assert told() == {"demo": 1}
    runtime.heard("KafkaCluster", described("demo", "u3", managed))
    assert told() == {"demo": 0}
    runtime.vanished("KafkaCluster", described("demo", "u3", managed))
    clock[0] += 6 * 3600 + 1
    assert told() == {}
    await runtime.stop()


async def test_liveness_notices_a_stuck_loop_and_a_stuck_worker() -> None:
    runtime = Runtime(ApiAccess("http://127.0.0.1:1"))
    assert runtime.alive() is None
    runtime._beat = monotonic() - STUCK_SECONDS - 1
    assert runtime.alive() == "the loop is stuck"
    runtime._beat = monotonic()
    worker = runtime._worker(Key("default", "demo"))
    worker.busy_since = worker.pulse.at = monotonic() - STUCK_SECONDS - 1
    assert runtime.alive() == "the worker of default/demo is stuck"
    assert runtime.oldest_seconds() > STUCK_SECONDS
    await runtime.stop()


class Asks:
    """A cycle whose tasks ask the API server for something, which takes long, and Kafka, where nobody is."""

    def __init__(self, api: KubernetesApi, told: Callable[[], str | None]) -> None:
        self._api = api
        self._told = told
        self.worker: Worker | None = None
        self.said: list[str | None] = []
        self.done = asyncio.Event()

    async def run(self, work: Work) -> Requeue:
        kafka = KafkaConnection(ConnectionSettings("127.0.0.1:1"))
        for ask in (self._api.find("/api/v1"), kafka.send(None)):
            assert self.worker is not None
            self.worker.busy_since = self.worker.pulse.at = monotonic() - STUCK_SECONDS - 1
            self.said.append(self._told())
            await asyncio.gather(asyncio.create_task(ask), return_exceptions=True)
            self.said.append(self._told())
        await kafka.close()
        self.done.set()
        return Requeue()

    async def close(self) -> None:
        pass


async def test_a_look_that_comes_further_is_not_stuck_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand statuses took longer than liveness waits where each request took two seconds: the operator was ended,
    and began again, for ever."""
    monkeypatch.setattr("ballast_operator.apply.kubernetes.FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr("ballast_operator.kafka_client.BOOTSTRAP_TIMEOUT_MS", 100)
    runtime = Runtime(ApiAccess("http://127.0.0.1:1"))
    key = Key("default", "demo")
    cycle = Asks(runtime.api, runtime.alive)
    worker = cycle.worker = Worker(key, cycle, lambda: True, monotonic)
    runtime._workers[key] = (worker, asyncio.create_task(worker.run()))
    worker.add(cluster=True)
    async with asyncio.timeout(60):
        await cycle.done.wait()
    assert cycle.said == ["the worker of default/demo is stuck", None] * 2
    await runtime.stop()


def test_what_kopf_says_again_and_again_is_told_once_in_ten_minutes() -> None:
    """Its six watches said nine hundred lines a minute for as long as an API server answered with errors."""
    once = KopfOnce()

    def told(name: str, seconds: float) -> bool:
        record = logging.LogRecord(name, logging.ERROR, "", 0, "Request attempt #%d/2 failed", (1,), None)
        record.created = seconds
        return once.filter(record)

    assert [told("kopf._cogs.clients.watching", at) for at in (1000.0, 1001.0, 1599.0, 1600.0)] == [
        True,
        False,
        False,
        True,
    ]
    assert told("kopf._core.reactor", 1601.0), "another one says it"
    assert told("ballast_operator.main", 1602.0)
    assert told("ballast_operator.main", 1602.0)


def test_a_log_in_a_file_stays_small_and_nothing_is_lost_at_the_switch(tmp_path: Path) -> None:
    """Also what Python itself says of the end goes to the file that is written now."""
    program = (
        "import logging, sys\n"
        "from ballast_operator.logs import configure_logging\n"
        "configure_logging(False, file=sys.argv[1], file_bytes=1000)\n"
        "for number in range(30):\n    logging.getLogger('x').info('line %d of them, which is not short', number)\n"
        "raise RuntimeError('the end')\n"
    )
    log = tmp_path / "operator.log"
    with log.open("ab") as early:
        subprocess.run([sys.executable, "-c", program, str(log)], stderr=early, check=False)
    before = log.with_name("operator.log.1")
    now, earlier = log.read_text(), before.read_text()
    assert now.endswith("RuntimeError: the end\n")
    assert max(before.stat().st_size, now.index("Traceback")) <= 1000
    numbers = [int(found) for found in re.findall(r"line (\d+) of them", earlier + now)]
    assert numbers == list(range(numbers[0], 30))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["operator.log", "operator.log.1"]


def test_a_line_for_machines_names_the_object_and_the_cluster() -> None:
    record = logging.makeLogRecord({"msg": "changed", "levelname": "INFO", "name": "x", **about("KafkaTopic", "ns/t")})
    token = CLUSTER.set("ns/demo")
    try:
        told = json.loads(JsonLines().format(record))
    finally:
        CLUSTER.reset(token)
    assert {key: told[key] for key in ("level", "message", "object", "cluster")} == {
        "level": "INFO", "message": "changed", "object": "KafkaTopic ns/t", "cluster": "ns/demo",
    }  # fmt: skip
