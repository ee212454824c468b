"""Sends mutated requests and record batches to one broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ballast_cli.soaks import Outcome


def begin(folder: Path, seed: int, times: int, say: Callable[[str], None]) -> Outcome:
    from e2e.frames import Frames, Settings

    verdict = Frames(folder, Settings(seed, times), say).run()
    summary = (
        f"{verdict.frames:,} mutated frames on {verdict.connections:,} connections ({verdict.given_up:,} given up on), "
        f"{verdict.answer_bytes:,} bytes of answers, {verdict.batches:,} batches on disk; memory grew by "
        f"{verdict.growth_kb / 1024:.0f} MiB; {verdict.acknowledged:,} records of another client, never silent for "
        f"more than {verdict.silence_s:.1f} s"
    )
    return Outcome(summary, "no crash, no hang, no growth, logs sound", verdict.findings)
