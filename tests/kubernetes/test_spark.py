"""Spark on Kubernetes: the CronJob that the operator makes, and a driver with executors that reads a real Prometheus.

Both find that one broker has nearly everything, propose what levels it, and wait; a person approves, and it is done.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from e2e.kubernetes.monitoring import URL, find_prometheus, load_prometheus, prometheus
from e2e.kubernetes.story import inside, produce
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World, cluster, restricted_pod, topic, without_frames

from ballast_cli.image_base import missing_for_base
from ballast_operator.resources.rebalance import MAIN_FILE

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(1800),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = "ballast-rebalance"
TEMPLATE = "/opt/ballast/manifests/spark-executors/pod-template.yaml"
PARTITIONS = 6
# All volumes of the node are one disk: directories are levelled by what they hold, as if each were a disk so large.
CAPACITY = "32Mi"
BAND_PERCENT = 2
SPARK_SECONDS = 600.0


@pytest.fixture(scope="module")
def spark_image(world: World) -> str:
    began = time.monotonic()
    name = world.provider.spark_image()
    if not name:
        pytest.skip(f"provider {world.provider.name} has no image of the Spark job")
    world.say(f"the nodes have {name}, after {time.monotonic() - began:.0f} s")
    return name


@pytest.fixture
def skewed(installed: World, spark_image: str) -> World:
    """Everything of a topic lies on broker 0."""
    installed.kubectl("apply", "-k", str(ROOT / "manifests" / "spark-executors"))
    name = f"skewed-{time.monotonic_ns()}"
    rows = [[0] for _ in range(PARTITIONS)]
    installed.apply(topic(name, partitions=PARTITIONS, replicas=1, replicaAssignment=rows))
    installed.until_ready("kafkatopic", name)
    # As long as brokers are named, nothing of it is proposed to be moved.
    installed.apply(topic(name, partitions=PARTITIONS, replicas=1))
    installed.until_ready("kafkatopic", name)
    produce(installed, name, [os.urandom(10_000) for _ in range(2_000)], PARTITIONS)
    return installed


@pytest.mark.spec("REB-01")
def test_a_cron_job_proposes(skewed: World, spark_image: str) -> None:
    job = {"image": spark_image, "schedule": "0 0 1 1 *", "directoryCapacity": CAPACITY, "bandPercent": BAND_PERCENT}
    skewed.apply(cluster(skewed, rebalance={"job": job}))
    skewed.until("the CronJob", lambda: skewed.get("cronjob", f"{CLUSTER}-rebalance"))
    skewed.kubectl("create", "job", "look-now", f"--from=cronjob/{CLUSTER}-rebalance")
    try:
        skewed.until("the look has ended", lambda: _looked(skewed, "look-now"), SPARK_SECONDS)
        skewed.say("Spark in one pod has looked: " + skewed.kubectl("logs", "job/look-now").strip()[-300:])
        _approve(skewed)
    finally:
        skewed.kubectl("delete", "job", "look-now", "--ignore-not-found")
        skewed.apply(cluster(skewed))


@pytest.mark.skipif(find_prometheus() is None, reason="needs a prometheus on this machine")
@pytest.mark.skipif(bool(missing_for_base()), reason=f"its image needs {'; '.join(missing_for_base())}")
@pytest.mark.spec("REB-01")
def test_a_driver_with_executors_reads_prometheus(skewed: World, spark_image: str) -> None:
    if not load_prometheus(skewed):
        pytest.skip(f"Prometheus cannot be brought to the nodes of provider {skewed.provider.name}")
    skewed.apply(*prometheus())
    skewed.kubectl("wait", "--for=condition=Ready", "pod/prometheus", "--timeout=170s")
    skewed.say("a Prometheus in the cluster scrapes the brokers' pods")
    submit = restricted_pod("submits", spark_image, _submit(skewed, spark_image), account=ACCOUNT)
    try:
        skewed.until("Prometheus has seen the brokers", lambda: _seen(skewed))
        skewed.run_pod(submit, SPARK_SECONDS)
        (driver,) = skewed.names("pods", "spark-role=driver")
        phase = skewed.until("the driver has ended", lambda: skewed.ended(driver), SPARK_SECONDS)
        said = skewed.kubectl("logs", driver)
        skewed.say("a driver with an executor has looked: " + said.strip()[-300:])
        assert phase == "Succeeded", without_frames(said)[-4000:]
        events = skewed.kubectl("get", "events", "-o", "name", "--field-selector", "reason=Started")
        assert "exec-1" in events, "no executor was started"
        _approve(skewed)
    finally:
        skewed.try_kubectl("delete", "pod", "-l", "spark-role", "--grace-period=0")
        for body in prometheus():
            skewed.try_kubectl("delete", body["kind"], body["metadata"]["name"], "--wait=false")


def _submit(world: World, image: str) -> list[str]:
    """As docs/rebalance.md has it, in a pod that may do it, and small."""
    settings = {
        "namespace": NAMESPACE,
        "container.image": image,
        "authenticate.driver.serviceAccountName": ACCOUNT,
        "driver.podTemplateFile": TEMPLATE,
        "executor.podTemplateFile": TEMPLATE,
        "driver.request.cores": "100m",
        "executor.request.cores": "100m",
    }
    words = ["ballast", "spark-submit", "--master", "k8s://https://kubernetes.default.svc", "--deploy-mode", "cluster"]
    words += ["--name", "ballast-rebalance", "--driver-memory", "700m", "--executor-memory", "512m"]
    # Python beside the Java of each.
    words += ["--conf", "spark.driver.memoryOverhead=700m", "--conf", "spark.executor.memoryOverhead=600m"]
    words += [word for key, value in settings.items() for word in ("--conf", f"spark.kubernetes.{key}={value}")]
    # spark-submit would wait by a watch that an API server does not give with the etcd 3.4 of Debian.
    words += ["--conf", "spark.kubernetes.submission.waitAppCompletion=false"]
    words += ["--conf", "spark.executor.instances=1", "--conf", "spark.executorEnv.PYTHONPATH=/opt/ballast/spark"]
    job = ["--prometheus", URL, "--cluster-label", f"job={CLUSTER}", "--cluster", CLUSTER, "--namespace", NAMESPACE]
    job += ["--bootstrap", inside(world)]
    return [*words, MAIN_FILE, *job, "--capacity", CAPACITY, "--band", str(BAND_PERCENT / 100), "--apply"]


def _seen(world: World) -> bool:
    """Prometheus has the sizes of every broker's partitions, as often as a rate needs."""
    sizes = f'ballast_replica_size_bytes{{job="{CLUSTER}"}}'
    query = f"count(count by (pod) (count_over_time({sizes}[1m])>2))==3"
    found = world.try_kubectl(
        "get",
        "--raw",
        f"/api/v1/namespaces/{NAMESPACE}/services/prometheus:9090/proxy/api/v1/query?query={_quoted(query)}",
    )
    return found.returncode == 0 and '"value":[' in found.stdout


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text)


def _looked(world: World, name: str) -> bool:
    status = (world.get("job", name) or {}).get("status", {})
    assert not status.get("failed"), world.kubectl("logs", f"job/{name}")[-4000:]
    return bool(status.get("succeeded"))


def _approve(world: World) -> None:
    """The proposal waits; a person approves exactly that plan, and it is carried out."""
    looked = (world.get("kafkacluster", CLUSTER) or {})["status"]["rebalance"]
    assert looked["reason"] == "Proposed", looked
    proposal = looked["proposal"]
    waiting = world.until_phase(proposal, "AwaitingApproval")
    approved = f'{{"spec":{{"approvedPlan":"{waiting["status"]["plan"]["hash"]}"}}}}'
    world.kubectl("patch", "reassignment", proposal, "--type=merge", "-p", approved)
    done = world.until_phase(proposal, "Succeeded", seconds=240)
    world.say(f"{proposal} was approved and carried out: {done['status']['progress']}")
    world.kubectl("delete", "reassignment", proposal)
