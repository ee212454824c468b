"""`./ballast bench topics`: thousands of partitions created on three brokers, Ballast and Apache Kafka in turn.

CreateTopics requests of at most 1,000 partitions each, one at a time to each broker, as the operator sends them; before
that a few topics, so that nobody's first steps are measured. Measured from the first request: until the last answer,
until every broker tells leaders for the last topic, until every replica has its folder on its broker; and the CPU
seconds of all brokers until then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.servers import ApacheKafka, Ballast, Cluster, Server, ServerFailed

BROKERS = 3
VOLUMES = 3
SHAPE = "1000x12x3"
QUICK_SHAPE = "100x12x3"
PARTITIONS_PER_REQUEST = 1_000
WARM_UP_TOPICS = 50
LIMIT_S = 240.0
POLL_S = 0.05
CREATE_VERSION = 7
METADATA_VERSION = 12


@dataclass(frozen=True, slots=True)
class Figures:
    answered_s: float
    told_s: float
    made_s: float
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", metavar="TOPICSxPARTITIONSxREPLICAS", default="", help=f"default: {SHAPE}")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of runs (default: 1)")
    parser.add_argument("--ballast-only", action="store_true", help="without Apache Kafka")


def run(args: argparse.Namespace) -> int:
    shape = args.shape or (QUICK_SHAPE if args.quick else SHAPE)
    topics, partitions, replicas = (int(text) for text in shape.split("x"))
    kinds: list[type[Server]] = [Ballast] if args.ballast_only else [Ballast, ApacheKafka]
    found: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    for _ in range(args.pairs):
        for kind in kinds:
            with Cluster(kind, BROKERS, volumes=VOLUMES) as cluster:
                figures = asyncio.run(measure(cluster, topics, partitions, replicas))
            found[kind.name].append(figures)
            said = ", ".join(f"{name} {value:.2f}" for name, value in asdict(figures).items())
            print(f"{kind.name:8} {shape}: {said}", flush=True)
    ratios = _ratios(found) if len(kinds) > 1 else {}
    for name, ratio in ratios.items():
        print(f"{name:12} Ballast / Kafka {ratio:.2f}")
    if args.json:
        told = {name: [asdict(each) for each in rows] for name, rows in found.items()}
        print(json.dumps({"bench": "topics", "shape": shape, **told, "ratios": ratios}))
    return 0


def _ratios(found: dict[str, list[Figures]]) -> dict[str, float]:
    pairs = list(zip(found[Ballast.name], found[ApacheKafka.name], strict=True))
    return {
        name: statistics.median(getattr(ours, name) / getattr(theirs, name) for ours, theirs in pairs)
        for name in Figures.__slots__
    }


async def measure(cluster: Cluster, topics: int, partitions: int, replicas: int) -> Figures:
    await _until(cluster, lambda answer: len(answer.brokers) == BROKERS, None)
    await _make(cluster, "warm", WARM_UP_TOPICS, partitions, replicas)
    return await _make(cluster, "topic", topics, partitions, replicas)


async def _make(cluster: Cluster, prefix: str, topics: int, partitions: int, replicas: int) -> Figures:
    names = [f"{prefix}-{number:05d}" for number in range(topics)]
    used, began = cluster.cpu_seconds(), time.perf_counter()
    chunks = _chunks(names, max(1, PARTITIONS_PER_REQUEST // partitions))
    requests = (_create_request(chunk, partitions, replicas) for chunk in chunks)
    await asyncio.gather(*(_create(server, requests) for server in cluster.servers))
    answered = time.perf_counter() - began
    await _until(cluster, lambda answer: _is_led(answer, partitions), names[-1])
    told = time.perf_counter() - began
    await asyncio.to_thread(_until_folders, cluster, prefix, topics * partitions * replicas)
    made = time.perf_counter() - began
    return Figures(answered, told, made, cluster.cpu_seconds() - used)


async def _create(server: Server, requests: Iterator[Any]) -> None:
    channel = await _connect(server)
    for request in requests:
        answer = await channel.call(request, CREATE_VERSION)
        failed = [topic for topic in answer.topics if topic.error_code]
        if failed:
            raise ServerFailed(f"{server.name}: {failed[0]}")
    channel.close()


def _chunks(names: list[str], size: int) -> Iterator[list[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))


def _create_request(names: list[str], partitions: int, replicas: int) -> Any:
    from ballast_wire.messages import message

    kind = message("CreateTopicsRequest")
    topics = [
        kind.CreatableTopic(
            version=CREATE_VERSION, name=name, num_partitions=partitions, replication_factor=replicas,
            assignments=[], configs=[],
        )
        for name in names
    ]  # fmt: skip
    return kind(topics=topics, timeout_ms=60_000, validate_only=False)


async def _connect(server: Server) -> Any:
    from ballast_broker.net.channel import SocketNetwork

    return await SocketNetwork("bench").connect("127.0.0.1", server.port, timeout_s=5)


async def _until(cluster: Cluster, fits: Any, topic: str | None) -> None:
    """Wait until every broker's answer to a Metadata request for this topic (None: for no topic) fits."""
    from ballast_wire.messages import message

    kind = message("MetadataRequest")
    rows = [] if topic is None else [kind.MetadataRequestTopic(version=METADATA_VERSION, name=topic)]
    deadline = time.perf_counter() + LIMIT_S
    for server in cluster.servers:
        channel = await _connect(server)
        while not fits(await channel.call(kind(topics=rows, allow_auto_topic_creation=False), METADATA_VERSION)):
            if time.perf_counter() > deadline:
                raise ServerFailed(f"{server.name} does not tell of {topic or 'all brokers'}:\n{server.tail()}")
            await asyncio.sleep(POLL_S)
        channel.close()


def _is_led(answer: Any, partitions: int) -> bool:
    rows = answer.topics[0].partitions
    return len(rows) == partitions and all(row.leader_id >= 0 for row in rows)


def _until_folders(cluster: Cluster, prefix: str, count: int) -> None:
    deadline = time.perf_counter() + LIMIT_S
    while sum(_folders(volume, prefix) for server in cluster.servers for volume in server.volumes) < count:
        if time.perf_counter() > deadline:
            raise ServerFailed(f"{cluster.name} has not made {count} folders:\n{cluster.tail()}")
        time.sleep(POLL_S)


def _folders(volume: Path, prefix: str) -> int:
    return sum(name.startswith(f"{prefix}-") for name in os.listdir(volume))


__all__ = ["add_arguments", "measure", "run"]
