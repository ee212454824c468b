"""`./ballast chaos` and `./ballast soak` as a person meets them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = os.pathsep.join(str(ROOT / name) for name in ("broker-image", "operator", "spark"))
DEADLINE_S = 100.0


def ballast(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ballast_cli", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PACKAGES},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("soak", "operator", "--from", "3"), "'operator' has no --from"),
        (("soak", "sim", "--data", "somewhere"), "'sim' has no --seed or --data"),
        (("soak", "kill", "--from", "3"), "'kill' has no --from"),
        (("soak", "kill", "--times", "0"), "argument --times: '0' is not a number of 1 or more"),
        (("chaos", "--data", str(ROOT)), "is not empty"),
        (("chaos", "--data", "/proc/none"), "/proc/none cannot be made: No such file or directory"),
        (("soak", "kill", "--data", "/dev/null/below"), "/dev/null/below cannot be made: Not a directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    process = ballast(*arguments)
    _, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert said in error
    assert "Traceback" not in error


@pytest.mark.timeout(300)
def test_the_simulation_s_soak_sums_up_in_one_line() -> None:
    process = ballast("soak", "sim", "--times", "2", "--from", "1")
    output, error = process.communicate(timeout=250)
    assert process.returncode == 0, output + error
    assert "2 schedules, seeds 1 to 2" in output.splitlines()[-1]
    assert output.splitlines()[-1].endswith("everything held")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_simulation_s_soak_ends_when_it_is_told_to(number: signal.Signals) -> None:
    process = ballast("soak", "sim", "--from", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == "20000 schedules from seed 1 on, on 2 processes\n"
    process.send_signal(number)
    output, error = process.communicate(timeout=DEADLINE_S)  # until none of its processes has it open any more
    assert process.returncode == 130, output + error
    assert re.search(r"interrupted after \d+ of 20000 schedules", output)
    assert "Traceback" not in error


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "command", "under_way"),
    [
        (signal.SIGINT, ("chaos", "--minutes", "5"), "brokers are up"),
        (signal.SIGTERM, ("chaos", "--minutes", "5"), "brokers are up"),
        (signal.SIGINT, ("soak", "kill"), "data in"),
    ],
)
def test_interrupted_it_leaves_no_process_and_says_where_its_data_is(
    tmp_path: Path, number: signal.Signals, command: tuple[str, ...], under_way: str
) -> None:
    process = ballast(*command, "--seed", "1", "--data", str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        while under_way not in process.stdout.readline():
            assert process.poll() is None, process.stderr and process.stderr.read()
        process.send_signal(number)
        output, error = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, output + error
    assert output.endswith(f"interrupted; seed 1; the data stays in {tmp_path / 'data'}\n")
    assert brokers_of(tmp_path / "data") == []


def test_killed_it_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL, as of a machine that is short of memory, lets nobody end the brokers."""
    process = ballast("soak", "kill", "--seed", "1", "--data", str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        while not processes_of(tmp_path / "data"):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert brokers_of(tmp_path / "data") == []


def brokers_of(folder: Path) -> list[str]:
    """Command lines of processes that name this folder; one that is just ending is waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = processes_of(folder)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    # ww: where COLUMNS is set, as by pytest, ps cuts its lines off.
    lines = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if f"{folder}/broker-" in line]
