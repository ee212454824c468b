"""./ballast: what a newcomer meets first."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.frame.conftest import PATIENCE_S, Checkout, Index, hear_hangups
from tests.waiting import eventually

from ballast_cli.__main__ import MODULES

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).resolve().parents[2]


# Makes its standard input the terminal that it is at, and becomes a command.
AT_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the shell's usual company and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("cat", "cksum", "readlink"):
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return folder


def run_script(*arguments: str, path: Path, home: Path) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(path), "BALLAST_HOME": str(home)}
    return subprocess.run(
        [ROOT / "ballast", *arguments], env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def is_free(lock: Path) -> bool:
    """Whether no process holds the installer's lock: neither an installer nor a pip that it started."""
    handle = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def test_help_needs_nothing_and_names_every_command(bare_path: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for arguments in ((), ("--help",), ("-h",), ("help",)):
        shown = run_script(*arguments, path=bare_path, home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        for command in MODULES:
            assert re.search(rf"(^  |\|){command}\b", shown.stdout, re.MULTILINE), command
        assert max(map(len, shown.stdout.splitlines())) <= 80
    assert not home.exists()


def test_its_version_is_the_projects(bare_path: Path, tmp_path: Path) -> None:
    told = run_script("--version", path=bare_path, home=tmp_path / "home")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (told.returncode, told.stdout) == (0, f"Ballast {project['version']}\n")


def test_every_command_of_the_dispatch_is_known_to_the_script(bare_path: Path, tmp_path: Path) -> None:
    for command in MODULES:
        answer = run_script(command, path=bare_path, home=tmp_path / "home")
        assert "needs Python" in answer.stderr, command


def test_unknown_command(bare_path: Path, tmp_path: Path) -> None:
    answer = run_script("brokre", path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 2
    assert "no command 'brokre'" in answer.stderr
    answer = run_script("port-forward", "demo-0", "9092", path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 2
    assert answer.stderr == (
        "ballast: 'port-forward' needs kubectl; Ballast has only get, apply, patch, delete, describe and wait.\n"
    )


@pytest.mark.parametrize("word", ["down", "stop"])
def test_who_looks_for_the_other_end_of_up_is_told(word: str, bare_path: Path, tmp_path: Path) -> None:
    answer = run_script(word, path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 2
    assert "to stop './ballast up', press Ctrl-C where it runs" in answer.stderr
    assert f"the data stays in {tmp_path}/home/up" in answer.stderr


def test_without_python_says_what_to_install(bare_path: Path, tmp_path: Path) -> None:
    answer = run_script("broker", "x", path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 1
    assert "needs Python 3.11 or newer" in answer.stderr
    assert "apt-get install" in answer.stderr
    assert "brew install" in answer.stderr


def test_old_python_is_passed_over_and_named(bare_path: Path, tmp_path: Path) -> None:
    old = bare_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    answer = run_script("broker", "x", path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 1
    assert f"{old} is 3.9" in answer.stderr


def test_a_program_that_is_no_python_is_not_run_as_one(bare_path: Path, tmp_path: Path) -> None:
    """It would have done nothing, and its exit code would have said that all was well."""
    no_python = shutil.which("true")
    assert no_python is not None
    (bare_path / "python3").symlink_to(no_python)
    answer = run_script("status", path=bare_path, home=tmp_path / "home")
    assert answer.returncode == 1
    assert f"{bare_path}/python3 is not Python." in answer.stderr


def test_a_python_that_is_named_and_is_none_is_told_by_its_name(ready: Checkout) -> None:
    (ready.home / "env" / "stamps" / "broker").unlink()
    ready.variables = {"BALLAST_PYTHON": "/no/such/python"}
    answer = ready.run("status")
    assert answer.returncode == 1
    assert "needs Python 3.11 or newer. BALLAST_PYTHON=/no/such/python is not a program.\n" in answer.stderr


@pytest.mark.parametrize(
    ("lacks", "words", "is_what"),
    [
        ("sqlite3", "up --help", "{version} without sqlite3."),
        ("ssl zlib ensurepip", "up", "{version} without ssl, zlib, ensurepip."),
        ("ensurepip", "up", "{version} without ensurepip, which is in python{version}-venv on Debian and Ubuntu."),
        ("ensurepip", "up --help", None),
    ],
)
def test_a_python_that_lacks_what_it_should_have_is_passed_over_and_named(
    lacks: str, words: str, is_what: str | None, bare_path: Path, tmp_path: Path
) -> None:
    """Debian's python3-minimal, and one that was compiled beside no SQLite, ended with a traceback, for --help, too."""
    hides = tmp_path / "hides"
    hides.mkdir()
    (hides / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({lacks.split()}))")
    for name in ("python3", "python3.12"):
        (bare_path / name).write_text(f'#!/bin/sh\nPYTHONPATH={hides}:$PYTHONPATH exec {sys.executable} "$@"\n')
        (bare_path / name).chmod(0o755)
    answer = run_script(*words.split(), path=bare_path, home=tmp_path / "home")
    if is_what is None:
        assert (answer.returncode, answer.stderr) == (0, "")
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert answer.returncode == 1
    said = f" {bare_path}/python3 is {is_what.format(version=version)}\n"
    assert answer.stderr.startswith(f"ballast: needs Python 3.11 or newer.{said}"), "once, though it has two names"
    assert not (tmp_path / "home").exists()


def test_newer_python_beside_an_old_one_is_found(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").write_text("#!/bin/sh\necho 3.9\n")
    (bare_path / "python3").chmod(0o755)
    (bare_path / "python3.12").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bare_path / "python3.12").chmod(0o755)
    answer = run_script("broker", "--help", path=bare_path, home=tmp_path / "home")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "usage: ballast broker" in answer.stdout


def test_help_of_a_command_installs_nothing(checkout: Checkout) -> None:
    (checkout.root / "operator" / "ballast_cli" / "__main__.py").write_text("print('helped')")
    answer = checkout.run("broker", "--help")
    assert (answer.returncode, answer.stdout) == (0, "helped\n")
    assert not checkout.home.exists()


# Two pass on what they do not know.
@pytest.mark.parametrize("name", sorted(set(MODULES) - {"bench", "test"}))
def test_a_typing_error_installs_nothing(name: str, bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").symlink_to(Path(sys.executable).resolve())
    answer = run_script(name, "--no-such-thing", path=bare_path, home=tmp_path / "home")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"usage: ballast {name} ")
    assert "ballast: " not in answer.stderr, "nothing was begun"
    assert not (tmp_path / "home").exists()


def test_a_number_that_cannot_be_installs_nothing(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").symlink_to(Path(sys.executable).resolve())
    answer = run_script("soak", "operator", "--times", "0", path=bare_path, home=tmp_path / "home")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--times: '0' is not a number of 1 or more" in answer.stderr
    assert not (tmp_path / "home").exists()


def test_a_python_that_is_named_and_does_not_run_is_told_by_its_name(bare_path: Path, tmp_path: Path) -> None:
    """As the shims of pyenv, for a version that is not chosen: it said that no Python was found."""
    shim = bare_path / "python3.13"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    answer = subprocess.run(
        [ROOT / "ballast", "status"], capture_output=True, text=True, check=False,
        env={"PATH": str(bare_path), "BALLAST_HOME": str(tmp_path / "home"), "BALLAST_PYTHON": "python3.13"},
    )  # fmt: skip
    assert answer.returncode == 1
    assert "BALLAST_PYTHON=python3.13 does not run as Python." in answer.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("demo --data /etc/passwd", "argument --data: /etc/passwd: it is not a directory"),
        ("up --data /etc/passwd", "argument --data: /etc/passwd: it is not a directory"),
        ("e2e sotry", "no scenario has 'sotry' in its name"),
        ("e2e", "ballast e2e: --provider says where: "),
        ("e2e --seed 3", "ballast e2e: --seed is of --faults."),
        ("soak sim --data x", "ballast soak: 'sim' has no --seed or --data."),
        ("reassign verify --bootstrap h:1 --json x --throttle 5", "verify has no --throttle: that is for execute."),
        ("reassign execute --bootstrap h:1", "ballast reassign: --json FILE is required: the plan"),
        ("image --name=", "argument --name: it is empty"),
        ("rebalance --bootstrap h:1 --band 7", "argument --band: 7 does not lie between 0 and 1"),
        ("rebalance --bootstrap h:1 --apply", "ballast rebalance: a Reassignment belongs to a KafkaCluster: "),
    ],
)
def test_what_cannot_be_is_refused_before_minutes_of_installing(
    words: str, says: str, bare_path: Path, tmp_path: Path
) -> None:
    (bare_path / "python3").symlink_to(Path(sys.executable).resolve())
    answer = run_script(*words.split(), path=bare_path, home=tmp_path / "home")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert says in answer.stderr
    assert not (tmp_path / "home").exists()


def test_a_folder_in_which_no_pod_can_be_kept_installs_nothing(bare_path: Path, tmp_path: Path) -> None:
    """Half a minute of downloads came before the refusal."""
    (bare_path / "python3").symlink_to(Path(sys.executable).resolve())
    home = tmp_path / "o'clock"
    for answer in (
        run_script("up", path=bare_path, home=home),
        run_script("demo", "--quick", "--data", str(home), path=bare_path, home=tmp_path / "home"),
    ):
        assert (answer.returncode, answer.stdout) == (2, "")
        assert f"{home}" in answer.stderr
        assert "does not survive in the lists and texts of pods; choose another" in answer.stderr
    assert not home.exists()
    assert not (tmp_path / "home").exists()


def test_where_it_cannot_install_it_says_how_to_choose_another_place(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "file").touch()
    answer = run_script("status", path=bare_path, home=tmp_path / "file" / "home")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"ballast: cannot install into {tmp_path}/file/home: ")
    assert "BALLAST_HOME=" in answer.stderr


def test_first_start_installs_and_hands_over(first_start: tuple[Checkout, subprocess.CompletedProcess[str]]) -> None:
    _, answer = first_start
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.endswith(" 1.0 broker a b --override x=y\n")
    lines = answer.stderr.splitlines()
    assert all(line.startswith("ballast: ") for line in lines)
    assert any("making an environment" in line for line in lines)
    assert any("installing broker (1 packages)" in line for line in lines)
    assert "\r" not in answer.stderr


def test_the_command_replaces_the_script(ready: Checkout) -> None:
    for remove in (False, True):
        if remove:
            (ready.home / "env" / "stamps" / "broker").unlink()
        with ready.start("broker") as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert int(out.split()[0]) == process.pid, err


def test_second_start_asks_nobody_and_is_fast(ready: Checkout) -> None:
    ready.variables = {"BALLAST_PYTHON": "/bin/false", "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    (ready.root / "operator" / "ballast_cli" / "__main__.py").write_text("")
    alone = [str(ready.home / "env" / "bin" / "python"), "-c", ""]
    with_script, without = [], []
    for _ in range(7):
        before = processor_time_of_children()
        answer = ready.run("broker")
        with_script.append(processor_time_of_children() - before)
        assert (answer.returncode, answer.stderr) == (0, "")
        before = processor_time_of_children()
        subprocess.run(alone, check=True)
        without.append(processor_time_of_children() - before)
    assert min(with_script) - min(without) < 0.2


def processor_time_of_children() -> float:
    """In seconds, of those that have ended: how long they had to wait for a processor does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_only_what_the_command_needs(ready: Checkout, index: Index) -> None:
    ready.write_lock("spark", "2.0")
    assert ready.run("broker").returncode == 0
    assert index.downloads == 0
    assert ready.run("rebalance").returncode == 0
    assert index.downloads == 0, "what it lacks it says before anything is installed"
    answer = ready.run("rebalance", "--bootstrap", "localhost:9092")
    assert answer.stdout.split()[1] == "2.0"
    assert index.downloads == 1


def test_what_another_lock_has_in_it_is_not_installed_again(ready: Checkout, index: Index) -> None:
    """`status` after `up` installed for seconds what was there."""
    (ready.home / "env" / "stamps" / "broker").unlink()
    both = index.lock_text("tiny", "1.0") + index.lock_text("extra", "1.0")
    (ready.root / "requirements" / "spark.lock").write_text(both)
    (ready.root / "requirements" / "compiler.lock").write_text(index.lock_text("tiny", "2.0"))
    answer = ready.run("rebalance", "--bootstrap", "localhost:9092")
    assert answer.returncode == 0, answer.stderr
    assert "installing spark (2 packages)" in answer.stderr
    stamps = {stamp.name for stamp in (ready.home / "env" / "stamps").iterdir()}
    assert {"broker", "spark"} <= stamps
    assert "compiler" not in stamps
    assert ready.run("broker").stderr == ""
    ready.write_lock("broker", "2.0")
    assert "installing broker" in ready.run("broker").stderr


PLAIN = "sasl.enabled.mechanisms=PLAIN\n"
BY_TICKET = "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;\n"


@pytest.mark.parametrize(
    ("asks", "name", "text", "more"),
    [
        (True, "a", "listener.name.safe.gssapi.sasl.jaas.config=x\n", ()),
        (True, "a", "listener.name.safe.sasl.enabled.mechanisms = PLAIN, \\\n  GSSAPI\n", ()),
        (True, "a", "security.protocol=SASL_SSL\n" + BY_TICKET, ()),  # who says no mechanism says this one
        (True, "a", PLAIN, ("--override", "sasl.enabled.mechanisms=GSSAPI")),
        (False, "a", PLAIN, ("--override", "cluster.id=GSSAPI")),
        (False, "GSSAPI", PLAIN, ()),
        (False, "a", "#sasl.enabled.mechanisms=GSSAPI\n" + PLAIN, ()),
        (False, "a", "log.dirs=/data/GSSAPI\n" + PLAIN, ()),
    ],
)
def test_what_kerberos_needs_is_installed_only_where_a_property_asks_for_it(
    ready: Checkout, index: Index, tmp_path: Path, asks: bool, name: str, text: str, more: tuple[str, ...]
) -> None:
    """A folder or a topic of that name had its library compiled, or ended the command where there is no compiler."""
    ready.write_lock("kerberos-build", "1.0")
    ready.write_lock("kerberos", "1.0", package="extra")
    file = tmp_path / f"{name}.properties"
    file.write_text(text)
    answer = ready.run("broker", str(file), *more)
    assert answer.returncode == 0, answer.stderr
    assert ("installing kerberos (1 packages)" in answer.stderr) == asks
    assert index.downloads == asks


def test_where_kerberos_cannot_be_compiled_it_says_what_to_install(tmp_path: Path) -> None:
    advice = runpy.run_path(str(ROOT / "requirements" / "install.py"))["advice"]
    said = advice(tmp_path, ["subprocess.CalledProcessError: Command 'krb5-config --libs gssapi' returned 127."])
    assert "  Debian, Ubuntu   sudo apt-get install gcc libkrb5-dev python3-dev" in said
    assert advice(tmp_path, ["ERROR: No matching distribution found"]) == []


def test_a_changed_lock_is_installed(ready: Checkout) -> None:
    ready.write_lock("broker", "2.0")
    answer = ready.run("broker")
    assert answer.stdout.split()[1] == "2.0", answer.stderr


def test_a_package_with_another_hash_is_refused(ready: Checkout) -> None:
    ready.write_lock("broker", "2.0", digest="0" * 64)
    answer = ready.run("broker")
    assert answer.returncode == 1
    assert "installing broker (1 packages): failed" in answer.stderr
    assert str(ready.home / "install.log") in answer.stderr
    ready.write_lock("broker", "2.0")
    assert ready.run("broker").stdout.split()[1] == "2.0"


@pytest.mark.parametrize("retries", ["0", "1"])
def test_without_a_network_it_says_what_to_look_at(ready: Checkout, retries: str) -> None:
    """pip says only that it found no version of the package, and that it tried again, if it did."""
    ready.write_lock("broker", "2.0")
    ready.variables = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": retries}
    answer = ready.run("broker")
    assert answer.returncode == 1
    assert (
        "No package index was reached, or it has nothing for this Python; `pip config list` and HTTPS_PROXY say"
        in answer.stderr
    )


def test_a_full_disk_is_told_although_venv_does_not(tmp_path: Path) -> None:
    """It says that a program returned 1."""
    advice = runpy.run_path(str(ROOT / "requirements" / "install.py"))["advice"]
    assert advice(tmp_path, ["returned non-zero exit status 1."], little_bytes=0) == []
    for words, little_bytes in (["returned 1"], 2**62), (["[Errno 28] No space left on device"], 0):
        (line,) = advice(tmp_path, words, little_bytes)
        assert re.fullmatch(rf"{tmp_path} has \d+ MB left: make room, or choose another place .*", line)
    (line,) = advice(tmp_path, ["[Errno 122] Disk quota exceeded"], little_bytes=0)
    assert line.startswith(f"The quota for {tmp_path} is used up: make room, or choose another place ")


def test_a_directory_whose_name_separates_paths_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    """Python looked for its packages in two halves of the name, and found that there was no ballast_cli."""
    colon = checkout.root.rename(tmp_path / "co:lon")
    for root, home in ((colon, checkout.home), (colon, None)):
        variables = {"PATH": os.environ["PATH"]} | ({"BALLAST_HOME": str(home)} if home else {})
        answer = subprocess.run(
            [root / "ballast", "status", "--help"], env=variables, capture_output=True, text=True, check=False
        )
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.startswith(f"ballast: cannot run from a directory with a colon in its name: {colon}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_installation_cleans_up_and_can_go_on(
    ready: Checkout, index: Index, number: signal.Signals
) -> None:
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    with ready.start("broker") as process:
        assert index.asked.acquire(timeout=PATIENCE_S)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "interrupted; run the same command again" in err
    assert is_free(ready.home / "lock")
    assert not (ready.home / "tmp").exists()
    index.open_gate.set()
    assert ready.run("broker").stdout.split()[1] == "2.0"


@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_a_terminal_that_is_closed_ends_pip_first(number: signal.Signals | None, ready: Checkout, index: Index) -> None:
    """Where nobody can be told any more; and while what was interrupted ends: pip went on by itself."""
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, ready.root / "ballast", "broker"],
        env=ready.environment(), stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=hear_hangups,
    ) as process:  # fmt: skip
        os.close(theirs)
        assert index.asked.acquire(timeout=PATIENCE_S)
        if number is not None:
            process.send_signal(number)
        os.close(ours)
        assert process.wait(PATIENCE_S) in {128 + signal.SIGHUP, 128 + (number or signal.SIGHUP)}
    assert is_free(ready.home / "lock")
    assert not (ready.home / "tmp").exists()


def test_an_installation_that_a_closed_terminal_is_not_to_end_goes_on(ready: Checkout, index: Index) -> None:
    """`nohup ./ballast up &`."""
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    with subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec ./ballast broker"],
        env=ready.environment(), cwd=ready.root, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert index.asked.acquire(timeout=PATIENCE_S)
        process.send_signal(signal.SIGHUP)
        index.open_gate.set()
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert out.split()[1] == "2.0"


def test_interrupted_addition_leaves_what_runs_from_there_alone(ready: Checkout, index: Index) -> None:
    ready.write_lock("operator", "1.0", package="extra")
    (ready.home / "env" / "stamps" / "operator").unlink()  # of when it was the same as another
    index.open_gate.clear()
    with ready.start("up") as process:
        assert index.asked.acquire(timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    (ready.home / "env" / "untouched").touch()
    packages = next((ready.home / "env" / "lib").glob("python3.*")) / "site-packages"
    (packages / "extra-1.0.dist-info").mkdir()
    (packages / "extra-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    index.open_gate.set()
    answer = ready.run("up")
    assert (answer.returncode, "making" in answer.stderr) == (0, False), answer.stderr
    assert (ready.home / "env" / "untouched").exists()
    assert (packages / "extra.py").exists(), "half of a package is not taken for the whole"
    assert not (ready.home / "installing").exists()


@pytest.mark.parametrize("installs", [False, True])
def test_an_interrupt_while_python_itself_starts_leaves_no_traceback(ready: Checkout, installs: bool) -> None:
    """Python goes through the environment's packages before it runs a line of ours."""
    shutil.rmtree(ready.root / "operator")
    shutil.copytree(ROOT / "operator" / "ballast_cli", ready.root / "operator" / "ballast_cli")
    packages = next((ready.home / "env" / "lib").glob("python3.*")) / "site-packages"
    early = "import os, signal, sys; 'ballast_cli' in sys.orig_argv and os.kill(os.getpid(), signal.SIGINT)"
    (packages / "early.pth").write_text(early)
    if installs:
        (ready.home / "env" / "stamps" / "broker").unlink()
    answer = ready.run("status", "--bootstrap", "127.0.0.1:9")
    assert (answer.returncode, answer.stdout) == (-signal.SIGINT, "")
    assert ("installed broker" in answer.stderr, "Traceback" in answer.stderr) == (installs, False)


def test_killed_installation_is_made_anew(ready: Checkout, index: Index) -> None:
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    with ready.start("broker") as process:
        assert index.asked.acquire(timeout=PATIENCE_S)
        process.kill()
    assert not is_free(ready.home / "lock"), "the pip that is left over still counts"
    index.open_gate.set()
    eventually(lambda: is_free(ready.home / "lock"))
    (ready.home / "env" / "broken").touch()
    answer = ready.run("broker")
    assert answer.stdout.split()[1] == "2.0"
    assert "making it anew" in answer.stderr
    assert not (ready.home / "env" / "broken").exists()


def test_two_at_once_install_once(ready: Checkout, index: Index) -> None:
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    with ready.start("broker") as first, ready.start("broker") as second:
        assert index.asked.acquire(timeout=PATIENCE_S)
        both = (first, second)
        waiting = first if "waiting" in first_words(first, second) else second
        assert waiting in both
        index.open_gate.set()
        outs = [process.communicate(timeout=PATIENCE_S)[0] for process in both]
    assert [out.split()[1] for out in outs] == ["2.0", "2.0"]
    assert index.downloads == 1


def first_words(first: subprocess.Popen[str], second: subprocess.Popen[str]) -> str:
    """The first line of the one; both must have said something else."""
    assert first.stderr is not None
    assert second.stderr is not None
    lines = (first.stderr.readline(), second.stderr.readline())
    assert sum("waiting" in line for line in lines) == 1, lines
    return lines[0]


def test_an_environment_whose_python_went_away_is_made_anew(ready: Checkout) -> None:
    for name in ("python", "python3", Path(os.path.realpath(sys.executable)).name):
        link = ready.home / "env" / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("/nonexistent/python")
    answer = ready.run("broker")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split()[1] == "1.0"


def test_runs_from_elsewhere_and_through_a_link(ready: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ready.root / "ballast")
    answer = subprocess.run(
        [link, "broker", "x"], env=ready.environment(), cwd="/",
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert answer.stdout.endswith("1.0 broker x\n")


def test_it_finds_its_folder_however_it_is_called(ready: Checkout, tmp_path: Path) -> None:
    """CDPATH makes `cd` look elsewhere first and print where it went; a shell may be given a name without a slash."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ready.root.name).mkdir(parents=True)
    (ready.root.parent / "link").symlink_to(Path(ready.root.name) / "ballast")
    for command in ([f"{ready.root.name}/ballast"], ["sh", "link"]):
        for paths in (f".:{elsewhere}", str(elsewhere)):
            answer = subprocess.run(
                [*command, "broker", "x"], env=ready.environment() | {"CDPATH": paths}, cwd=ready.root.parent,
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert answer.stdout.endswith("1.0 broker x\n"), (command, paths, answer.stderr)


def test_on_a_terminal_it_shows_that_it_is_working(ready: Checkout, index: Index) -> None:
    ready.write_lock("broker", "2.0")
    index.open_gate.clear()
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [ready.root / "ballast", "broker"],
            env=ready.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
        ) as process:  # fmt: skip
            shown = b""
            while shown.count(b"\r") < 4:
                shown += os.read(ours, 1000)
            index.open_gate.set()
            process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0
    assert re.search(rb"\r[|/\\-] installing broker \(1 packages\)", shown)
