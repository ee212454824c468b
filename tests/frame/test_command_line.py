"""The dispatch of `python -m ballast_cli`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ballast_cli import demo
from ballast_cli.__main__ import MODULES, load, main
from ballast_cli.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
# Without site-packages and without the environment: only the standard library and our own packages.
BARE = """
import runpy, sys
root, sys.argv[1:] = sys.argv[1], sys.argv[2:]
sys.path[:0] = [f"{root}/{part}" for part in ("broker-image", "operator", "spark")]
runpy.run_module("ballast_cli", run_name="__main__")
"""


@pytest.mark.spec("OPR-44")
def test_the_first_process_of_a_container_can_be_stopped_before_it_is_ready(tmp_path: Path) -> None:
    """A pod that is deleted as it starts must not take its whole grace period."""
    apart = ["unshare", "--pid", "--fork", "--kill-child=KILL"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], timeout=50).returncode != 0:
        pytest.skip("no process namespaces can be made here")
    properties = tmp_path / "server.properties"
    os.mkfifo(properties)  # opening it waits for us
    with subprocess.Popen([*apart, sys.executable, "-c", BARE, ROOT, "broker", properties]) as outer:
        try:
            with properties.open("w"):  # it is about to read
                [inner] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
                os.kill(int(inner), signal.SIGTERM)
                assert outer.wait(50) == 128 + signal.SIGTERM
        finally:
            outer.kill()


def test_an_interrupt_while_the_command_line_is_being_loaded_leaves_no_traceback(tmp_path: Path) -> None:
    """Somebody who mistyped presses Ctrl-C at once. A module that is imported early stands for that moment."""
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, "-P", "-m", "ballast_cli", "status"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}/operator"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert (told.returncode, told.stdout, told.stderr) == (-signal.SIGINT, "", "")
    # Who was started in the background, where Ctrl-C is for others, goes on.
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, "--help"]
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('on')\n")
    told = subprocess.run(ignoring, env=environment, capture_output=True, text=True, timeout=50)
    assert told.stdout.startswith("on")


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["brokre"]) == 2
    assert "there is no command 'brokre'; ./ballast --help lists all. Did you mean broker?" in capsys.readouterr().err
    assert main(["xyz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("up --broker 3", "--brokers"),
        ("status --bootstap=localhost:9092", "--bootstrap"),
        ("rebalance --bootstrap h:1 --aply", "--apply"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert capsys.readouterr().err.endswith(f" Did you mean {meant}?\n")


def test_commands_that_exist_describe_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("broker", "test"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: ballast {name}" in capsys.readouterr().out


def test_broker_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["broker", "server.properties", "--overide", "a=b"])
    assert ended.value.code == 2
    assert "--overide" in capsys.readouterr().err


def test_pytest_arguments_are_passed_on_in_order() -> None:
    args = load("test").parse(["-k", "log and not slow", "tests/broker", "-x", "--spec-report"])
    assert args.rest == ["-k", "log and not slow", "tests/broker", "-x", "--spec-report"]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_command_explains_itself_before_anything_is_installed(name: str) -> None:
    bare = [sys.executable, "-S", "-E", "-P", "-c", BARE, str(ROOT), name, "--help"]
    ended = subprocess.run(
        bare, env=os.environ | {"COLUMNS": "80"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"usage: ballast {name}" in ended.stdout
    # argparse does not wrap descriptions. Examples are whole lines, to be copied.
    assert [line for line in ended.stdout.splitlines() if len(line) > 80 and "./ballast " not in line] == []
    for line in EXAMPLES[name]:
        assert f"\n  ./ballast {line}\n" in ended.stdout


@pytest.mark.parametrize("name", sorted(MODULES))
def test_what_help_shows_to_type_can_be_typed(name: str) -> None:
    for command, *words in map(shlex.split, EXAMPLES[name]):
        assert command == name
        for word in words:
            assert not word.startswith(("tests/", "manifests/")) or (ROOT / word).exists(), word
        assert load(command).parse(words).command == name


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_option_says_what_it_is_for(name: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.set_defaults(command=name)
    load(name).module.add_arguments(parser)
    unsaid = [action.option_strings for action in parser._actions if action.option_strings and not action.help]
    assert unsaid == []


def test_the_demo_writes_plain_text_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    demo._say("1. A cluster")
    assert capsys.readouterr().out == "\n1. A cluster\n"
