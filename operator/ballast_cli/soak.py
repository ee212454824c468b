"""The long versions of what CI runs briefly.

kill: one broker under load, killed with -9 at random moments 0.2 to 5 s apart, N times on one data directory; after
each start nothing acknowledged may be missing and offsets and indexes must be right.
sim: N schedules of faults in the simulation, from a seed on, on two processes; failing seeds are printed with what
happened.
operator: the operator behind an API that fails in every way, killed with -9 N times while 200 topics and 20
reassignments are changed at random; then everything must be as the resources say, nothing done twice, throttles gone.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from ballast_cli import CommandError

ROOT = Path(__file__).resolve().parents[2]
NOT_BUILT = ("moves",)
KILLS = 200
SCHEDULES = 20_000
WORKERS = 2
SCHEDULES_PER_LINE = 50
OPERATOR_KILLS = 100
OPERATOR_TOPICS = 200
OPERATOR_REASSIGNMENTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("kill", "sim", "operator", *NOT_BUILT), metavar="kill|sim|moves|operator")
    parser.add_argument(
        "--times",
        type=int,
        metavar="N",
        help=f"kills ({KILLS}; operator: {OPERATOR_KILLS}) or schedules ({SCHEDULES:,})",
    )
    parser.add_argument("--from", type=int, dest="first", metavar="SEED", help="sim: the first seed (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="kill, operator: the moments (any)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data is kept (.ballast/kill-S)")


def run(args: argparse.Namespace) -> int:
    if args.name in NOT_BUILT:
        raise CommandError(f"'soak {args.name}' is not built yet.")
    foreign = ("seed", "data") if args.name == "sim" else ("first",)
    if any(getattr(args, name) is not None for name in foreign):
        raise CommandError(f"'soak {args.name}' has no --{' or --'.join(foreign).replace('first', 'from')}.")
    if args.times is not None and args.times < 1:
        raise CommandError("--times must be at least 1.")
    sys.path.append(str(ROOT))
    if args.name == "sim":
        return soak_simulation(args.first or 0, args.times or SCHEDULES)
    if args.name == "operator":
        return soak_operator(args.times or OPERATOR_KILLS, args.seed, args.data)
    return soak_kills(args.times or KILLS, args.seed, args.data)


def soak_kills(times: int, wanted_seed: int | None, data: Path | None) -> int:
    from e2e.kills import Kills, Settings
    from e2e.processes import until_interrupted

    from ballast_cli.chaos import data_folder, say

    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"kill-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    verdict = until_interrupted(Kills(folder, Settings(seed, times), say).run)
    rate = verdict.loaded_bytes / max(verdict.loaded_s, 0.001) / 1e6
    summary = (
        f"{verdict.kills} kills ({verdict.while_starting} of them while it started), {verdict.acknowledged:,} records "
        f"acknowledged at {rate:.1f} MB/s while it ran, {verdict.index_entries:,} index entries read, trimmed "
        f"{verdict.trimmed} times, slowest start {verdict.slowest_start_s:.1f} s"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: nothing lost, nothing doubled, offsets and indexes right")
        return 0
    print(f"\n{summary}\nseed {seed} FAILED; the data is in {folder}:")
    print("\n".join(f"  {finding}" for finding in verdict.findings))
    return 1


def soak_operator(kills: int, wanted_seed: int | None, data: Path | None) -> int:
    """One long ordeal of tests/operator."""
    sys.path.append(str(ROOT / "tests" / "operator"))
    from ballast_cli.chaos import data_folder, say

    ordeal, worlds = importlib.import_module("ordeal"), importlib.import_module("world")
    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"operator-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    world = worlds.World(folder)
    try:
        world.start()
        volumes = [{"name": name, "size": "4Gi"} for name in ("a", "b")]
        world.start_cluster(brokers=3, volumes=volumes, resyncSeconds=10)
        settings = ordeal.Settings(
            seed, OPERATOR_TOPICS, OPERATOR_REASSIGNMENTS, kills, outages=max(1, kills // 5), calm_seconds=300.0
        )
        verdict = ordeal.Ordeal(world, settings, say).run()
    finally:
        world.stop()
    faults = ", ".join(f"{count} {name}" for name, count in sorted(verdict.faults.items()))
    summary = (
        f"{verdict.kills} kills in {verdict.seconds:.0f} s, {OPERATOR_TOPICS} topics, {OPERATOR_REASSIGNMENTS} "
        f"reassignments; faults: {faults}; all settled {verdict.settled_seconds:.1f} s after the last of them"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: everything as it should be, nothing done twice, throttles gone")
        return 0
    print(f"\n{summary}\nseed {seed} FAILED; the data is in {folder}:")
    print("\n".join(f"  {finding}" for finding in verdict.findings))
    return 1


def soak_simulation(first: int, times: int) -> int:
    """Every seed of the range; the exit code is 1 where one failed."""
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    failed: list[int] = []
    played = 0
    pool = ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)
    try:
        results = {pool.submit(_play, seed): seed for seed in range(first, first + times)}
        for result in as_completed(results):
            played += 1
            told = result.result()
            if told is not None:
                failed.append(results[result])
                print(f"\n{told}", flush=True)
            if played % SCHEDULES_PER_LINE == 0:
                took = time.monotonic() - began
                print(f"{played} of {times} schedules after {took:.0f} s, {len(failed)} failed", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {played} of {times} schedules; failed: {sorted(failed) or 'none'}", flush=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    took = time.monotonic() - began
    verdict = f"seeds {', '.join(map(str, sorted(failed)))} FAILED" if failed else "everything held"
    print(f"{times} schedules, seeds {first} to {first + times - 1}, in {took:.0f} s: {verdict}")
    return 1 if failed else 0


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    os.nice(5)


def _play(seed: int) -> str | None:
    told: str | None = importlib.import_module("tests.sim.test_many").fails(seed)
    return told
