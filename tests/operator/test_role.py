"""The role of the operator names what it was seen to ask for in the course of a cluster's life, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.faults import FaultyApi, Right
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(300)
MANIFESTS = Path(__file__).parents[2] / "manifests"
A, B = ({"name": name, "size": "1Gi"} for name in ("a", "b"))
OUTSIDE = {"name": "OUTSIDE", "port": 9094, "nodePorts": {"host": "node.example", "first": 30990}}
INSIDE = {"name": "PLAINTEXT", "port": 9092}
EXTENSIONS = (
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("sparkoperator.k8s.io", "v1beta2", "ScheduledSparkApplication"),
)
# Asked of one that is in no list any more, to be sure that it is gone; pods are deleted that are not at work; an Event
# that has come again is counted after ten minutes.
RARE = {("ballast.dev", plural, "get") for plural in ("kafkatopics", "reassignments")} | {
    ("", "pods", "delete"),
    ("", "events", "patch"),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found


def allowed() -> set[Right]:
    rules = [
        rule
        for file in ("base/role.yaml", "racks/cluster-role.yaml")
        for rule in yaml.safe_load((MANIFESTS / file).read_text())["rules"]
    ]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def define(world: World, group: str, version: str, kind: str) -> None:
    """A kind that a program beside Ballast brings along."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
    body = {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}
    world.api("create", path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", None), body)


def live(world: World) -> None:
    """All that the operator does for a cluster, once."""

    def cluster(**spec: Any) -> None:
        zone = {"rack": {"topologyKey": "zone"}, "storage": {"deleteClaim": True}, "resyncSeconds": 1}
        world.apply("KafkaCluster", "demo", {"brokers": 2, "volumes": [A, B], **zone, **spec})

    def job(run: str) -> dict[str, Any]:
        return {"rebalance": {"job": {"run": run, "prometheus": "http://127.0.0.1:1"}}}

    cluster(listeners=[INSIDE, OUTSIDE], metrics={"podMonitor": True}, **job("CronJob"))
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 90)["status"]["bootstrapServers"]
    world.apply("KafkaCluster", "far", {"external": {"bootstrapServers": "127.0.0.1:1", "tls": {"secretName": "ca"}}})
    world.until_reason("KafkaCluster", "far", "SecretNotFound")
    world.topic("orders", partitions=4, replicas=1, deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "orders")
    world.reassign("brief", addBrokers=[1], ttlSecondsAfterFinished=1)
    world.until_gone("Reassignment", "brief")
    for run, plural, version in (
        ("Watch", "deployments", "apps/v1"),
        ("ScheduledSparkApplication", "scheduledsparkapplications", "sparkoperator.k8s.io/v1beta2"),
    ):
        cluster(**job(run))
        world.until(f"the job as {run}", partial(world.objects, version, plural), 60)
    cluster(volumes=[{**A, "size": "2Gi"}], config={"num.partitions": 2})
    world.until("one claim for each broker", lambda: len(world.objects("v1", "persistentvolumeclaims")) == 2, 90)
    world.until_ready("KafkaCluster", "demo", 90)
    world.delete("KafkaCluster", "demo")
    world.until_gone("KafkaCluster", "demo")


@pytest.mark.spec("OPR-07")
def test_the_role_is_what_the_operator_was_seen_to_ask_for(world: World) -> None:
    for extension in EXTENSIONS:
        define(world, *extension)
    world.api("merge", path_of("v1", "nodes", None, "local"), {"metadata": {"labels": {"zone": "east"}}})
    seen = FaultyApi(world.kubeconfig, seed=0)
    world.run(seen.start())
    try:
        world.kill_operator()
        world.restart_operator(seen.kubeconfig)
        live(world)
    finally:
        world.end_operator()
        world.run(seen.stop())
    assert seen.rights - allowed() == set()
    assert allowed() - seen.rights <= RARE
