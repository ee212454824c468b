"""`./ballast bench failover`: how long nobody can write, Ballast beside Apache Kafka, three brokers each.

A client writes one record at a time to one partition and keeps trying; meanwhile the partition's leader is killed
(SIGKILL), or asked to stop (SIGTERM), or the active controller is killed. The gap is the longest time from one
acknowledgement to the next. Every broker is a controller as well, so a killed leader may lead the quorum too.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import time
from typing import Any

from bench.replication import REPLICATED, TOPIC, create_topic
from bench.servers import ApacheKafka, Ballast, Cluster, Server, ServerFailed
from bench.writer import Writer

BEFORE_S = 2.0
AFTER_S = 1.0
GAP_LIMIT_S = 90.0
REJOIN_LIMIT_S = 90.0
GOALS_S = {"kill leader": 1.5, "stop leader": 0.3, "kill controller": 2.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each fault (default: 5; --quick: 1)")


def run(args: argparse.Namespace) -> int:
    rounds = 1 if args.quick else args.rounds
    kinds = ("kill leader", "stop leader") if args.quick else ("kill leader", "stop leader", "kill controller")
    gaps = {kind.name: _gaps(kind, kinds, rounds) for kind in (Ballast, ApacheKafka)}
    ratios = {}
    print(f"{'gap, s: median (longest)':24} {'Ballast':>15} {'Kafka':>15} {'ratio':>8}  goal for the longest")
    for kind in kinds:
        own, other = gaps["ballast"][kind], gaps["kafka"][kind]
        ratios[kind] = statistics.median(own) / statistics.median(other)
        below = "" if max(own) <= GOALS_S[kind] else "  ABOVE"
        print(f"{kind:24} {_text(own):>15} {_text(other):>15} {ratios[kind]:>8.3f}  <= {GOALS_S[kind]:g} s{below}")
    if args.json:
        print(json.dumps({"bench": "failover", "gaps_s": gaps, "ratios": ratios}))
    return 0


def _text(gaps: list[float]) -> str:
    return f"{statistics.median(gaps):.2f} ({max(gaps):.2f})"


def _gaps(side: type[Server], kinds: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
    with Cluster(side, 3, overrides=REPLICATED) as cluster:
        create_topic(cluster)
        return {kind: [_one_fault(cluster, kind) for _ in range(rounds)] for kind in kinds}


def _one_fault(cluster: Cluster, kind: str) -> float:
    _await_whole(cluster)
    victim = cluster.servers[(_controller(cluster) if kind == "kill controller" else _leader(cluster)) - 1]
    writer = Writer(cluster, TOPIC, limit_s=GAP_LIMIT_S)
    writer.run_for(BEFORE_S)
    faulted = time.perf_counter()
    assert victim.process is not None
    victim.process.send_signal(signal.SIGTERM if kind == "stop leader" else signal.SIGKILL)
    writer.run_until(lambda: writer.last_ack > faulted and time.perf_counter() - faulted > AFTER_S and not writer.late)
    victim.process.wait(GAP_LIMIT_S)
    writer.close()
    victim.spawn()
    return writer.longest_gap_after(faulted)


def _admin(cluster: Cluster) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def _leader(cluster: Cluster) -> int:
    leader: int = _admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    return leader


def _controller(cluster: Cluster) -> int:
    """The quorum's leader, from DescribeQuorum: Metadata names some broker, which only forwards."""
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        quorum = client.describe_metadata_quorum()
        return int(quorum["topics"][0]["partitions"][0]["leader_id"])
    finally:
        client.close()


def _await_whole(cluster: Cluster) -> None:
    """Wait until all three are alive and in the ISR of every partition."""
    deadline = time.monotonic() + REJOIN_LIMIT_S
    while True:
        partitions = _admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
        if partitions and all(len(partition.isrs) == len(cluster.servers) for partition in partitions):
            return
        if time.monotonic() > deadline:
            raise ServerFailed(f"{cluster.name}: not all replicas came back into the ISR\n{cluster.tail()}")
        time.sleep(0.2)
