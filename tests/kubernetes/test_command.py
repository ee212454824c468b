"""What `./ballast e2e` refuses before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.kubernetes import binaries

from ballast_cli.__main__ import load


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "--provider says where"),
        ("git", "--provider says where"),
        ("--prepare", "--provider says where"),
        ("--faults 5", "--provider says where"),
        ("--seed 1", "--seed is of --faults"),
        ("--away 5 --provider host git", "without names of scenarios"),
        ("--away 5 --provider host --faults 5", "without --faults"),
        ("--faults 5 --provider embedded", "--provider host"),
        ("--faults 5 --provider host git", "without names of scenarios"),
    ],
)
def test_what_cannot_work_is_refused(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("e2e").parse(line.split())
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("line", "part"), [("--provider embedded git sotry", "sotry"), ("--list command", "command")])
def test_a_scenario_that_is_not_there_is_refused(line: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("e2e").parse(line.split())
    assert f"no scenario has '{part}' in its name" in capsys.readouterr().err


def test_go_is_needed_only_until_all_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALLAST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binaries.missing_for_build() == ["Go 1.21 or newer (apt-get install golang-go, or from go.dev)"]
    binaries._folder().mkdir(parents=True)
    assert binaries.missing_for_build() == []
