"""The whole story in under two minutes: a cluster, skewed data, a proposal, its approval, level disks.

Everything runs on this machine in a temporary directory and is gone at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from ballast_cli.picture import draw
from ballast_cli.status import observe_cluster
from ballast_cli.up import CLUSTER, Stack, wait_ready
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.model.cluster import read_cluster
from ballast_operator.plan.claimed import as_claimed

API = "ballast.dev/v1alpha1"
TOPIC = "events"
PARTITIONS = 27
VOLUME = "128Mi"
LARGE_BYTES = 32 << 20
SMALL_BYTES = 2 << 20
MOVE_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep everything here instead of a temporary directory"
    )


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="ballast-demo-") as temporary:
        return asyncio.run(_tell(Stack(args.data or Path(temporary))))


async def _tell(stack: Stack) -> int:
    began = time.monotonic()
    try:
        await stack.start()
        cluster = await _start_cluster(stack)
        bootstrap = cluster["status"]["bootstrapServers"]
        kafka = KafkaConnection(ConnectionSettings(bootstrap))
        try:
            await _create_topic(stack)
            await _skew(stack, kafka, bootstrap)
            await _propose(stack)
            await _approve(stack, kafka)
        finally:
            await kafka.close()
    finally:
        await stack.stop()
    _say(f"That took {time.monotonic() - began:.0f} s. Your own cluster: ./ballast up")
    return 0


def _say(text: str) -> None:
    print(f"\n\x1b[1m{text}\x1b[0m", flush=True)


async def _start_cluster(stack: Stack) -> dict[str, Any]:
    _say(f"1. A KafkaCluster: three brokers, each with three volumes of {VOLUME}.")
    volumes = [{"name": f"disk-{index}", "size": VOLUME} for index in range(3)]
    # Small segments, so that the numbers of a demonstration can be seen; the waiting group timer is of no use here.
    config = {"log.segment.bytes": "8388608", "group.initial.rebalance.delay.ms": "0"}
    spec = {"brokers": 3, "volumes": volumes, "config": config}
    await stack.apply({"apiVersion": API, "kind": "KafkaCluster", "metadata": {"name": CLUSTER}, "spec": spec})
    return await wait_ready(stack, "kafkaclusters", CLUSTER)


async def _create_topic(stack: Stack) -> None:
    _say(f"2. A KafkaTopic with {PARTITIONS} partitions. Kafka spreads them by number: three on every volume.")
    spec = {"clusterRef": {"name": CLUSTER}, "partitions": PARTITIONS, "replicas": 1}
    await stack.apply({"apiVersion": API, "kind": "KafkaTopic", "metadata": {"name": TOPIC}, "spec": spec})
    await wait_ready(stack, "kafkatopics", TOPIC)


async def _skew(stack: Stack, kafka: KafkaConnection, bootstrap: str) -> None:
    """Much data into the partitions of one volume of each broker, as life does it."""
    _say("3. But partitions differ in size. What lies on one volume grows faster than the rest:")
    view = await observe_cluster(kafka)
    favoured: dict[int, str] = {}
    sizes = {}
    for replica, log in sorted(view.logs.items()):
        if log.path is not None:
            favoured.setdefault(replica.broker, log.path)
            sizes[replica.partition] = LARGE_BYTES if favoured[replica.broker] == log.path else SMALL_BYTES
    await asyncio.to_thread(_produce, bootstrap, sizes)
    await _show(stack, kafka)


def _produce(bootstrap: str, sizes: dict[int, int]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", batch_size=1 << 20, linger_ms=20)
    value = bytes(range(256)) * 400
    for partition, size in sizes.items():
        for _ in range(size // len(value)):
            producer.send(TOPIC, value, partition=partition)
    producer.flush()
    producer.close()


async def _propose(stack: Stack) -> None:
    _say("4. A Reassignment proposes how to level them by bytes. Nothing moves before it is approved.")
    spec = {
        "clusterRef": {"name": CLUSTER},
        "generate": {},
        "approval": "Required",
        "throttle": {"interBroker": "24Mi", "intraBroker": "24Mi"},
    }
    await stack.apply({"apiVersion": API, "kind": "Reassignment", "metadata": {"name": "level"}, "spec": spec})
    found = await _until(stack, ("AwaitingApproval",))
    plan = found["status"]["plan"]
    for line in plan["preview"]:
        print(f"   {_shortened(line, stack)}")
    print(f"   hash {plan['hash']}", flush=True)


def _shortened(line: str, stack: Stack) -> str:
    return line.replace(str(stack.data.resolve() / "volumes" / "default") + "/", "").replace("/data", "")


async def _approve(stack: Stack, kafka: KafkaConnection) -> None:
    _say("5. Approved, by naming the hash of exactly this plan. It runs throttled, while clients go on.")
    found = await _until(stack, ("AwaitingApproval",))
    approval = {"spec": {"approvedPlan": found["status"]["plan"]["hash"]}}
    from ballast_operator.apply.kubernetes import path_of

    await stack.api.merge(path_of(API, "reassignments", "default", "level"), approval)
    shown = ""
    deadline = time.monotonic() + MOVE_SECONDS
    while time.monotonic() < deadline:
        status = (await stack.get("reassignments", "level") or {}).get("status", {})
        progress = status.get("progress", {})
        line = f"   {status.get('phase')}: {progress.get('percent', 0)} %, {progress.get('movesText', '')} partitions"
        if line != shown:
            print(line, flush=True)
            shown = line
        if status.get("phase") in ("Succeeded", "Failed", "Stale"):
            break
        await asyncio.sleep(0.5)
    _say("6. Level disks, and the throttles are gone:")
    await _show(stack, kafka)


async def _until(stack: Stack, phases: tuple[str, ...]) -> dict[str, Any]:
    deadline = time.monotonic() + MOVE_SECONDS
    while time.monotonic() < deadline:
        found = await stack.get("reassignments", "level")
        if found and found.get("status", {}).get("phase") in phases:
            return found
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the Reassignment did not reach {phases}; see {stack.data / 'operator.log'}")


async def _show(stack: Stack, kafka: KafkaConnection) -> None:
    body = await stack.get("kafkaclusters", CLUSTER)
    assert body is not None
    picture = draw(as_claimed(read_cluster(body), await observe_cluster(kafka)))
    print("\n".join(f"   {line}" for line in picture.splitlines()), flush=True)
