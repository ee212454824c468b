"""The steps that scenarios have in common: install, bring to the known state, read and write."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer
from e2e.clients import QUIET
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World, cluster

from ballast_cli.kube_api import Obj

INSTALL_SECONDS = 180.0
CLUSTER_SECONDS = 180.0
# The pods of brokers and operator must pass it.
POD_SECURITY = "pod-security.kubernetes.io/enforce"
# Produces or consumes as told, and prints how many.
IN_POD = """
import sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
what, bootstrap, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if what == "produce":
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for future in [producer.send(topic, b"from a pod %d" % n) for n in range(count)]:
        future.get(60)
    producer.close()
    print(count)
else:
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest",
                             consumer_timeout_ms=20000, group_id="a-pod")
    seen = 0
    for record in consumer:
        seen += 1
        if seen == count:
            break
    consumer.close()
    print(seen)
"""


def installation(world: World, image: str = "") -> Obj:
    """A kustomization as a person would write it: the base, their namespace, their image."""
    repository, _, tag = (image or world.provider.image).rpartition(":")
    image = {"name": "ballast-operator", "newName": repository or tag, **({"newTag": tag} if repository else {})}
    return {"namespace": NAMESPACE, "resources": ["manifests/base"], "images": [image]}


def ensure_operator(world: World, image: str = "") -> None:
    """The operator of this image, else of the provider's, is there and works."""
    if world.get("namespace", NAMESPACE) is None:
        labels = {POD_SECURITY: "restricted"}
        world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    world.kustomize(installation(world, image))
    world.kubectl("rollout", "status", "deployment/ballast-operator", f"--timeout={INSTALL_SECONDS:.0f}s",
                  seconds=INSTALL_SECONDS + 20)  # fmt: skip


def ensure_cluster(world: World) -> float:
    """The cluster of the story, Ready; the seconds that it took."""
    began = time.monotonic()
    world.apply(cluster(world))
    world.until_ready("kafkacluster", CLUSTER, CLUSTER_SECONDS)
    return time.monotonic() - began


def inside(world: World) -> str:
    """The address of the brokers for clients in pods."""
    return f"{CLUSTER}-bootstrap.{NAMESPACE}.svc:9092"


def produce(world: World, topic: str, values: list[bytes]) -> None:
    """From outside, with acks=all; every record is acknowledged when it returns."""
    failed: list[str] = []
    producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "acks": "all", "message.timeout.ms": 60_000})

    def told(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    for value in values:
        producer.produce(topic, value, on_delivery=told)
        producer.poll(0)
    left = producer.flush(70)
    assert not failed, failed[0]
    assert left == 0, f"{left} records are not acknowledged"


def consume(world: World, topic: str, count: int, seconds: float = 60.0) -> list[bytes]:
    """From outside, from the beginning."""
    settings = {**QUIET, "bootstrap.servers": world.bootstrap, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "group.id": f"outside-{time.monotonic_ns()}"})
    values: list[bytes] = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + seconds
        while len(values) < count and time.monotonic() < deadline:
            found = [message for message in consumer.consume(1000, 0.5) if message.error() is None]
            values += [message.value() or b"" for message in found]
    finally:
        consumer.close()
    return values


def until_in_sync(world: World) -> None:
    """Every replica of every partition follows its leader."""

    def whole() -> bool:
        topics = world.view().topics.values()
        return all(set(p.isr) == set(p.replicas) for topic in topics for p in topic.partitions.values())

    world.until("every replica is in sync", whole)
