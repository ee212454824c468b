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
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.replication import REPLICATED, TOPIC, create_topic
from bench.servers import ApacheKafka, Ballast, Cluster, Server, ServerFailed

BEFORE_S = 2.0
AFTER_S = 1.0
GAP_LIMIT_S = 90.0
REJOIN_LIMIT_S = 90.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="of each fault (default: 5; --quick: 1)")


def run(args: argparse.Namespace) -> int:
    rounds = 1 if args.quick else args.rounds
    kinds = ("kill leader", "stop leader") if args.quick else ("kill leader", "stop leader", "kill controller")
    gaps = {kind.name: _gaps(kind, kinds, rounds) for kind in (Ballast, ApacheKafka)}
    ratios = {}
    print(f"{'gap, s (median)':24} {'Ballast':>10} {'Kafka':>10} {'ratio':>8}")
    for kind in kinds:
        ours, theirs = (statistics.median(gaps[side][kind]) for side in ("ballast", "kafka"))
        ratios[kind] = ours / theirs
        print(f"{kind:24} {ours:>10.2f} {theirs:>10.2f} {ratios[kind]:>8.3f}")
    if args.json:
        print(json.dumps({"bench": "failover", "gaps_s": gaps, "ratios": ratios}))
    return 0


def _gaps(side: type[Server], kinds: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
    with Cluster(side, 3, overrides=REPLICATED) as cluster:
        create_topic(cluster)
        return {kind: [_one_fault(cluster, kind) for _ in range(rounds)] for kind in kinds}


def _one_fault(cluster: Cluster, kind: str) -> float:
    _await_whole(cluster)
    victim = cluster.servers[(_controller(cluster) if kind == "kill controller" else _leader(cluster)) - 1]
    writer = Writer(cluster)
    writer.run_for(BEFORE_S)
    faulted = time.perf_counter()
    assert victim.process is not None
    victim.process.send_signal(signal.SIGTERM if kind == "stop leader" else signal.SIGKILL)
    writer.run_until(lambda: writer.last_ack > faulted and time.perf_counter() - faulted > AFTER_S and not writer.late)
    victim.process.wait(GAP_LIMIT_S)
    writer.close()
    victim.spawn()
    return writer.longest_gap_after(faulted)


class Writer:
    """Writes one record after the other from a thread of its own and notes when each was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 50, "reconnect.backoff.max.ms": 100, "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 0,
        }  # fmt: skip
        self._producer = Producer(settings)
        self._acks: list[float] = [time.perf_counter()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def last_ack(self) -> float:
        return self._acks[-1]

    @property
    def late(self) -> bool:
        return time.perf_counter() - self.last_ack > 0.5

    def _write(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(TOPIC, b"x" * 100, partition=0, on_delivery=self._delivered)
            self._producer.flush(GAP_LIMIT_S)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self._acks.append(time.perf_counter())

    def run_for(self, seconds: float) -> None:
        time.sleep(seconds)
        self.run_until(lambda: not self.late)

    def run_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GAP_LIMIT_S
        while not holds():
            if time.monotonic() > deadline:
                raise ServerFailed(f"nothing was acknowledged for {GAP_LIMIT_S:g} s")
            time.sleep(0.02)

    def longest_gap_after(self, moment: float) -> float:
        acks = [ack for ack in self._acks if ack >= moment]
        before = max((ack for ack in self._acks if ack < moment), default=moment)
        return max(b - a for a, b in zip([before, *acks], acks, strict=False))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(GAP_LIMIT_S)


def _admin(cluster: Cluster) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def _leader(cluster: Cluster) -> int:
    leader: int = _admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    return leader


def _controller(cluster: Cluster) -> int:
    """The quorum's leader, which a broker knows by DescribeQuorum; Metadata names a broker that only forwards."""
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        quorum = client.describe_metadata_quorum()
        return int(quorum["topics"][0]["partitions"][0]["leader_id"])
    finally:
        client.close()


def _await_whole(cluster: Cluster) -> None:
    """All three alive and in the ISR of every partition."""
    deadline = time.monotonic() + REJOIN_LIMIT_S
    while True:
        partitions = _admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
        if partitions and all(len(partition.isrs) == len(cluster.servers) for partition in partitions):
            return
        if time.monotonic() > deadline:
            raise ServerFailed(f"{cluster.name}: not all replicas came back into the ISR\n{cluster.tail()}")
        time.sleep(0.2)
