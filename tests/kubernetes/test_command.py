"""What `./ballast e2e` refuses before anything is built."""

from __future__ import annotations

import pytest

from ballast_cli import CommandError, e2e
from ballast_cli.__main__ import load


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--seed 1", "--seed is of --faults"),
        ("--away 5 git", "without names of scenarios"),
        ("--away 5 --faults 5", "without --faults"),
        ("--faults 5 --provider embedded", "--provider host"),
        ("--faults 5 git", "without names of scenarios"),
        ("--provider embedded git sotry", "no scenario has 'sotry' in its name"),
        ("--list command", "no scenario has 'command' in its name"),
    ],
)
def test_what_cannot_work_is_refused(line: str, told: str) -> None:
    command = load("e2e")
    with pytest.raises(CommandError, match=told):
        e2e.run(command.parse(line.split()))
