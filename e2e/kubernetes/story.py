"""Steps that scenarios have in common: install, bring the cluster to a known state, produce and consume."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from e2e.clients import QUIET
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World, cluster

from ballast_cli.kube_api import Obj

INSTALL_SECONDS = 300.0
CLUSTER_SECONDS = 300.0
CLIENT_SECONDS = 180.0
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
# The pods of brokers and operator must meet this Pod Security Standard.
POD_SECURITY = "pod-security.kubernetes.io/enforce"
# Produces or consumes as told, and prints how many.
IN_POD = """
import sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
what, bootstrap, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if what == "produce":
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for future in [producer.send(topic, b"from a pod %d" % n) for n in range(count)]:
        future.get(180)
    producer.close()
    print(count)
else:
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest",
                             consumer_timeout_ms=120000, group_id="a-pod")
    seen = 0
    for record in consumer:
        seen += 1
        if seen == count:
            break
    consumer.close()
    print(seen)
"""

ANY_PARTITION = -1  # the client chooses


def installation(world: World, image: str = "") -> Obj:
    """A kustomization as a user would write it: the base, their namespace, their image."""
    repository, _, tag = (image or world.provider.image).rpartition(":")
    replaced = {"name": "ballast-operator", "newName": repository or tag, **({"newTag": tag} if repository else {})}
    return {"namespace": NAMESPACE, "resources": ["manifests/base"], "images": [replaced]}


def ensure_operator(world: World, image: str = "") -> None:
    """Install the operator of this image, or of the provider's, and wait until it is available."""
    if world.get("namespace", NAMESPACE) is None:
        labels = {POD_SECURITY: "restricted"}
        world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    world.kustomize(installation(world, image))
    world.kubectl("rollout", "status", "deployment/ballast-operator", f"--timeout={INSTALL_SECONDS:.0f}s",
                  seconds=INSTALL_SECONDS + 20)  # fmt: skip


def ensure_cluster(world: World) -> float:
    """Create the cluster of the story; returns the seconds until it was Ready."""
    began = time.monotonic()
    world.apply(cluster(world))
    world.until_ready("kafkacluster", CLUSTER, CLUSTER_SECONDS)
    return time.monotonic() - began


def inside(world: World) -> str:
    """The address of the brokers for clients in pods."""
    return f"{CLUSTER}-bootstrap.{NAMESPACE}.svc:9092"


def produce(world: World, topic: str, values: list[bytes], partitions: int = 0) -> None:
    """Produce from outside with acks=all; on return every record is acknowledged. Goes round robin over `partitions`,
    if given; otherwise the client chooses."""
    failed: list[str] = []
    limit = {"message.timeout.ms": int(CLIENT_SECONDS * 1000)}
    producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "acks": "all", **limit})

    def told(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    for number, value in enumerate(values):
        where = number % partitions if partitions else ANY_PARTITION
        producer.produce(topic, value, partition=where, on_delivery=told)
        producer.poll(0)
    left = producer.flush(CLIENT_SECONDS + 10)
    assert not failed, failed[0]
    assert left == 0, f"{left} records are not acknowledged"


def consume(world: World, topic: str, count: int, seconds: float = CLIENT_SECONDS) -> list[bytes]:
    """Consume from outside, from the earliest offset."""
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
    """Wait until every replica of every partition is in the ISR."""

    def whole() -> bool:
        view = world.view()
        partitions = [part for topic in view.topics.values() for part in topic.partitions.values()]
        return not view.topic_errors and all(set(part.isr) == set(part.replicas) for part in partitions)

    world.until("every replica is in sync", whole)


def throttles_left(world: World) -> list[str]:
    """Throttle configs that are still set on brokers or topics."""
    view = world.view()
    admin = AdminClient({**QUIET, "bootstrap.servers": world.bootstrap})
    asked = [ConfigResource(ResourceType.BROKER, str(broker)) for broker in view.brokers]
    asked += [ConfigResource(ResourceType.TOPIC, name) for name in view.topics]
    return [
        f"{key} of {resource.name} is still {entry.value}"
        for resource in asked  # a call takes only one broker
        for key, entry in admin.describe_configs([resource])[resource].result(60).items()
        if ("throttled" in key or key == LOG_DIRS_RATE) and not entry.is_default
    ]  # fmt: skip
