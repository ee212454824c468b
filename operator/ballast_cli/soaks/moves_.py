"""Moves replicas between directories and between brokers, under load and kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ballast_cli.soaks import Outcome
from ballast_operator.model.quantity import counted

MOVES_PER_KILL = 5
LOAD_SHARE = 0.5
PARTITIONS = 12
SEGMENT_BYTES = 16 << 20
KEEP_BYTES = 192 << 20
VALUE_BYTES = 4000
THROTTLE = 64_000_000


def begin(folder: Path, seed: int, times: int, say: Callable[[str], None]) -> Outcome:
    from e2e.dump_log import JARS_VARIABLE
    from e2e.move_soak import MoveSettings, MoveSoak

    kills = (times + MOVES_PER_KILL - 1) // MOVES_PER_KILL
    settings = MoveSettings(
        seed, rounds=times, kills=kills, load_share=LOAD_SHARE, partitions=PARTITIONS, value_bytes=VALUE_BYTES,
        segment_bytes=SEGMENT_BYTES, keep_bytes=KEEP_BYTES, throttle=THROTTLE,
    )  # fmt: skip
    soak = MoveSoak(folder, settings, say)
    verdict = soak.run()
    summary = (
        f"{counted(times, 'move')} between directories, {counted(times, 'reassignment')} and "
        f"{counted(verdict.faults, 'kill')}; "
        f"{verdict.acknowledged:,} records of {VALUE_BYTES:,} bytes acknowledged, {soak.megabytes_per_second:.1f} MB/s "
        f"while replicas moved, {verdict.consumed:,} read; {soak.strays()} logs put aside by brokers that were down "
        f"when their replicas left; "
        + (f"dump-log read {soak.dumped} replicas" if soak.dumped else f"dump-log was not asked ({JARS_VARIABLE})")
    )
    held = "nothing lost, nothing doubled, one log of each replica and no other files"
    return Outcome(summary, held, verdict.findings)
