"""Three minutes of faults on real brokers, as CI runs them: `./ballast chaos`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2e import chaos, fault_kinds, hosts

SECONDS = float(os.environ.get("CHAOS_SECONDS", "180"))


@pytest.mark.simulation
@pytest.mark.spec("REP-14", "CLU-01", "CLU-02", "CLU-11", "CLU-12")
@pytest.mark.timeout(1200)
def test_nothing_is_lost_over_minutes_of_faults(tmp_path: Path) -> None:
    """Each kind at least once: those of the network too, where namespaces can be made."""
    told: list[str] = []
    kinds = fault_kinds.kinds(network=hosts.why_not() is None)
    settings = chaos.Settings(seed=11, seconds=SECONDS, least_faults=len(kinds), kinds=kinds)
    verdict = chaos.Chaos(tmp_path, settings, told.append).run()
    assert verdict.findings == [], "\n".join(told)
    assert verdict.faults >= len(kinds), "\n".join(told)
    assert verdict.acknowledged > 1000


@pytest.mark.spec("CLU-01", "REP-13")
@pytest.mark.timeout(600)
def test_a_clock_that_is_set_back_costs_nobody_anything(tmp_path: Path) -> None:
    settings = chaos.Settings(
        seed=5, seconds=0, least_faults=2, most_faults=2, kinds=("step a clock",), pause_seconds=(0.1, 0.2),
        records_per_second=200,
    )  # fmt: skip
    verdict = chaos.Chaos(tmp_path, settings, print).run()
    assert verdict.findings == [], "\n".join(verdict.history)
    assert verdict.longest_silence_s < 60.0
