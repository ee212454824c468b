"""The bounded version of `./ballast soak moves`: replicas move and brokers are killed, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.move_soak import MoveSettings, MoveSoak


@pytest.mark.disks
@pytest.mark.timeout(400)
@pytest.mark.spec("DIR-31", "CLU-31", "DIR-29", "CLU-30")
def test_moves_and_reassignments_under_load_with_kills(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = MoveSettings(3, rounds=10, kills=3, records_per_second=400, value_bytes=1000, keep_bytes=2 << 20)
    verdict = MoveSoak(tmp_path / "cluster", settings, lines.append).run()
    assert not verdict.findings, "\n".join([*verdict.findings, *lines])
    assert verdict.faults == 3
    assert verdict.acknowledged > 1000
