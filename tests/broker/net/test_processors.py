"""The number of CPUs by a container's limit, and without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ballast_broker.net import processors


@pytest.mark.parametrize(
    ("limit", "machine", "usable"),
    [
        ("max 100000", 2, 2),
        ("200000 100000", 8, 2),
        ("150000 100000", 8, 1.5),
        ("400000 100000", 2, 2),
        ("", 3, 3),
        (None, 1, 1),
    ],
)
def test_the_smaller_of_limit_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, machine: int, usable: float
) -> None:
    monkeypatch.setattr(processors, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(machine)), raising=False)
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert processors.usable() == usable
