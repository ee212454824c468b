"""`./ballast bench partitions`: thousands of partitions on one broker, Ballast and then Apache Kafka.

Every partition gets a little data. Then: memory, threads and open files at rest, the time to stop, and the time from
a start after that clean stop to the first answer and until partitions can be written to again. One after the other.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

from bench.clients import Clients
from bench.servers import ApacheKafka, Ballast, Server

COUNT = 10_000
QUICK_COUNT = 200
PER_TOPIC = 40  # one connection for each while it is written to: fewer than a listener's backlog
VOLUMES = 3
REST_S = 3.0
IDLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    create_s: float
    memory_mb: float
    open_files: int
    idle_cpu_percent: float
    stop_s: float
    start_s: float
    writable_s: float
    memory_after_start_mb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=0, help=f"partitions (default: {COUNT}; --quick: {QUICK_COUNT})")


def run(args: argparse.Namespace) -> int:
    count = args.count or (QUICK_COUNT if args.quick else COUNT)
    with Clients.built() as clients:
        ours, theirs = (measure(clients, kind(volumes=VOLUMES), count) for kind in (Ballast, ApacheKafka))
    own, other = asdict(ours), asdict(theirs)
    ratios = {name: own[name] / other[name] for name in own if other[name]}
    print(f"{f'{count} partitions':24} {'Ballast':>10} {'Kafka':>10} {'ratio':>8}")
    for name in own:
        print(f"{name:24} {own[name]:>10.2f} {other[name]:>10.2f} {ratios.get(name, 0):>8.3f}")
    if args.json:
        print(json.dumps({"bench": "partitions", "count": count, "ballast": own, "kafka": other, "ratios": ratios}))
    return 0


def measure(clients: Clients, server: Server, count: int) -> Figures:
    with server:
        began = time.perf_counter()
        topics = [clients.new_topic(server, PER_TOPIC) for _ in range(max(1, count // PER_TOPIC))]
        created = time.perf_counter() - began
        time.sleep(REST_S)
        memory, files = server.memory_bytes() / 1e6, server.open_files()
        before = server.cpu_seconds()
        time.sleep(IDLE_S)
        idle = (server.cpu_seconds() - before) * 100 / IDLE_S
        began = time.perf_counter()
        server.stop()
        stopped = time.perf_counter() - began
        began = time.perf_counter()
        server.start()
        for topic in topics:
            clients.await_writable(server, topic, PER_TOPIC)
        writable = time.perf_counter() - began
        figures = Figures(
            created, memory, files, idle, stopped, server.start_seconds, writable, server.memory_bytes() / 1e6
        )
        # Print now: deleting so many files takes a while, and so does the other server's turn.
        said = ", ".join(f"{name} {value:.2f}" for name, value in asdict(figures).items())
        print(f"{server.name}, {count} partitions: {said}", flush=True)
        return figures
