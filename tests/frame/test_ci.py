""".ci/run: stages, their results and the exit code; the stages' commands are stood in for by a script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEWEST = "python3.14"


@pytest.fixture
def run_ci(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs .ci/run where ./ballast ends with the code given for its last argument."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("prometheus", "chromium", "apt-get", "sudo", NEWEST):
        (programs / program).write_text("#!/bin/sh\n")
        (programs / program).chmod(0o755)

    def run(codes: dict[str, str], *stages: str, tested: Sequence[str] = (), **variables: str) -> tuple[int, str, str]:
        cases = "".join(f"  {name}) {action} ;;\n" for name, action in codes.items())
        (tmp_path / "ballast").write_text(f'#!/bin/bash\necho "ran $*"\ncase ${{!#}} in\n{cases}esac\n')
        (tmp_path / "ballast").chmod(0o755)
        marked = "".join(f"@pytest.mark.{name}\ndef test_{name}():\n    pass\n\n\n" for name in tested)
        (tmp_path / "tests" / "test_real.py").write_text(marked)
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
        done = subprocess.run(
            [tmp_path / ".ci" / "run", *stages],
            env=environment, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.split("=== results")[-1], done.stdout + done.stderr

    return run


def test_all_stages_run_and_stages_without_tests_are_no_failure(run_ci: Callable[..., tuple[int, str, str]]) -> None:
    code, table, out = run_ci({}, tested=["prometheus"])
    assert code == 0
    assert [line.split()[:2] for line in table.split("\n")[1:13]] == [
        ["test", "ok"],
        ["python", "ok"],
        ["compiled", "ok"],
        ["simulation", "no"],
        ["disks", "no"],
        ["java", "no"],
        ["go", "no"],
        ["node", "no"],
        ["prometheus", "ok"],
        ["chromium", "no"],
        ["kubernetes", "no"],
        ["in", "all"],
    ]
    assert out.count("ran ") == 4
    assert "ran test --compiled --numprocesses=3 tests/test_real.py -m prometheus\n" in out


def test_a_failure_fails_the_whole_but_not_the_stages_after_it(run_ci: Callable[..., tuple[int, str, str]]) -> None:
    code, table, out = run_ci({"test": "exit 1", "chromium": "exit 3"}, tested=["prometheus", "chromium"])
    assert code == 1
    assert "FAILED (1)" in table
    assert "FAILED (3)" in table
    assert "ran test --compiled --numprocesses=3 tests/test_real.py -m chromium\n" in out


def test_a_stage_reads_only_files_that_name_its_marker(
    run_ci: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for folder in ("one", "all"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        for name in ("test_a.py", "test_b.py"):
            (tmp_path / "tests" / folder / name).write_text("def test_it():\n    pass\n")
    (tmp_path / "tests" / "one" / "test_a.py").write_text("@pytest.mark.kubernetes\ndef test_it():\n    pass\n")
    (tmp_path / "tests" / "all" / "conftest.py").write_text("REAL = pytest.param(1, marks=pytest.mark.kubernetes)\n")
    _, _, out = run_ci({"--prepare": "exit 0"}, "kubernetes", tested=["chromium"])
    [ran] = re.findall(r"ran test (.*)", out)
    assert ran.startswith("--compiled --numprocesses=2 ")
    assert sorted(ran.split()[2:]) == ["-m", "kubernetes", "tests/all", "tests/one/test_a.py"]


def test_seeds_are_played_on_the_compiled_broker_and_mistakes_planted_in_the_sources(
    run_ci: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    planted = "@pytest.mark.simulation\n@pytest.mark.interpreted\ndef test_it():\n    pass\n"
    (tmp_path / "tests" / "test_planted.py").write_text(planted)
    code, table, out = run_ci({"simulation": "exit 1"}, "simulation", tested=["simulation"])
    on_sources, compiled = re.findall(r"ran (test .*)", out)
    assert on_sources == "test --numprocesses=3 tests/test_planted.py -m simulation and interpreted"
    assert compiled.startswith("test --compiled --numprocesses=3 ")
    assert sorted(compiled.split()[3:]) == ["-m", "simulation", "tests/test_planted.py", "tests/test_real.py"]
    assert code == 1
    assert "FAILED (1)" in table
    assert run_ci({"*interpreted": "exit 1"}, "simulation")[0] == 1, "what the sources showed counts"


def test_a_machine_that_cannot_have_kubernetes_does_not_fail_for_it(
    run_ci: Callable[..., tuple[int, str, str]],
) -> None:
    code, table, out = run_ci({"--prepare": "exit 3"}, "kubernetes", tested=["kubernetes"])
    assert code == 0
    assert "cannot run here" in table
    assert "ran test" not in out
    code, table, _ = run_ci({"--prepare": "exit 1"}, "kubernetes", tested=["kubernetes"])
    assert code == 1
    assert "FAILED (1)" in table


def test_a_machine_without_go_does_not_fail_for_it(run_ci: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "bin" / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    (tmp_path / "bin" / "go").chmod(0o755)
    code, table, out = run_ci({}, "go", tested=["go"])
    assert code == 0
    assert "cannot run here" in table
    assert "there is no Go 1.21 or newer" in out
    assert "ran test" not in out


def test_a_newer_python_is_played_with_where_there_is_one(
    run_ci: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, _, out = run_ci({"*": 'echo "with $BALLAST_PYTHON in $BALLAST_HOME"'}, "python")
    assert code == 0
    assert f"with {tmp_path / 'bin' / NEWEST} in {tmp_path / '.ballast' / 'newest'}\n" in out
    assert run_ci({"*": "exit 1"}, "python")[0] == 1
    (tmp_path / "bin" / NEWEST).unlink()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho 9.9\n")  # newer than any
    (tmp_path / "bin" / "python3").chmod(0o755)
    code, table, out = run_ci({}, "python")
    assert code == 0
    assert "cannot run here" in table
    assert "there is no newer Python" in out


def test_no_tests_at_all_is_a_failure_of_the_first_stage(run_ci: Callable[..., tuple[int, str, str]]) -> None:
    assert run_ci({"test": "exit 5"}, "test")[0] == 1


def test_the_time_limit_ends_a_stage_that_hangs(run_ci: Callable[..., tuple[int, str, str]]) -> None:
    code, table, out = run_ci({"test": "exec sleep 100"}, "test", CI_LIMIT_SECONDS="10")
    assert code == 1
    assert "ran test" in out
    assert "FAILED (124)" in table


def test_an_unknown_stage_is_refused(run_ci: Callable[..., tuple[int, str, str]]) -> None:
    code, _, out = run_ci({}, "jawa")
    assert code == 2
    assert "no stage 'jawa'" in out
