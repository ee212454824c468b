"""Inject faults into three real brokers under load, and check the results.

Brokers are killed (a follower, a leader, the active controller, two in turn,
all at once), frozen, restarted, and partitioned from each other or from
everything, in one direction or both, while producers and consumers keep
running. The seed determines the order; every kind of fault occurs once before
any is repeated.

At the end no acknowledged record may be lost or duplicated, each producer's
order must be kept, and all replicas must be equal. Otherwise the exit code is
1, the data is kept, and the seed and the history are printed.

Network partitions need root, for network namespaces; without root they are left
out, and the brokers run on loopback.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ballast_cli import CommandError
from ballast_cli.arguments import folder, minutes
from ballast_cli.places import ROOT, kept
from ballast_operator.model.quantity import counted

T = TypeVar("T")
LONG_MINUTES = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=minutes, default=3.0, metavar="M", help="minutes of faults (default: 3)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed for the order of faults (default: random)")
    parser.add_argument("--data", type=folder, metavar="DIR", help="data directory (default: .ballast/chaos-S)")


def run(args: argparse.Namespace) -> int:
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    folder = data_folder(args.data, f"chaos-{seed}")
    sys.path.append(str(ROOT))
    from e2e.chaos import Chaos, Settings

    settings = Settings(seed, seconds=args.minutes * 60, kinds=kinds(args.minutes))
    verdict = on_data(folder, seed, Chaos(folder, settings, say).run)
    summary = (
        f"{counted(verdict.faults, 'fault')}, {verdict.acknowledged:,} records acknowledged "
        f"({verdict.unplaced} without offset), {verdict.consumed:,} read; "
        f"longest silence of a partition {verdict.longest_silence_s:.1f} s"
    )
    if not verdict.findings:
        shutil.rmtree(folder)
        print(f"{summary}: nothing lost, nothing doubled, order kept, replicas equal")
        return 0
    print(f"\n{summary}\nseed {seed} FAILED:")
    print("\n".join(f"  {finding}" for finding in verdict.findings))
    print("what happened:")
    print("\n".join(f"  {line}" for line in verdict.history))
    print(f"the data is in {folder}; again: ./ballast chaos --seed {seed} --minutes {args.minutes:g}")
    return 1


def kinds(length: float) -> tuple[str, ...]:
    from e2e import fault_kinds, hosts

    missing = hosts.why_not()
    if missing is not None:
        print(f"brokers on loopback, and no faults of the network: {missing}", flush=True)
    return fault_kinds.kinds(network=missing is None, long=length >= LONG_MINUTES)


def say(line: str) -> None:
    print(line, flush=True)


def on_data(folder: Path, seed: int, work: Callable[[], T]) -> T:
    """Run `work` and return its result; if interrupted, tell the user where the data stays."""
    from e2e.processes import until_interrupted

    try:
        print(f"seed {seed}; data in {folder}; Ctrl-C ends it", flush=True)
        return until_interrupted(work)
    except KeyboardInterrupt:
        print(f"interrupted; seed {seed}; the data stays in {folder}", flush=True)
        raise


def data_folder(wanted: Path | None, name: str) -> Path:
    """Create the data folder, which must be empty: a run never starts on another run's data."""
    folder = (wanted or kept(name)).absolute()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{folder} is not empty; remove it, or choose another with --data.")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{folder} cannot be made: {error.strerror}; choose another with --data.") from error
    return folder
