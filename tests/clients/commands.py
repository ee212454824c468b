"""Runs each of our own commands against a cluster that must admit them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from ballast_cli import command_config
from ballast_cli.__main__ import main
from ballast_rebalance.admin import measure_by_admin, require_answer


def all_come_in(bootstrap: str, file: Path, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All commands get in with this properties file; the topic exists."""
    at = ["--bootstrap", bootstrap, "--command-config", str(file)]
    assert main(["status", *at]) == 0
    said = capsys.readouterr()
    assert ("volume-0" in said.out, said.err) == (True, "")
    assert main(["reassign", "generate", *at, "--topics", topic, "--json", f"{file}.plan.json"]) == 0
    options = command_config.library_options(Namespace(bootstrap=bootstrap, command_config=file), "test")
    require_answer(bootstrap, options)
    assert topic in set(measure_by_admin(bootstrap, options).replicas["topic"])
