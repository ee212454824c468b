"""`./ballast bench operator`: KafkaTopics from the first of 16 parallel creates to the last Ready.

The embedded Kubernetes, the operator and three brokers run as they do in `./ballast up`, each in a process of its own;
with --provider host they are pods of a real Kubernetes on this machine (`./ballast e2e` says what it needs).
Told: topics per second, the operator's memory and requests, what it writes when nothing happens, and how long an
operator that starts needs until it is quiet. CPU seconds per process say which of them the limit is.
Its data lies under TMPDIR: in memory no disk is measured.
"""

# ruff: noqa: A005  (named as the command is; nobody imports it by another path)
from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from bench.operator_beds import BEDS, Bed, Shape

QUIET_S = 70.0
QUICK_QUIET_S = 10.0
TOPICS_PER_SECOND_GOAL = 200
MANY_TOPICS, MANY_TOPICS_GOAL_S = 10_000, 90  # this many topics, all within this time
MEMORY_GOAL_MB = 300
REQUESTS_GOAL = 3.0
RESTART_GOAL_S = 30.0


SHAPES = (Shape(1_000, 12, 3), Shape(10_000, 1, 1))
QUICK = (Shape(200, 12, 3), Shape(1_000, 1, 1))


@dataclass
class Row:
    """The measurements of one shape."""

    shape: str
    seconds: float = 0.0
    created_seconds: float = 0.0
    topics_per_second: float = 0.0
    requests_per_topic: float = 0.0
    operator_mb: float = 0.0
    quiet_seconds: float = 0.0
    quiet_writes: float = 0.0
    restart_seconds: float = 0.0
    restart_mb: float = 0.0
    restart_writes: float = 0.0
    cpu_seconds: Mapping[str, float] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", metavar="TOPICSxPARTITIONSxREPLICAS", help="only this one, such as 1000x12x3")
    parser.add_argument(
        "--provider", choices=sorted(BEDS), default="embedded", help="which Kubernetes (default: embedded)"
    )
    parser.add_argument(
        "--quiet",
        metavar="MINUTES",
        type=float,
        help="how long to watch for writes while nothing happens (default: 1.2)",
    )


def run(args: argparse.Namespace) -> int:
    rows = []
    quiet_s = args.quiet * 60 if args.quiet else QUICK_QUIET_S if args.quick else QUIET_S
    print(HEADER)
    for shape in _shapes(args):
        row = asyncio.run(measure(BEDS[args.provider](), shape, quiet_s))
        print(_line(row), flush=True)
        rows.append(row)
    missed = [f"{row.shape}: {goal}" for row in rows for goal in missed_goals(row)]
    for line in missed:
        print(f"  missed  {line}")
    if args.json:
        print(
            json.dumps(
                {
                    "bench": "operator",
                    "provider": args.provider,
                    "missed": missed,
                    "cases": [asdict(row) for row in rows],
                }
            )
        )
    return 0


def _shapes(args: argparse.Namespace) -> tuple[Shape, ...]:
    if args.shape:
        return (Shape(*(int(text) for text in args.shape.split("x"))),)
    return QUICK if args.quick else SHAPES


def missed_goals(row: Row) -> list[str]:
    many = int(row.shape.partition("x")[0]) >= MANY_TOPICS
    goal = MANY_TOPICS / MANY_TOPICS_GOAL_S if many else TOPICS_PER_SECOND_GOAL
    goals = {
        f"{row.topics_per_second:.0f} topics/s, goal {goal:.0f}": row.topics_per_second >= goal,
        f"{row.operator_mb:.0f} MB, goal {MEMORY_GOAL_MB}": max(row.operator_mb, row.restart_mb) <= MEMORY_GOAL_MB,
        f"{row.requests_per_topic:.2f} requests per topic, goal {REQUESTS_GOAL}": row.requests_per_topic
        <= REQUESTS_GOAL,
        f"{row.quiet_writes:.0f} writes in quiet": row.quiet_writes == 0,
        f"quiet {row.restart_seconds:.1f} s after a start, goal {RESTART_GOAL_S}": row.restart_seconds
        <= RESTART_GOAL_S,
    }
    return [goal for goal, met in goals.items() if not met]


async def measure(bed: Bed, shape: Shape, quiet_s: float) -> Row:
    row = Row(shape.name)
    async with bed:
        await bed.start_operator()
        await bed.start_cluster()
        await bed.until_quiet()
        before, cpu_before = await bed.metrics(), bed.cpu()
        row.created_seconds, row.seconds = await bed.create(shape)
        await bed.until_quiet()
        after, cpu_after = await bed.metrics(), bed.cpu()
        row.topics_per_second = shape.topics / row.seconds
        row.requests_per_topic = (requests(after) - requests(before)) / shape.topics
        row.operator_mb = bed.operator_mb()
        row.cpu_seconds = {name: cpu_after[name] - cpu_before[name] for name in cpu_after}
        await bed.until_told(shape)
        told = await bed.metrics()
        await asyncio.sleep(quiet_s)
        row.quiet_seconds = quiet_s
        row.quiet_writes = writes(await bed.metrics()) - writes(told)
        await bed.kill_operator()
        begun = time.perf_counter()
        await bed.start_operator()
        await bed.until_quiet(shape.topics)
        row.restart_seconds = time.perf_counter() - begun
        row.restart_mb = bed.operator_mb()
        row.restart_writes = writes(await bed.metrics())
    return row


def requests(metrics: Mapping[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("ballast_operator_api_requests_total"))


def writes(metrics: Mapping[str, float]) -> float:
    return requests(metrics) - metrics.get('ballast_operator_api_requests_total{verb="GET"}', 0.0)


HEADER = (
    f"{'shape':>12} {'seconds':>8} {'topics/s':>8} {'requests':>8} {'MB':>5} {'quiet writes':>14} "
    f"{'restart':>9} {'MB':>5} {'CPU s: operator':>15} {'Kubernetes':>10} {'brokers':>8}"
)


def _line(row: Row) -> str:
    cpu = row.cpu_seconds or {}
    return (
        f"{row.shape:>12} {row.seconds:>8.1f} {row.topics_per_second:>8.1f} {row.requests_per_topic:>8.2f} "
        f"{row.operator_mb:>5.0f} {f'{row.quiet_writes:.0f} in {row.quiet_seconds:.0f} s':>14} "
        f"{row.restart_seconds:>7.1f} s {row.restart_mb:>5.0f} {cpu.get('operator', 0):>15.1f} "
        f"{cpu.get('kubernetes', 0):>10.1f} {cpu.get('brokers', 0):>8.1f}"
    )


__all__ = ["add_arguments", "measure", "run"]
