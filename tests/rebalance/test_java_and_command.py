"""Which Java is taken, and the command line's arguments."""

from __future__ import annotations

import argparse
import stat
import subprocess
from pathlib import Path

import pytest

from ballast_rebalance import command, java_home


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.mark.spec("REB-01")
def test_java_home_then_path_then_the_packaged_one(tmp_path: Path) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.1"), fake_java(tmp_path / "old", "1.8.0_292")
    assert java_home.find_java_home({"JAVA_HOME": str(new), "PATH": ""}) == new
    assert java_home.find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new
    assert java_home.java_version(old / "bin" / "java") == 8
    packaged = java_home.find_java_home({"JAVA_HOME": str(old), "PATH": ""})
    assert (java_home.java_version(packaged / "bin" / "java") or 0) >= 21


@pytest.mark.spec("REB-01")
def test_the_packaged_java_leaves_out_the_module_it_lacks() -> None:
    java = java_home.packaged_java_home() / "bin" / "java"
    found = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "a = b c" in found.stderr


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


def test_arguments_reach_the_options() -> None:
    options = command.job_options(
        parsed("--prometheus", "http://p", "--cluster-label", "namespace=x", "--throttle-disk", "50Mi",
               "--horizon", "2h", "--exclude-topic", "a", "--exclude-topic", "b", "--only-disks", "--max-moves", "7")
    )  # fmt: skip
    assert options.metrics is not None
    assert options.metrics.match == 'namespace="x"'
    assert options.planning.excluded_topics == frozenset({"a", "b"})
    assert (options.planning.max_moves, options.planning.across_brokers) == (7, False)
    assert options.planning.intra_broker_bytes_per_second == 50 * 1024 * 1024
    assert options.horizon_s == 7_200


def test_arguments_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(parsed()) == 2
    assert "--prometheus" in capsys.readouterr().err
    assert command.run(parsed("--bootstrap", "h:1", "--stream")) == 2
    for arguments in (["--horizon", "x"], ["--capacity", "1.5X"], ["--cluster-label", "nothing", "--prometheus", "p"]):
        with pytest.raises((SystemExit, argparse.ArgumentTypeError)):
            command.job_options(parsed(*arguments))
