"""Runs one long ordeal of tests/operator: the operator behind a failing API, killed again and again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from ballast_cli.places import ROOT
from ballast_cli.soaks import Outcome
from ballast_operator.model.quantity import counted

SCENARIOS = ROOT / "tests" / "operator"
TOPICS = 200
REASSIGNMENTS = 20
KILLS_PER_OUTAGE = 5
VOLUMES = [{"name": name, "size": "4Gi"} for name in ("a", "b")]


def begin(folder: Path, seed: int, times: int, say: Callable[[str], None]) -> Outcome:
    sys.path.append(str(SCENARIOS))
    ordeal, worlds = importlib.import_module("ordeal"), importlib.import_module("world")
    world = worlds.World(folder)
    try:
        world.start()
        world.start_cluster(brokers=3, volumes=VOLUMES, resyncSeconds=10)
        outages = max(1, times // KILLS_PER_OUTAGE)
        settings = ordeal.Settings(seed, TOPICS, REASSIGNMENTS, times, outages=outages, calm_seconds=300.0)
        verdict = ordeal.Ordeal(world, settings, say).run()
    finally:
        world.stop()
    faults = ", ".join(f"{count} {name}" for name, count in sorted(verdict.faults.items()))
    summary = (
        f"{counted(verdict.kills, 'kill')} in {verdict.seconds:.0f} s, {TOPICS} topics, {REASSIGNMENTS} reassignments; "
        f"faults: {faults}; all settled {verdict.settled_seconds:.1f} s after the last of them"
    )
    return Outcome(summary, "everything as it should be, nothing done twice, throttles gone", verdict.findings)
