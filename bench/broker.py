"""`./ballast bench broker`: one Ballast broker beside one Apache Kafka broker, the same clients in turns, as ratios.

Both run all the time, and the clients take turns between them, so that what else the machine does hits both. Figures
of one run compare with nothing but the other side of that run. `--quick` makes one short pair of the raw workloads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench import loop
from bench.clients import Clients
from bench.machine import touch_memory
from bench.servers import ApacheKafka, Ballast, Server
from bench.table import HEAD, Row, Workload

QUICK_BUDGET_S = 40.0  # counted from the start; the rest of the minute is for stopping and for the event loop
QUICK_WARM_S = 6.0
QUICK_LOOP_S = 3.0
LOOP_S = 20.0
WARM_S = 20.0
QUICK_RUN_S = 1.0
RUN_S = 4.0
# Short enough that the kernel does not make writers wait for the disk, which would slow the faster side more.
LARGE_RUN_S = 1.0
MB = 1_000_000
# Touched before each run: more than any run writes.
MEMORY, QUICK_MEMORY = 3 << 30, 1 << 30
PROFILES = True
UNPACED_NETWORK = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="TEXT", help="only workloads whose name contains this")
    parser.add_argument("--pairs", type=int, default=21, help="maximum pairs of each workload (default: 21)")


def run(args: argparse.Namespace) -> int:
    with Clients.built() as clients:
        return _profile(clients, args) if args.profile else _compare(clients, args)


def _compare(clients: Clients, args: argparse.Namespace) -> int:
    deadline = time.monotonic() + QUICK_BUDGET_S if args.quick else float("inf")
    memory = QUICK_MEMORY if args.quick else MEMORY
    with ApacheKafka() as kafka, Ballast() as ballast:
        clients.warm(kafka, QUICK_WARM_S if args.quick else WARM_S)
        clients.warm(ballast, 1.0)
        filled = _Filled(clients, size_bytes=100 * MB if args.quick else 1000 * MB)
        rows = [Row(workload) for workload in _wanted(clients, filled, args)]
        print(HEAD)
        for row in rows:
            for number in range(1 if args.quick else args.pairs):
                if row.narrow or time.monotonic() > deadline:
                    break
                _one_pair(row, ballast, kafka, memory, ours_first=number % 2 == 0)
            if row.ours:
                print(row.text(), flush=True)
        facts = _facts(ballast, kafka)
    measured = [row for row in rows if row.ours]
    for name, (ours, theirs) in facts.items():
        print(f"{name:38} {ours:>7.2f} {theirs:>7.2f} {'':5} {ours / theirs:>17.3f}")
    held = None if args.only else loop.measure(clients, QUICK_LOOP_S if args.quick else LOOP_S)
    if held is not None:
        print(held.text())
    if len(measured) < len(rows):
        print("not measured within --quick:", ", ".join(row.workload.name for row in rows if not row.ours))
    if args.json:
        print(json.dumps(_summary(measured, facts) | ({"event_loop": asdict(held)} if held else {})))
    return 0


def _one_pair(row: Row, ballast: Server, kafka: Server, memory: int, *, ours_first: bool) -> None:
    for server in (ballast, kafka) if ours_first else (kafka, ballast):
        touch_memory(memory)
        (row.ours if server is ballast else row.theirs).append(row.workload.run(server))
    if row.workload.limit is not None:
        row.limits.append(row.workload.limit())


def _facts(ballast: Server, kafka: Server) -> dict[str, tuple[float, float]]:
    return {
        "memory after load, MB": (ballast.memory_bytes() / MB, kafka.memory_bytes() / MB),
        "start to first answer, s": (ballast.start_seconds, kafka.start_seconds),
    }


def _summary(rows: list[Row], facts: dict[str, tuple[float, float]]) -> dict[str, object]:
    return {
        "bench": "broker",
        "ok": not any(row.below() for row in rows),
        "ratios": {row.workload.name: row.as_json() for row in rows},
        **{name: {"ballast": ours, "kafka": theirs, "ratio": ours / theirs} for name, (ours, theirs) in facts.items()},
    }


class _Filled:
    """A topic with data on each server, made when the first workload reads it."""

    def __init__(self, clients: Clients, size_bytes: int) -> None:
        self._clients = clients
        self._size_bytes = size_bytes
        self._topics: dict[Server, tuple[str, int]] = {}

    def on(self, server: Server) -> tuple[str, int]:
        if server not in self._topics:
            self._topics[server] = self._clients.fill(server, self._size_bytes, 1000)
        return self._topics[server]


def _wanted(clients: Clients, filled: _Filled, args: argparse.Namespace) -> list[Workload]:
    every = list(_workloads(clients, filled, QUICK_RUN_S if args.quick else RUN_S))
    if args.only:
        return [workload for workload in every if args.only in workload.name]
    return [workload for workload in every if workload.quick or not args.quick]


def _workloads(clients: Clients, filled: _Filled, seconds: float) -> Iterator[Workload]:
    """The workloads, with their goals: the ratios to Apache Kafka that are to be reached."""
    raw, large_s = partial(clients.produce, seconds=seconds), min(seconds, LARGE_RUN_S)
    small, middle, large = (clients.batch_file(*sizes) for sizes in ((100, 100), (16_384, 1000), (262_144, 1000)))
    for count, rate in ((1, 1.3), (16, 1.1), (64, 1.1)):
        yield Workload(
            f"small produce requests, {count} connections", "req/s", rate, 0.7, 0.8, quick=count < 64,
            run=partial(raw, batch=small, connections=count, depth=1, by_request=True),
            limit=partial(clients.only_answered, small, connections=count, seconds=seconds / 4),
        )  # fmt: skip
    yield Workload(
        "produce, raw, 16 KB batches", "MB/s", 1.5, 0.5, quick=True,
        run=partial(raw, batch=middle, connections=4, depth=4, by_request=False, seconds=large_s),
    )  # fmt: skip
    yield Workload(
        "produce, raw, 256 KB batches", "MB/s", 0.8, 0.8, quick=True,
        run=partial(raw, batch=large, connections=4, depth=2, by_request=False, seconds=large_s),
    )  # fmt: skip
    yield Workload(
        "fetch, raw, 1 KB records", "MB/s", 1.5, 0.5, quick=True,
        run=lambda server: clients.fetch(server, *filled.on(server), seconds),
        limit=partial(clients.only_sent, seconds / 4),
    )  # fmt: skip
    for record, batch, size, cpu in ((100, 16_384, 200, 0.7), (1000, 16_384, 500, 0.7), (10_000, 262_144, 1000, 0.8)):
        yield Workload(
            f"produce, Java, {record} B, {batch // 1024} KB batches", "MB/s", 1.0, cpu,
            run=partial(clients.java_produce, record_bytes=record, batch_bytes=batch, size_bytes=size * MB),
        )  # fmt: skip
    yield Workload(
        "produce, librdkafka, 1 KB", "MB/s", 1.1, 0.8,
        run=partial(clients.librdkafka_produce, record_bytes=1000, size_bytes=500 * MB),
    )  # fmt: skip
    yield Workload(
        "consume, Java, 1 KB", "MB/s", 1.0, 0.4,
        run=lambda server: clients.java_consume(server, *filled.on(server), 1000),
    )  # fmt: skip
    yield Workload(
        "consume, librdkafka, 1 KB", "MB/s", 1.0, 0.4,
        run=lambda server: clients.librdkafka_consume(server, *filled.on(server)),
    )  # fmt: skip


def _profile(clients: Clients, args: argparse.Namespace) -> int:
    """Ballast alone under cProfile, each raw workload once: where the interpreter's time goes (it runs slower)."""
    import pstats

    for name in [workload.name for workload in _wanted(clients, _Filled(clients, 100 * MB), args) if workload.quick]:
        with tempfile.NamedTemporaryFile(suffix=".profile") as file, contextlib.ExitStack() as stack:
            server = Ballast(profile=Path(file.name))
            stack.enter_context(server)
            filled = _Filled(clients, 100 * MB)
            every = _workloads(clients, filled, QUICK_RUN_S)
            next(workload for workload in every if workload.name == name).run(server)
            server.stop()
            print(f"== {name}")
            pstats.Stats(file.name, stream=sys.stdout).sort_stats("tottime").print_stats(25)
    return 0
