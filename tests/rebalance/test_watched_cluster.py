"""A real cluster, real producers, a real Prometheus, the job as the operator runs it, approval, level disks.

One cluster lives through the whole story; each test is a chapter and leaves the cluster level.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.planner_optimum import find_optimum
from tests.docs.commands import to_type
from tests.docs.up import installed
from tests.monitoring.test_monitoring import MONITORING, as_prometheus_is_asked, queries
from tests.operator.world import World
from tests.rebalance.real_prometheus import Targets, prometheus_of, wait_for

from ballast_operator.apply.kubernetes import path_of
from ballast_operator.model.kafka import KafkaView
from ballast_planner import Broker, ClusterLoad, Directory, PlanOptions, Replica
from ballast_rebalance.prometheus_http import Endpoint

ROOT = MONITORING.parents[1]
SOURCES = ("operator", "spark", "broker-image")
pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.timeout(1_200),
]
MIB = 1 << 20
CAPACITY = 64 * MIB
TOPIC = "events"
PARTITIONS = 27
THRESHOLD = 0.15
# A busy machine takes its time; who waits here waits for a process, not for a moment.
SPARK_SECONDS = 500.0
SMALL_SPARK = ["--memory", "512m", "--horizon", "0", "--max-age", "10m"]


class Watched:
    """The world, its Prometheus, and what the tests of this module do with them."""

    def __init__(self, world: World, endpoint: Endpoint, targets: Targets, operator: str) -> None:
        self.world, self.endpoint, self.targets, self.operator = world, endpoint, targets, operator
        self.brokers = broker_addresses(world)

    def scrape(self, *more: str, without: int | None = None) -> None:
        brokers = [address for index, address in enumerate(self.brokers) if index != without]
        self.targets.set({"demo": brokers, "operator": [self.operator], **({"rebalance": more} if more else {})})

    def job(self, **more: Any) -> dict[str, Any]:
        return {"prometheus": self.endpoint.url, "clusterLabel": "job=demo", "directoryCapacity": "64Mi", **more}

    def rebalance(self, job: dict[str, Any] | None, rate: str = "24Mi") -> None:
        throttle = {"interBroker": rate, "intraBroker": rate}
        apply_cluster(self.world, {"throttle": throttle, **({"job": job} if job else {})})

    def balanced(self) -> tuple[str, str, str]:
        body = self.world.get("KafkaCluster", "demo") or {}
        for condition in body.get("status", {}).get("conditions", ()):
            if condition["type"] == "Balanced":
                return condition["status"], condition["reason"], condition["message"]
        return ("", "", "")

    def until_balanced_says(self, *reasons: str) -> tuple[str, str, str]:
        def said() -> tuple[str, str, str] | None:
            found = self.balanced()
            return found if found[1] in reasons else None

        return self.world.until(f"Balanced says {reasons}", said, SPARK_SECONDS)

    def events(self, reason: str) -> list[dict[str, Any]]:
        found = self.world.objects("v1", "events")
        return [e for e in found if e["reason"] == reason and e["involvedObject"]["kind"] == "KafkaCluster"]

    def run_job(self) -> str:
        """What `kubectl create job --from=cronjob/demo-rebalance` does; how it ended."""
        world = self.world
        template = self.cron_job()["spec"]["jobTemplate"]
        name = f"look-{len(world.objects('batch/v1', 'jobs'))}"
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": template["spec"]}
        world.api("create", path_of("batch/v1", "jobs", "default"), body)

        def ended() -> str:
            job = world.api("get", path_of("batch/v1", "jobs", "default", name))
            conditions = job.get("status", {}).get("conditions") or ()
            return next((c["type"] for c in conditions if c["status"] == "True"), "")

        return world.until(f"Job {name} has ended", ended, SPARK_SECONDS)

    def cron_job(self) -> dict[str, Any]:
        path = path_of("batch/v1", "cronjobs", "default", "demo-rebalance")
        return self.world.until("there is a CronJob", lambda: self.world.api("find", path))

    def proposal(self) -> dict[str, Any]:
        def waiting() -> list[dict[str, Any]]:
            found = self.world.list("Reassignment")
            return [body for body in found if body.get("status", {}).get("phase") == "AwaitingApproval"]

        return self.world.until("a proposal waits", waiting, SPARK_SECONDS)[0]

    def approve(self, proposal: dict[str, Any]) -> None:
        name = proposal["metadata"]["name"]
        self.world.patch("Reassignment", name, {"spec": {"approvedPlan": proposal["status"]["plan"]["hash"]}})
        self.world.until_phase(name, "Succeeded", seconds=SPARK_SECONDS)


def apply_cluster(world: World, rebalance: dict[str, Any] | None = None) -> None:
    volumes = [{"name": f"disk-{index}", "size": "64Mi"} for index in range(3)]
    config = {"log.segment.bytes": "2097152", "group.initial.rebalance.delay.ms": "0"}
    spec = {"brokers": 3, "volumes": volumes, "config": config, "resyncSeconds": 5}
    world.apply("KafkaCluster", "demo", spec | ({"rebalance": rebalance} if rebalance else {}))


def broker_addresses(world: World) -> list[str]:
    """Where each broker serves /metrics, by what its pod says."""
    found = world.objects("v1", "pods", "ballast.dev/cluster=demo,ballast.dev/role=broker")
    found.sort(key=lambda pod: pod["metadata"]["name"])
    ports = [{p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]} for pod in found]
    return [f"{pod['status']['podIP']}:{port['metrics']}" for pod, port in zip(found, ports, strict=True)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with World(tmp_path_factory.mktemp("world")) as world:
        apply_cluster(world)
        world.until_ready("KafkaCluster", "demo", 120)
        world.bootstrap = (world.get("KafkaCluster", "demo") or {})["status"]["bootstrapServers"]
        world.topic(TOPIC, partitions=PARTITIONS, replicas=1)
        world.until_ready("KafkaTopic", TOPIC)
        jobs = {"demo": broker_addresses(world), "operator": [f"127.0.0.1:{world.probe_port}"]}
        rules = MONITORING / "rules.yaml"
        with prometheus_of(tmp_path_factory.mktemp("prometheus"), jobs, rules=rules) as (endpoint, targets):
            yield Watched(world, endpoint, targets, f"127.0.0.1:{world.probe_port}")


def produce(watched: Watched, sizes: dict[int, int]) -> None:
    """So many bytes more into each partition, by an ordinary producer; then the metrics say so, too."""
    from kafka import KafkaProducer

    value = os.urandom(100_000)
    producer = KafkaProducer(bootstrap_servers=watched.world.bootstrap.split(","), acks="all", batch_size=1 << 18)
    try:
        for partition, size in sizes.items():
            for _ in range(max(1, size // len(value))):
                producer.send(TOPIC, value, partition=partition)
        producer.flush()
    finally:
        producer.close()
    held = sum(log.size_bytes for log in watched.world.view().logs.values())
    wait_for(lambda: watched.endpoint.scalar('sum(ballast_replica_size_bytes{job="demo"})') == held)


def skew(watched: Watched, heavy: int) -> None:
    """Much data into one volume of each broker, twice as much on broker 0: `heavy` for each of the three partitions
    that a volume has by rights, however many there are since something was moved.

    No two partitions are alike: the search of the optimum would try all ways to exchange them.
    """
    logs = {replica: log for replica, log in sorted(watched.world.view().logs.items()) if replica.topic == TOPIC}
    counts = Counter((replica.broker, log.path) for replica, log in logs.items())
    favoured = {place[0]: place for place, _ in reversed(counts.most_common())}
    sizes = {}
    for replica, log in logs.items():
        place = (replica.broker, log.path)
        large = 3 * heavy * (2 if replica.broker == 0 else 1) // counts[place]
        size = large if place == favoured[replica.broker] else MIB // 5
        sizes[replica.partition] = size + replica.partition * 70_000
    produce(watched, sizes)


def fills(view: KafkaView) -> list[float]:
    held = {(where.broker, where.path): 0 for where in view.directories}
    for replica, log in view.logs.items():
        assert log.path is not None
        held[replica.broker, log.path] += log.size_bytes
    return [size / CAPACITY for size in held.values()]


def settled(watched: Watched, before: KafkaView) -> KafkaView:
    """What there is, nothing of it twice: a broker deletes what it gives away a moment after others know of that."""

    def found() -> KafkaView | None:
        view = watched.world.view()
        return view if sum(fills(view)) == pytest.approx(sum(fills(before))) else None

    return watched.world.until("what was moved is gone where it was", found)


def load_of(view: KafkaView) -> ClusterLoad:
    """The same cluster for the search of the optimum, which shares nothing with the job."""
    used: dict[tuple[int, str], int] = {(where.broker, where.path): 0 for where in view.directories}
    replicas = []
    for replica, log in view.logs.items():
        assert log.path is not None
        used[replica.broker, log.path] += log.size_bytes
        order = view.topics[replica.topic].partitions[replica.partition].replicas
        position = order.index(replica.broker)
        replicas.append(
            Replica(replica.topic, replica.partition, replica.broker, log.path, log.size_bytes, position == 0, position)
        )
    directories = [Directory(broker, path, CAPACITY, size) for (broker, path), size in used.items()]
    return ClusterLoad.from_rows([Broker(broker) for broker in view.brokers], directories, replicas)


def moved_bytes(before: KafkaView, after: KafkaView) -> int:
    """Of replicas that are where they were not."""
    places = {(replica, log.path) for replica, log in before.logs.items()}
    return sum(log.size_bytes for replica, log in after.logs.items() if (replica, log.path) not in places)


def optimum(view: KafkaView) -> int:
    found = find_optimum(load_of(view), PlanOptions())
    assert found.proven
    return found.total


@pytest.mark.spec("REB-01", "REB-02", "REB-03", "REB-08", "OPR-32")
def test_a_cron_job_finds_a_skew_and_its_approved_proposal_levels_the_disks(watched: Watched) -> None:
    skew(watched, 4 * MIB)
    before = watched.world.view()
    assert max(fills(before)) - min(fills(before)) > 2 * THRESHOLD
    watched.rebalance(watched.job(schedule="0 0 1 1 *", args=SMALL_SPARK))
    watched.cron_job()
    watched.until_balanced_says("NotLookedYet")
    assert watched.run_job() == "Complete"
    assert watched.until_balanced_says("Proposed")[0] == "False"
    proposal = watched.proposal()
    assert proposal["spec"]["approval"] == "Required"
    assert moved_bytes(before, watched.world.view()) == 0, "nothing moves before it is approved"
    watched.approve(proposal)
    after = settled(watched, before)
    assert max(fills(after)) - min(fills(after)) < THRESHOLD
    assert moved_bytes(before, after) <= 1.1 * optimum(before)


@pytest.mark.spec("REB-02", "REB-08")
def test_partial_missing_and_stale_metrics_are_told_by_the_cluster(watched: Watched) -> None:
    """By the same steps as the job's process takes, without starting one for each."""
    from types import SimpleNamespace

    from ballast_rebalance.command import report_outcome
    from ballast_rebalance.job import JobOptions, run_once
    from ballast_rebalance.kubernetes_store import KubernetesStore
    from ballast_rebalance.metrics_source import MetricsOptions
    from ballast_rebalance.proposal import ProposalOptions

    store = KubernetesStore("default", str(watched.world._stack.kubeconfig))
    # What refuses here refuses before anything is read through Spark.
    no_spark: Any = SimpleNamespace()

    def look(label: tuple[str, str] = ("job", "demo"), **more: Any) -> None:
        metrics = MetricsOptions(watched.endpoint.url, cluster_labels=(label,), **more)
        report_outcome(run_once(no_spark, JobOptions(proposal=ProposalOptions("demo"), metrics=metrics)), "demo", store)

    try:
        watched.scrape(without=1)
        wait_for(lambda: watched.endpoint.scalar("count(ballast_broker_info)") == 2)
        look()
        assert watched.until_balanced_says("MetricsPartial")[::2] == (
            "Unknown", "brokers that were scraped within the last hour are missing: 1; bring them back, or unregister "
            "those that are gone for good",
        )  # fmt: skip
        watched.scrape()
        wait_for(lambda: watched.endpoint.scalar("count(ballast_broker_info)") == 3)
        look(("job", "other"))
        assert "are the brokers scraped?" in watched.until_balanced_says("MetricsMissing")[2]
        look(max_age_s=0.0)
        assert "old, more than" in watched.until_balanced_says("MetricsStale")[2]
    finally:
        watched.scrape()
        store.close()
    for reason in ("MetricsPartial", "MetricsMissing", "MetricsStale"):
        found = watched.world.until(f"an Event says {reason}", partial(watched.events, reason))
        assert found[0]["type"] == "Warning"
    assert watched.world.condition("KafkaCluster", "demo")[0] == "True", "the cluster itself is well"


@pytest.mark.spec("REB-01", "REB-02", "REB-08")
def test_a_watching_job_finds_the_next_skew(watched: Watched) -> None:
    skew(watched, 3 * MIB)
    before = watched.world.view()
    assert max(fills(before)) - min(fills(before)) > THRESHOLD
    # So slow that copies are seen in the making: a panel shows them, and they are there only then.
    watched.rebalance(watched.job(run="Watch", args=[*SMALL_SPARK, "--interval", "5s"]), rate="2Mi")
    cron = path_of("batch/v1", "cronjobs", "default", "demo-rebalance")
    watched.world.until("the CronJob is gone", lambda: watched.world.api("find", cron) is None)

    def address() -> str:
        found = watched.world.objects("v1", "pods", "ballast.dev/role=rebalance")
        return next(
            (p["status"].get("podIP", "") for p in found if p["metadata"]["name"].startswith("demo-rebalance-")), ""
        )

    watched.scrape(f"{watched.world.until('the job has a pod', address)}:9405")
    watched.approve(watched.proposal())
    after = settled(watched, before)
    assert max(fills(after)) - min(fills(after)) < THRESHOLD
    # What it moves is not held against the optimum here: it may look while the samples are still those of growing logs.
    assert watched.until_balanced_says("Balanced", "TooLittleToGain")[0] == "True"
    wait_for(lambda: (watched.endpoint.scalar('ballast_rebalance_runs_total{reason="Proposed"}') or 0) == 1)
    every_panel_answers(watched)
    watched.rebalance(None)
    deployment = path_of("apps/v1", "deployments", "default", "demo-rebalance")
    watched.world.until("the Deployment is gone", lambda: watched.world.api("find", deployment) is None)
    watched.world.until("its pod is gone, which would find the next skew", lambda: not address())


def every_panel_answers(watched: Watched) -> None:
    """Each query of each dashboard has had data on this cluster; a reader in a group and an error come before."""
    from kafka import KafkaConsumer

    reader = KafkaConsumer(
        TOPIC, bootstrap_servers=watched.world.bootstrap.split(","), group_id="readers", auto_offset_reset="earliest"
    )
    try:
        assert reader.poll(30_000, max_records=10)
        reader.commit()
        silent: list[str] = []

        def all_have_answered() -> bool:
            silent[:] = [title for title, query in queries() if not had_data(watched.endpoint, query)]
            return not silent

        try:
            wait_for(all_have_answered)
        except AssertionError:
            raise AssertionError(f"panels without data: {silent}") from None
    finally:
        reader.close()


def had_data(endpoint: Endpoint, query: str) -> bool:
    """Within the last minutes: what is counted only while something moves is not there now."""
    import time

    now = time.time()
    asked = as_prometheus_is_asked(query).replace(" offset 3h", "")  # nothing here is as old as that
    return bool(endpoint.query_range(asked, now - 300, now, 1.0))


@pytest.mark.spec("REB-01", "REB-02")
def test_the_pages_typed(watched: Watched, tmp_path: Path) -> None:
    """What docs/rebalance.md and the runbooks say to type. As the first does, `--capacity` levels where all directories
    are on one disk, so the others are given it."""
    skew(watched, 3 * MIB)
    installed(tmp_path / ".ballast")
    (tmp_path / "ballast").symlink_to(ROOT / "ballast")
    environment = {**os.environ, "BALLAST_HOME": str(tmp_path / ".ballast")}
    environment["KUBECONFIG"] = str(watched.world._stack.kubeconfig)
    told = {}
    # Both pages say how to propose; once is enough.
    for command in dict.fromkeys(to_type("tests/rebalance/test_watched_cluster.py::test_the_pages_typed")):
        typed = command.replace("HOST:PORT", watched.world.bootstrap).replace("URL", watched.endpoint.url)
        if "--prometheus" in command:
            typed += " ".join(["", "--capacity", "64Mi", *SMALL_SPARK])
        done = subprocess.run(
            ["sh", "-ec", typed], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SPARK_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[command] = done.stdout
    found = list(told.values())
    # On one disk all are as full: nothing is to be moved, but leaders at the most.
    assert found[0].split(":")[0] in ("Balanced", "TooLittleToGain"), told
    assert [text.split(":")[0] for text in found[1:]] == ["Proposed"] * (len(found) - 1), told
    assert "--capacity levels by their bytes" in found[0]
    assert "<html" in (tmp_path / "plan.html").read_text()
    assert "kind: Reassignment" in "".join(path.read_text() for path in (tmp_path / "DIR").iterdir())
    assert '{"version": 1' in told["./ballast rebalance --prometheus URL"], "the plan is printed"
    watched.approve(watched.proposal())


@pytest.mark.spec("REB-01", "REB-02")
def test_the_demo_goes_through_prometheus() -> None:
    """`./ballast demo` as a person runs it; its last picture is of level disks."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in SOURCES)}
    told = subprocess.run(
        [sys.executable, "-P", "-m", "ballast_cli", "demo"],
        capture_output=True, text=True, timeout=1_000, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Prometheus scrapes the brokers" in told.stdout
    assert "The Spark job reads Prometheus" in told.stdout
    assert re.search(r"Proposed: \d+ partitions? in \d+ waves?: highest fill [\d.]+% -> [\d.]+%", told.stdout)
    assert "6. Level disks, and the throttles are gone:" in told.stdout
