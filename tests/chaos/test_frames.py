"""A short run of `./ballast soak frames`, and that it sees what it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.frames import Frames, Settings
from e2e.mutations import Mutator


@pytest.mark.spec("CLI-08", "LOG-03", "CLI-09")
@pytest.mark.timeout(300)
def test_mutated_frames_and_batches_harm_nobody(tmp_path: Path) -> None:
    verdict = Frames(tmp_path, Settings(20260, 1500, silence_s=30.0), lambda line: None).run()
    assert verdict.findings == []
    assert verdict.frames >= 1500
    assert verdict.batches > 50, "some batches are sound enough to be stored"
    assert verdict.acknowledged > 0


def test_a_seed_gives_the_same_frames() -> None:
    first, again, other = (Mutator(seed, ["a", "b"]) for seed in (1, 1, 2))
    frames = [first.frames() for _ in range(20)]
    assert frames == [again.frames() for _ in range(20)]
    assert frames != [other.frames() for _ in range(20)]
