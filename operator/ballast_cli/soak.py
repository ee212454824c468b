"""Run the long version of a test that CI runs briefly.

kill      One broker under load is killed (SIGKILL) N times on one data
          directory, at random intervals of 0.2 to 5 s. After each start no
          acknowledged record may be missing, and offsets and indexes must be
          correct.
frames    One broker gets N mutated requests and record batches from a seeded
          generator: no crash, no hang, no memory growth; another client is
          served all the time; the logs stay intact.
moves     N moves between directories and N reassignments under load, with a
          SIGKILL in every fifth of them: nothing lost, nothing duplicated, one
          current log of each replica, and no other files.
operator  The operator, behind an API that fails in every way, is killed N times
          while 200 topics and 20 reassignments are changed at random. Then the
          cluster must match the resources, nothing done twice, throttles
          removed.
sim       N schedules of faults in the simulation, with consecutive seeds, in
          two processes; failing seeds are printed with their history.
"""

from __future__ import annotations

import argparse
import importlib
import secrets
import shutil
import sys
from pathlib import Path

from ballast_cli.arguments import at_least_one, folder
from ballast_cli.chaos import data_folder, on_data, say
from ballast_cli.places import ROOT
from ballast_cli.soaks import Soak, simulation

TIMES = {"kill": 200, "frames": 1_000_000, "moves": 100, "operator": 100, "sim": simulation.TIMES}
NAMES = "|".join(TIMES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usual = ", ".join(f"{name}: {times:,}" for name, times in TIMES.items())
    parser.add_argument("name", choices=tuple(TIMES), metavar=NAMES, help="test to run")
    parser.add_argument("--times", type=at_least_one, metavar="N", help=f"repetitions (default: {usual})")
    parser.add_argument("--from", type=int, dest="first", metavar="SEED", help="sim: first seed (default: 0)")
    parser.add_argument("--seed", type=int, metavar="S", help="all but sim: random seed (default: any)")
    parser.add_argument(
        "--data", type=folder, metavar="DIR", help="all but sim: data directory (default: .ballast/NAME-S)"
    )


def refused(args: argparse.Namespace) -> str | None:
    foreign = ("seed", "data") if args.name == "sim" else ("first",)
    if all(getattr(args, name) is None for name in foreign):
        return None
    return f"'{args.name}' has no --{' or --'.join(foreign).replace('first', 'from')}."


def run(args: argparse.Namespace) -> int:
    times = args.times or TIMES[args.name]
    sys.path.append(str(ROOT))
    if args.name == "sim":
        return simulation.play(args.first or 0, times)
    return soak(args.name, times, args.seed, args.data)


def soak(name: str, times: int, wanted_seed: int | None, data: Path | None) -> int:
    begin: Soak = importlib.import_module(f"ballast_cli.soaks.{name}_").begin
    seed = secrets.randbelow(1_000_000) if wanted_seed is None else wanted_seed
    folder = data_folder(data, f"{name}-{seed}")
    outcome = on_data(folder, seed, lambda: begin(folder, seed, times, say))
    if not outcome.findings:
        shutil.rmtree(folder)
        print(f"{outcome.summary}: {outcome.held}")
        return 0
    print(f"\n{outcome.summary}\nseed {seed} FAILED; the data is in {folder}:")
    print("\n".join(f"  {finding}" for finding in outcome.findings))
    return 1
