"""What `./ballast test` without arguments makes of its stages."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace

import pytest

from ballast_cli import test as command
from ballast_cli.places import ROOT
from ballast_cli.test import Stage

FINE = ("-c", "")
WRONG = ("-c", "print('a sentence of it'); raise SystemExit(3)")


@pytest.mark.parametrize("wrong", ["lint", "types", "tests", "nothing"])
def test_all_stages_run_and_what_is_wrong_is_told(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stage(name: str) -> Stage:
        return Stage(name, WRONG if name == wrong else FINE)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "STAGES", (stage("lint"), stage("format")))
    monkeypatch.setattr(command, "TYPES", stage("types"))
    monkeypatch.setattr(command, "TESTS", stage("tests"))
    monkeypatch.setattr(command, "reading_in", lambda _: subprocess.Popen((sys.executable, *FINE)))
    assert command.run(Namespace(rest=[])) == (wrong != "nothing")
    told = capfd.readouterr().out
    assert told.count("a sentence of it") == (wrong != "nothing")
    states = dict(re.findall(r"^(\w+) +(ok|FAILED \(3\)) ", told, re.MULTILINE))
    assert states == {name: "FAILED (3)" if name == wrong else "ok" for name in ("lint", "format", "types", "tests")}
