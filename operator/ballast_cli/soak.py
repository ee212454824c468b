"""The long versions of what CI runs briefly.

kill: one broker under load, killed with -9 at random moments 0.2 to 5 s apart, N times on one data directory; after
each start nothing acknowledged may be missing and offsets and indexes must be right.
moves: N moves between directories and N reassignments under load, with a kill -9 in every fifth of them; nothing lost,
nothing doubled, one current log of each replica, and no other files.
sim: N schedules of faults in the simulation, from a seed on, on two processes; failing seeds are printed with what
happened.
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
NOT_BUILT = ("operator",)
KILLS = 200
SCHEDULES = 20_000
MOVES = 100
MOVES_PER_KILL = 5
WORKERS = 2
SCHEDULES_PER_LINE = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("kill", "sim", "moves", *NOT_BUILT), metavar="kill|sim|moves|operator")
    parser.add_argument(
        "--times", type=int, metavar="N", help=f"kills ({KILLS}), moves ({MOVES}) or schedules ({SCHEDULES:,})"
    )
    parser.add_argument("--from", type=int, dest="first", metavar="SEED", help="sim: the first seed (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="kill, moves: the moments (any)")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="kill, moves: where the data is kept (.ballast/NAME-S)"
    )


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
    if args.name == "moves":
        return soak_moves(args.times or MOVES, args.seed, args.data)
    return soak_kills(args.times or KILLS, args.seed, args.data)


def soak_moves(times: int, wanted_seed: int | None, data: Path | None) -> int:
    from e2e.move_soak import MoveSettings, MoveSoak
    from e2e.processes import end_on_signals

    end_on_signals()
    from ballast_cli.chaos import data_folder, say

    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"moves-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    kills = (times + MOVES_PER_KILL - 1) // MOVES_PER_KILL
    settings = MoveSettings(seed, rounds=times, kills=kills, records_per_second=1000, value_bytes=1000)
    soak = MoveSoak(folder, settings, say)
    verdict = soak.run()
    summary = (
        f"{times} moves between directories, {times} reassignments and {verdict.faults} kills; "
        f"{verdict.acknowledged:,} records acknowledged, {verdict.consumed:,} read; {soak.strays()} logs put aside by "
        f"brokers that were down when their replicas left"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: nothing lost, nothing doubled, one log of each replica and no other files")
        return 0
    print(f"\n{summary}\nseed {seed} FAILED; the data is in {folder}:")
    print("\n".join(f"  {finding}" for finding in verdict.findings))
    return 1


def soak_kills(times: int, wanted_seed: int | None, data: Path | None) -> int:
    from e2e.kills import Kills, Settings
    from e2e.processes import end_on_signals

    end_on_signals()
    from ballast_cli.chaos import data_folder, say

    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"kill-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    verdict = Kills(folder, Settings(seed, times), say).run()
    rate = verdict.acknowledged_bytes / max(verdict.seconds, 0.001) / 1e6
    summary = (
        f"{verdict.kills} kills ({verdict.while_starting} of them while it started), {verdict.acknowledged:,} records "
        f"acknowledged at {rate:.1f} MB/s with all pauses, {verdict.index_entries:,} index entries read, trimmed "
        f"{verdict.trimmed} times, slowest start {verdict.slowest_start_s:.1f} s"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: nothing lost, nothing doubled, offsets and indexes right")
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
