"""The long versions of what CI runs briefly.

kill: one broker under load, killed with -9 at random moments 0.2 to 5 s apart, N times on one data directory; after
each start nothing acknowledged may be missing and offsets and indexes must be right.
frames: N mutated requests and record batches from a seeded source at one broker: no crash, no hang, no growth; another
client beside it is served all the time; the logs stay sound.
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
NOT_BUILT = ("moves", "operator")
KILLS = 200
FRAMES = 1_000_000
SCHEDULES = 20_000
WORKERS = 2
SCHEDULES_PER_LINE = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("kill", "frames", "sim", *NOT_BUILT), metavar="kill|frames|sim|moves|operator")
    parser.add_argument(
        "--times", type=int, metavar="N", help=f"kills ({KILLS}), frames ({FRAMES:,}) or schedules ({SCHEDULES:,})"
    )
    parser.add_argument("--from", type=int, dest="first", metavar="SEED", help="sim: the first seed (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="kill, frames: what the dice give (any)")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="kill, frames: where the data is kept (.ballast/NAME-S)"
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
    if args.name == "frames":
        return soak_frames(args.times or FRAMES, args.seed, args.data)
    return soak_kills(args.times or KILLS, args.seed, args.data)


def soak_kills(times: int, wanted_seed: int | None, data: Path | None) -> int:
    from e2e.kills import Kills, Settings
    from e2e.processes import end_on_signals

    end_on_signals()
    from ballast_cli.chaos import data_folder, say

    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"kill-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    verdict = Kills(folder, Settings(seed, times), say).run()
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


def soak_frames(times: int, wanted_seed: int | None, data: Path | None) -> int:
    from e2e.frames import Frames, Settings
    from e2e.processes import end_on_signals

    end_on_signals()
    from ballast_cli.chaos import data_folder, say

    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"frames-{seed}")
    print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
    verdict = Frames(folder, Settings(seed, times), say).run()
    summary = (
        f"{verdict.frames:,} mutated frames on {verdict.connections:,} connections ({verdict.given_up:,} given up on), "
        f"{verdict.answer_bytes:,} bytes of answers, {verdict.batches:,} batches on disk; memory grew by "
        f"{verdict.growth_kb / 1024:.0f} MiB; {verdict.acknowledged:,} records of another client, never silent for "
        f"more than {verdict.silence_s:.1f} s"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: no crash, no hang, no growth, logs sound")
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
