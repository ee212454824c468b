"""`./ballast bench scale`: what more broker processes on one machine bring, and Apache Kafka's one process beside them.

A broker computes on one thread, so a machine with more cores runs more brokers. One broker, then several that share
nothing but the machine, then Apache Kafka get the same load in turns: small requests and batches of 16 KB, over 16
connections in all. Everything is divided by what one Ballast broker does in the same pair.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bench.clients import GIGABYTE, Clients, Sample
from bench.machine import touch_memory
from bench.pairs import ratio_of
from bench.servers import ApacheKafka, Ballast, Server

CONNECTIONS = 16
PARTITIONS = 8
PAIRS = 7
RUN_S, QUICK_RUN_S = 4.0, 1.0
WARM_S, QUICK_WARM_S = 20.0, 6.0
MEMORY = 4 << 30
UNPACED_NETWORK = True
WORKLOADS = {"small requests, req/s": (100, 100, 1), "16 KB batches, MB/s": (16_384, 1000, 4)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cores = max(2, os.cpu_count() or 2)
    parser.add_argument(
        "--brokers", type=int, default=cores, help=f"brokers at once (default: {cores}, the number of cores)"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of runs (default: {PAIRS}; --quick: 1)")


def run(args: argparse.Namespace) -> int:
    with Clients.built() as clients:
        return _compare(clients, args)


def _compare(clients: Clients, args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka())
        brokers = [stack.enter_context(Ballast()) for _ in range(max(2, args.brokers))]
        clients.warm(kafka, QUICK_WARM_S if args.quick else WARM_S)
        sides: dict[str, Sequence[Server]] = {
            "1 Ballast": brokers[:1],
            f"{len(brokers)} Ballast": brokers,
            "1 Kafka": [kafka],
        }
        ratios: dict[str, dict[str, dict[str, list[float]]]] = {}
        print(f"{'workload':24} {'side':10} {'rate':>9} {'CPU':>8}   rate and CPU, divided by one Ballast broker's")
        for workload, (batch_bytes, record_bytes, depth) in WORKLOADS.items():
            batch = clients.batch_file(batch_bytes, record_bytes)
            samples: dict[str, list[Sample]] = {side: [] for side in sides}
            for turn in range(1 if args.quick else args.pairs):
                for side in list(sides) if turn % 2 == 0 else reversed(sides):
                    samples[side].append(_produce(clients, sides[side], batch, depth, args.quick))
            ratios[workload] = {side: _print(workload, side, samples) for side in sides}
    if args.json:
        print(json.dumps({"bench": "scale", "brokers": len(brokers), "ratios": ratios}))
    return 0


def _produce(clients: Clients, servers: Sequence[Server], batch: Path, depth: int, quick: bool) -> Sample:
    """Load all servers at once, each over its share of the connections; returns the sum of their rates."""
    topics = [clients.new_topic(server, PARTITIONS) for server in servers]
    seconds = QUICK_RUN_S if quick else RUN_S
    touch_memory(MEMORY)
    each = [*map(str, (PARTITIONS, max(1, CONNECTIONS // len(servers)), depth, 1, batch))]
    with ThreadPoolExecutor(len(servers)) as pool:
        for length in (seconds / 4, seconds):  # the first warms up
            before = sum(server.cpu_seconds() for server in servers)
            work = [["produce", topic, *each, str(length)] for topic in topics]
            results = list(pool.map(clients.generate, servers, work))
            used = sum(server.cpu_seconds() for server in servers) - before
    for server, topic in zip(servers, topics, strict=True):
        clients.delete_topic(server, topic)
    if depth == 1:
        requests = sum(result["requests"] for result in results)
        return Sample(sum(result["requests"] / result["seconds"] for result in results), used * 1e6 / requests)
    size = sum(result["bytes"] for result in results)
    return Sample(sum(result["bytes"] / result["seconds"] for result in results) / 1e6, used * GIGABYTE / size)


def _print(workload: str, side: str, samples: dict[str, list[Sample]]) -> dict[str, list[float]]:
    pairs = list(zip(samples[side], samples["1 Ballast"], strict=True))
    rate = ratio_of([sample.rate / one.rate for sample, one in pairs])
    cpu = ratio_of([sample.cpu / one.cpu for sample, one in pairs])
    last = samples[side][-1]
    print(
        f"{workload:24} {side:10} {last.rate:>9.0f} {last.cpu:>8.2f}   {rate.text():>17} {cpu.text():>17}", flush=True
    )
    return {"rate": [rate.median, rate.low, rate.high], "cpu": [cpu.median, cpu.low, cpu.high]}
