"""Kills one broker under load again and again, on one data directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ballast_cli.soaks import Outcome
from ballast_operator.model.quantity import counted


def begin(folder: Path, seed: int, times: int, say: Callable[[str], None]) -> Outcome:
    from e2e.kills import Kills, Settings

    verdict = Kills(folder, Settings(seed, times), say).run()
    rate = verdict.loaded_bytes / max(verdict.loaded_s, 0.001) / 1e6
    summary = (
        f"{counted(verdict.kills, 'kill')} ({verdict.while_starting} of them while it started), "
        f"{verdict.acknowledged:,} records acknowledged at {rate:.1f} MB/s while it ran, "
        f"{verdict.index_entries:,} index entries read, trimmed {counted(verdict.trimmed, 'time')}, "
        f"slowest start {verdict.slowest_start_s:.1f} s"
    )
    return Outcome(summary, "nothing lost, nothing doubled, offsets and indexes right", verdict.findings)
