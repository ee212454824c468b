"""Moves between directories and between brokers under load and kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ballast_cli.soaks import Outcome

MOVES_PER_KILL = 5
RECORDS_PER_SECOND = 1000
VALUE_BYTES = 1000


def begin(folder: Path, seed: int, times: int, say: Callable[[str], None]) -> Outcome:
    from e2e.move_soak import MoveSettings, MoveSoak

    kills = (times + MOVES_PER_KILL - 1) // MOVES_PER_KILL
    settings = MoveSettings(
        seed, rounds=times, kills=kills, records_per_second=RECORDS_PER_SECOND, value_bytes=VALUE_BYTES
    )
    verdict = MoveSoak(folder, settings, say).run()
    summary = (
        f"{times} moves between directories, {times} reassignments and {verdict.faults} kills; "
        f"{verdict.acknowledged:,} records acknowledged, {verdict.consumed:,} read"
    )
    held = "nothing lost, nothing doubled, one log of each replica and no other files"
    return Outcome(summary, held, verdict.findings)
