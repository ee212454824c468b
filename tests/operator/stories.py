"""The stories that `tests.operator.lives` plays: what users may ask of a cluster that the operator runs."""

from __future__ import annotations

import base64
from typing import Any

from tests.operator.lives import KEY, Deed, LivesWorld, Story
from tests.operator.still_kubernetes import CRDS

from ballast_operator.apply.kubernetes import path_of
from ballast_operator.model.meta import API_VERSION

LARGE = {"name": "a", "size": "8Gi"}
VOLUMES = [{"name": name, "size": "4Gi"} for name in ("a", "b")]
SETTING = {"num.network.threads": "5"}
OUTSIDE = [
    {"name": "PLAINTEXT", "port": 9092},
    {"name": "OUTSIDE", "port": 9094, "nodePorts": {"host": "kafka.example.org", "first": 31_000}},
]


def cluster(brokers: int = 3, **spec: Any) -> Deed:
    async def deed(world: LivesWorld) -> None:
        await world.cluster(brokers=brokers, **{"volumes": VOLUMES, **spec})

    return deed


async def topics(world: LivesWorld) -> None:
    for index in range(3):
        await world.topic(f"topic-{index}", partitions=3, replicas=2, deletionPolicy="Delete")


async def change_topics(world: LivesWorld) -> None:
    await world.topic("topic-0", partitions=4, replicas=2, config={"retention.ms": "1000000"})
    await world.delete(API_VERSION, "kafkatopics", "topic-1")
    await world.topic("topic-9", partitions=2, replicas=2, config={"retention.ms": "2000000"})


async def moved_topic(world: LivesWorld) -> None:
    await world.topic("moved", replicaAssignment=[[0, 1], [0, 1]])


async def leave_moved_alone(world: LivesWorld) -> None:
    meta = {"metadata": {"annotations": {"ballast.dev/paused": "true"}}}
    await world.merge(API_VERSION, "kafkatopics", "moved", meta)


async def move(world: LivesWorld) -> None:
    rows = [{"topic": "moved", "partition": index, "replicas": [2, 1]} for index in range(2)]
    await world.reassign("move", partitions=rows, throttle={"interBroker": "1Mi"}, approval="Required")


async def approve(world: LivesWorld) -> None:
    found = world.get("Reassignment", "move")
    told = ((found or {}).get("status") or {}).get("plan") or {}
    if not told.get("hash"):  # there is no plan to approve yet
        await world.settle()
        return await approve(world)
    await world.merge(API_VERSION, "reassignments", "move", {"spec": {"approvedPlan": told["hash"]}})


async def delete_cluster(world: LivesWorld) -> None:
    await world.delete(API_VERSION, "kafkaclusters", KEY.name)


async def delete_topics(world: LivesWorld) -> None:
    for index in range(3):
        await world.delete(API_VERSION, "kafkatopics", f"topic-{index}")


async def put_on_the_set(world: LivesWorld) -> None:
    on_pods = {"metadata": {"annotations": {"example.org/of-pods": "stays"}}}
    patch = {"metadata": {"annotations": {"example.org/of-the-set": "stays"}}, "spec": {"template": on_pods}}
    await world.merge("apps/v1", "statefulsets", KEY.name, patch)


async def lose_identity(world: LivesWorld) -> None:
    await world.delete("v1", "configmaps", f"{KEY.name}-identity")


async def identity_of_before(world: LivesWorld) -> None:
    """Earlier versions of the operator did not record where the metadata log is."""
    await world.merge("v1", "configmaps", f"{KEY.name}-identity", {"data": {"metadataVolume": None}})


async def lose_the_set(world: LivesWorld) -> None:
    world.most_down = 3  # its pods go with it
    await world.delete("apps/v1", "statefulsets", KEY.name)


async def monitors_and_spark(world: LivesWorld) -> None:
    """Kinds that programs beside Ballast bring along."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for group, version, kind in (
        ("monitoring.coreos.com", "v1", "PodMonitor"),
        ("sparkoperator.k8s.io", "v1beta2", "ScheduledSparkApplication"),
    ):
        plural = f"{kind.lower()}s"
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
        await world.kube.ask("POST", CRDS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})


def watched(run: str) -> Deed:
    job = {"run": run, "prometheus": "http://prometheus:9090"}
    return cluster(rebalance={"job": job}, metrics={"podMonitor": True})


async def two_for_one_topic(world: LivesWorld) -> None:
    for name in ("older", "younger"):
        await world.topic(name, topicName="shared", partitions=2, replicas=2)
        await world.settle()


async def the_older_goes(world: LivesWorld) -> None:
    await world.delete(API_VERSION, "kafkatopics", "older")


async def more_of_the_younger(world: LivesWorld) -> None:
    await world.topic("younger", topicName="shared", partitions=3, replicas=2, config={"retention.ms": "1000000"})


async def move_at_once(world: LivesWorld) -> None:
    rows = [{"topic": "moved", "partition": index, "replicas": [2, 1]} for index in range(2)]
    await world.reassign("move", partitions=rows, throttle={"interBroker": "1Mi"})


async def delete_move(world: LivesWorld) -> None:
    await world.delete(API_VERSION, "reassignments", "move")


def secret(name: str, **data: str) -> Deed:
    async def deed(world: LivesWorld) -> None:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
        await world.kube.ask("PATCH", path_of("v1", "secrets", KEY.namespace, name), body, fieldManager="person")

    return deed


STORIES = {
    "born": Story([], [cluster(), topics]),
    "fewer brokers": Story(
        [cluster(4), topics], [cluster(3, controllers={"mode": "Combined", "count": 1}, config=SETTING)]
    ),
    "more brokers": Story([cluster(), topics], [cluster(5, rebalance={"onScaleUp": "Automatic"})]),
    "there and back": Story([cluster(), topics], [cluster(4, rebalance={"onScaleUp": "None"}), cluster(3)], apart=4),
    "a volume more": Story([cluster(), topics], [cluster(volumes=[*VOLUMES, {"name": "c", "size": "4Gi"}])]),
    "more brokers and a volume": Story(
        [cluster(), topics, put_on_the_set],
        [cluster(5, volumes=[*VOLUMES, {"name": "c", "size": "4Gi"}], rebalance={"onScaleUp": "Automatic"})],
    ),
    "a volume less": Story([cluster(), topics], [cluster(volumes=VOLUMES[:1])]),
    "another volume": Story([cluster(), topics], [cluster(volumes=[VOLUMES[0], {"name": "c", "size": "4Gi"}])]),
    "larger volumes": Story([cluster(), topics], [cluster(volumes=[LARGE, VOLUMES[1]])]),
    "more controllers": Story(
        [cluster(controllers={"mode": "Dedicated", "count": 1}, metadataVolume={"size": "1Gi"}), topics],
        [cluster(controllers={"mode": "Dedicated", "count": 3}, metadataVolume={"size": "1Gi"})],
    ),
    "fewer controllers": Story(
        [cluster(controllers={"mode": "Dedicated", "count": 3}, metadataVolume={"size": "1Gi"}), topics],
        [cluster(controllers={"mode": "Dedicated", "count": 1}, metadataVolume={"size": "1Gi"}, config=SETTING)],
    ),
    "reached from outside": Story([cluster(), topics], [cluster(listeners=OUTSIDE)]),
    "no more from outside": Story([cluster(4, listeners=OUTSIDE), topics], [cluster(3)]),
    "another setting": Story([cluster(), topics], [cluster(config=SETTING), cluster()], apart=2),
    "identity lost, and later the set": Story(
        [cluster(1), cluster(), topics, cluster(volumes=VOLUMES[::-1])],
        [lose_identity, lose_the_set, cluster(volumes=VOLUMES[::-1], config=SETTING)],
    ),
    "an identity of before, and the set lost": Story(
        [cluster(), topics, identity_of_before, cluster(volumes=VOLUMES[::-1])], [lose_the_set]
    ),
    "topics and a move": Story(
        [cluster(), topics, moved_topic, leave_moved_alone], [move, change_topics, approve, cluster(config=SETTING)]
    ),
    "a monitor and a job, run otherwise": Story(
        [monitors_and_spark, cluster(), topics],
        [watched("CronJob"), watched("Watch"), watched("ScheduledSparkApplication")],
        apart=1,
    ),
    "no monitor and no job": Story([monitors_and_spark, watched("Watch"), topics], [cluster()]),
    "two for one topic": Story([cluster(), two_for_one_topic], [more_of_the_younger, the_older_goes]),
    "a move deleted": Story([cluster(), moved_topic, leave_moved_alone], [move_at_once, delete_move], apart=4),
    "topics deleted": Story([cluster(), topics], [delete_topics]),
    "all deleted": Story([cluster(), topics, moved_topic, leave_moved_alone], [move, delete_topics, delete_cluster]),
}
