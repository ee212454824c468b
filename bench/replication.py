"""`./ballast bench replication`: acks=all over three brokers, Ballast beside Apache Kafka, the same client in turns.

Both clusters run all the time. Throughput is librdkafka with 1 KB records and as many in flight as it likes; latency is
one record at a time, waited for. The cost is that of all three brokers together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.machine import touch_memory
from bench.pairs import Ratio, ratio_of
from bench.servers import ApacheKafka, Ballast, Cluster, ServerFailed

REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2", "offsets.topic.replication.factor": "3"}
RECORD_BYTES = 1000
TOPIC = "bench-replication"
PARTITIONS = 6
READY_LIMIT_S = 60
FLUSH_LIMIT_S = 180
MB = 1_000_000
MEMORY = 1 << 30
UNPACED_NETWORK = True


@dataclass(frozen=True, slots=True)
class Sample:
    mb_per_s: float
    cpu_s_per_gb: float
    p50_ms: float
    p99_ms: float


@dataclass
class Side:
    cluster: Cluster
    samples: list[Sample] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=11, help="pairs of runs (default: 11; with --quick: 1)")


def run(args: argparse.Namespace) -> int:
    size, records, pairs = (5 * MB, 100, 1) if args.quick else (200 * MB, 2000, args.pairs)
    with Cluster(ApacheKafka, 3, overrides=REPLICATED) as kafka, Cluster(Ballast, 3, overrides=REPLICATED) as ballast:
        ours, theirs = Side(ballast), Side(kafka)
        for side in (ours, theirs):
            create_topic(side.cluster)
            measure(side.cluster, size, records)  # warm
        for number in range(pairs):
            for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                side.samples.append(measure(side.cluster, size, records))
        memory = [side.cluster.memory_bytes() / MB for side in (ours, theirs)]
    ratios = report(ours, theirs, memory)
    if args.json:
        print(json.dumps({"bench": "replication", "ok": not missed(ratios), "ratios": _plain(ratios)}))
    return 0


def create_topic(cluster: Cluster) -> None:
    """Retry until it succeeds: three replicas need all three brokers."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
            return
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{cluster.name}: no topic with three replicas: {error}\n{cluster.tail()}"
                ) from error
            time.sleep(0.2)


def measure(cluster: Cluster, size_bytes: int, records: int) -> Sample:
    touch_memory(MEMORY)
    before, began = cluster.cpu_seconds(), time.perf_counter()
    _produce(cluster, size_bytes)
    took, used = time.perf_counter() - began, cluster.cpu_seconds() - before
    latencies = _latencies(cluster, records)
    return Sample(
        size_bytes / took / MB,
        used * 1000 * MB / size_bytes,
        statistics.median(latencies),
        sorted(latencies)[len(latencies) * 99 // 100],
    )


def _produce(cluster: Cluster, size_bytes: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
    value = bytes(RECORD_BYTES)
    for _ in range(size_bytes // RECORD_BYTES):
        while True:
            try:
                producer.produce(TOPIC, value)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(FLUSH_LIMIT_S)
    if left:
        raise ServerFailed(f"{cluster.name}: {left} records were not taken")


def _latencies(cluster: Cluster, records: int) -> list[float]:
    """Milliseconds from handing over one record to its acknowledgement by the whole ISR."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    value, found = bytes(RECORD_BYTES), []
    for number in range(records):
        began = time.perf_counter()
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
        producer.flush(FLUSH_LIMIT_S)
        found.append((time.perf_counter() - began) * 1000)
    return found[PARTITIONS:]  # the first of each partition connects


def report(ours: Side, theirs: Side, memory: list[float]) -> dict[str, tuple[Ratio, float, bool]]:
    """Print the table; returns each ratio with its goal and whether more is better."""
    figures: dict[str, tuple[Callable[[Sample], float], float, bool]] = {
        "acks=all, MB/s": (lambda sample: sample.mb_per_s, 1.0, True),
        "acks=all, CPU s/GB of all brokers": (lambda sample: sample.cpu_s_per_gb, 0.8, False),
        "acks=all, one record, p50 ms": (lambda sample: sample.p50_ms, 1.0, False),
        "acks=all, one record, p99 ms": (lambda sample: sample.p99_ms, 1.0, False),
    }
    ratios = {}
    print(f"{'':36} {'Ballast':>9} {'Kafka':>9} {'ratio':>20}  goal")
    for name, (value, goal, more) in figures.items():
        own, other = [value(s) for s in ours.samples], [value(s) for s in theirs.samples]
        ratio = ratio_of([a / b for a, b in zip(own, other, strict=True)])
        ratios[name] = (ratio, goal, more)
        below = "  BELOW" if name in missed({name: ratios[name]}) else ""
        sign = ">=" if more else "<="
        print(
            f"{name:36} {statistics.median(own):>9.2f} {statistics.median(other):>9.2f} {ratio.text():>20}"
            f"  {sign} {goal}{below}"
        )
    print(f"{'memory of three brokers, MB':36} {memory[0]:>9.0f} {memory[1]:>9.0f} {memory[0] / memory[1]:>20.3f}")
    return ratios


def missed(ratios: dict[str, tuple[Ratio, float, bool]]) -> list[str]:
    return [
        name for name, (ratio, goal, more) in ratios.items() if (ratio.median < goal if more else ratio.median > goal)
    ]


def _plain(ratios: dict[str, tuple[Ratio, float, bool]]) -> dict[str, list[float]]:
    return {name: [ratio.median, ratio.low, ratio.high] for name, (ratio, _, _) in ratios.items()}
