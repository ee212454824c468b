"""What a person sees where something is not as it should be: a sentence and an exit code, nothing left running."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import pty
import re
import select
import shutil
import signal
import socket
import socketserver
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.moves.brokers import Brokers

from ballast_cli import CommandError, chaos, demo
from ballast_cli.__main__ import main
from ballast_cli.places import ROOT
from ballast_cli.up import Stack, _next_steps, require_ports
from ballast_local.store import Store

PATHS = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
WORDY = (
    "import sys, ballast_cli.status as s; from ballast_cli.__main__ import main; "
    "s.run = lambda _: print({}) or 0; sys.exit(main(['status']))"
)


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    assert process.stdout is not None
    found = b""
    while text not in found:
        line = process.stdout.readline()
        assert line, found
        found += line
    return found


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_full_disk_and_no_output_at_all_are_no_tracebacks(size: int) -> None:
    command = [sys.executable, "-c", WORDY.format(f"'x' * {size}")]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "ballast status: No space left on device\n")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_nobody_may_write_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/there")

    monkeypatch.setattr(chaos, "run", run)
    assert main(["chaos"]) == 1
    assert capsys.readouterr().err == "ballast chaos: Read-only file system: /there\n"


@pytest.mark.parametrize("command", ["up", "demo", "chaos", "soak kill"])
def test_a_folder_without_a_name_is_not_the_present_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), "--data", ""])
    assert "it is empty" in capsys.readouterr().err


def test_an_operator_without_a_kubernetes_says_so_where_errors_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where logs go is left as it was: to who has called it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    before = [*logging.root.handlers]
    assert main(["operator"]) == 2
    assert logging.root.handlers == before
    told = capsys.readouterr()
    assert (told.out, told.err.startswith("ballast operator: no Kubernetes found")) == ("", True)


def test_an_operator_does_not_load_a_client_of_kubernetes_that_is_installed_for_others(tmp_path: Path) -> None:
    """It would make every start longer."""
    told = "; ".join(
        (
            "import sys",
            "from ballast_cli.__main__ import main",
            f"main(['operator', '--kubeconfig', {str(tmp_path / 'none')!r}])",
            "print([each for each in ('kopf', 'kubernetes', 'pydantic') if each in sys.modules])",
            "import kubernetes",
        )
    )
    environment = {**os.environ, "PYTHONPATH": PATHS}
    ran = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=50, check=True, env=environment
    )
    assert ran.stdout == "['kopf']\n"


def test_an_operator_that_cannot_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "--kubeconfig", str(tmp_path / "none"), "--log-file", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"ballast operator: cannot log to {tmp_path}: Is a directory\n"


def test_who_reads_may_stop_reading() -> None:
    with running("-c", WORDY.format("'x' * (1 << 20)")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
        process.stdout = None


def test_a_terminal_without_bars_gets_question_marks() -> None:
    with running("-c", WORDY.format("'\\u2588\\u00b7'"), PYTHONIOENCODING="ascii") as process:
        assert process.communicate(timeout=60) == (b"??\n", b"")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status", "--bootstrap", "nohost"], "'nohost' is not a broker address"),
        (["status", "--bootstrap", "a:1:2"], "'a:1:2' is not a broker address"),
        (["status", "--bootstrap", "a:9092,b:99999"], "'b:99999' is not a broker address"),
        (["status", "--bootstrap", ""], "'' is not a broker address"),
        (["reassign", "generate", "--bootstrap", "a:"], "'a:' is not a broker address"),
        (["reassign", "generate", "--bootstrap", "a:1", "--brokers", "0,x"], "'0,x' is not a list"),
        (["reassign", "execute", "--bootstrap", "a:1", "--throttle", "-5"], "'-5' is no quantity"),
        (["chaos", "--minutes", "-1"], "'-1' is not a number of minutes"),
        (["chaos", "--minutes", "inf"], "'inf' is not a number of minutes"),
        (["e2e", "--faults", "0"], "'0' is not a number of minutes"),
        (["e2e", "--away", "nan"], "'nan' is not a number of minutes"),
        (["operator", "--relist-seconds", "0"], "'0' is not a number of seconds"),
        (["operator", "--relist-seconds", "nan"], "'nan' is not a number of seconds"),
        (["up", "--brokers", "0"], "'0' is not a number"),
        (["up", "--volumes", "-1"], "'-1' is not a number"),
        (["up", "--port", "65536"], "'65536' is not a port"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["reassign", "generate"], ["rebalance"]])
def test_where_nobody_listens_is_told_at_once(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        began = time.monotonic()
        assert main([*command, "--bootstrap", address]) == 2
    assert time.monotonic() - began < 20, "without bootstrapping for half a minute"
    assert f"no broker answers at {address}: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["reassign", "generate"]])
def test_somebody_who_does_not_speak_with_us_is_told(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As a broker that wants TLS or a password; `reassign` said after half a minute that it could not bootstrap."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as closing:
        serving = threading.Thread(target=closing.serve_forever, args=(0.05,))
        serving.start()
        address = f"127.0.0.1:{closing.server_address[1]}"
        began = time.monotonic()
        try:
            assert main([*command, "--bootstrap", address]) == 2
        finally:
            closing.shutdown()
            serving.join()
    assert time.monotonic() - began < 28
    assert "can be reached, but does not answer; it may want TLS or SASL" in capsys.readouterr().err


def test_a_broker_without_a_directory_tells_it_once(tmp_path: Path) -> None:
    """Its file is in Latin-1, as Java takes properties to be."""
    text = "# für Züge\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs=/proc/none,/proc/other"
    (tmp_path / "one.properties").write_text(text, encoding="latin-1")
    with running("-m", "ballast_cli", "broker", str(tmp_path / "one.properties")) as process:
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 1
    nothing = b"[Errno 2] No such file or directory: '/proc/%s'"
    why = nothing % b"none" + b"; " + nothing % b"other"
    assert b"broker 1: None of the log directories can be used: " + why in told
    assert told.count(b"log directory /proc/none is offline") == 1
    assert b"never retrieved" not in told


def test_a_broker_logs_what_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text("node.id=1\nno.such\\nline=1\nlog.dirs=/proc/none")
    told = {}
    for level in ("warning", "error"):
        with running("-m", "ballast_cli", "broker", str(tmp_path / "one.properties"), "--log-level", level) as process:
            told[level] = process.communicate(timeout=60)[1]
    assert rb"WARNING ballast: property no.such\nline is not known" in told["warning"]
    assert b"WARNING" not in told["error"]
    assert b"ERROR ballast_broker.storage.manager: log directory /proc/none is offline" in told["error"]


def test_status_says_which_api_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is asked as kubectl asks it, not through the proxy that this machine has for the world outside."""
    with socket.socket() as deaf, socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        deaf.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "c",
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert main(["status"]) == 2
        assert select.select([proxy], [], [], 0)[0] == []
    assert f"cannot reach the Kubernetes API at {server}: [Errno 111]" in capsys.readouterr().err


def test_what_up_says_to_type_can_be_typed() -> None:
    assert "export KUBECONFIG='/a place/kubeconfig'" in _next_steps(Path("/a place/kubeconfig"))


@pytest.mark.parametrize("content", [b"root:x:0:0", b"a: [", b"\xff\xfe", b""])
@pytest.mark.parametrize("command", [["status"], ["get", "kafkatopics"], ["operator"]])
def test_a_file_that_is_no_kubeconfig(
    command: list[str], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "config"
    path.write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert main(command) == 2
    told = capsys.readouterr()
    assert f"{path} is no kubeconfig" in told.out + told.err


@pytest.mark.timeout(300)
def test_what_up_cannot_have_is_told_and_what_is_killed_takes_its_operator_along(tmp_path: Path) -> None:
    data, others = tmp_path / "data", tmp_path / "others"
    others.mkdir()
    (others / "objects.db").write_text("a list of things")
    with running("-m", "ballast_cli", "up", "--data", str(data)) as process:
        read_until(process, b"KUBECONFIG=")
        port = (data / "kubeconfig").read_text().partition("https://127.0.0.1:")[2].partition('"')[0]
        for arguments, says in (
            (["--data", str(data)], b"another embedded Kubernetes API uses the directory"),
            (["--data", str(tmp_path / "other"), "--port", port], f"port {port} is in use".encode()),
            (["--data", str(others)], b"objects.db is damaged, or not Ballast's; choose another directory with --data"),
            (["--data", "/proc/none"], b"cannot start in /proc/none: No such file or directory: /proc/none\n"),
        ):
            with running("-m", "ballast_cli", "up", *arguments) as second:
                told = second.communicate(timeout=60)[1]
                assert second.returncode == 2
                assert said_in_one_line(told, says)
        (operator,) = children_that_run(process.pid, b"operator")
        process.kill()
        process.wait(60)
        until_gone(operator)


@pytest.mark.timeout(60)
def test_up_does_not_wait_for_a_port_that_another_kafka_has(tmp_path: Path) -> None:
    """Its brokers were started again and again, and two minutes later the last of them told why."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        cluster: dict[str, Any] = {"spec": {"listeners": [{"name": "CLIENTS", "port": port}]}}
        with pytest.raises(CommandError, match=rf"listens on port {port} on all addresses.* `ss -ltnp` shows which"):
            require_ports(cluster)
        require_ports({"spec": {"external": {"bootstrapServers": "kafka:9092"}, **cluster["spec"]}})
    with socket.create_server(("127.0.0.1", port)):  # which no broker wants
        require_ports(cluster)


@pytest.mark.parametrize(
    ("said", "free_bytes"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), None),
        (sqlite3.OperationalError("database or disk is full"), None),
        (sqlite3.OperationalError("disk I/O error"), 0),  # what it says where there was no room for its -shm
    ],
)
def test_up_on_a_full_disk_says_what_to_do(
    said: Exception,
    free_bytes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if free_bytes is not None:
        usage = shutil.disk_usage(tmp_path)._replace(free=free_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    async def fail(_: Store) -> None:
        raise said

    monkeypatch.setattr(Store, "open", fail)
    assert main(["up", "--data", str(tmp_path)]) == 2
    assert f"Make room in {tmp_path}, or choose another directory with --data.\n" in capsys.readouterr().err


# Becomes a command that has the terminal which is its input.
AT_A_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.timeout(300)
def test_up_ends_as_when_it_is_told_to_where_its_terminal_is_closed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_A_TERMINAL, "-m", "ballast_cli", "up", "--data", str(tmp_path)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "PYTHONPATH": PATHS}
    )
    try:
        os.close(theirs)
        shown = b""
        while b"waiting for the cluster" not in shown:
            shown += os.read(ours, 1000)
        (operator,) = children_that_run(process.pid, b"operator")
        os.close(ours)
        assert process.wait(60) == 128 + signal.SIGTERM, "it stopped its children, and had nobody to tell"
        assert not Path(f"/proc/{operator}").exists()
    finally:
        process.kill()
        process.wait(60)


def test_a_broker_writes_addresses_as_clients_take_them_and_ends_with_its_terminal(tmp_path: Path) -> None:
    text = f"""
        node.id=1
        process.roles=broker,controller
        listeners=PLAINTEXT://[::1]:0,CONTROLLER://127.0.0.1:0
        controller.listener.names=CONTROLLER
        controller.quorum.voters=1@127.0.0.1:0
        log.dirs={tmp_path}
        metrics.port=0
    """
    (tmp_path / "one.properties").write_text(text)
    with running("-m", "ballast_cli", "broker", str(tmp_path / "one.properties")) as process:
        ready = read_until(process, b"is ready on").decode()
        assert re.search(r" PLAINTEXT://\[::1\]:\d+, .* metrics on http://\[::1\]:\d+/metrics$", ready.strip())
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0


@pytest.mark.parametrize(("kept", "ends"), [("", True), ('trap "" HUP; ', False)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_command_has_to_put_away_it_does_before_a_signal_ends_it(
    kept: str, ends: bool, number: signal.Signals, tmp_path: Path
) -> None:
    """But what `nohup` has started goes on when its terminal is closed."""
    (tmp_path / "own.py").write_text(f"""
import signal
from ballast_cli import status
from ballast_cli.__main__ import main
def run(_):
    try:
        signal.raise_signal({number:d})
        print("on")
    finally:
        print("away")
status.run = run
main()
""")
    command = [sys.executable, str(tmp_path / "own.py"), "status"]
    shell = ["sh", "-c", f'{kept}exec "$@"', "sh", *command]
    done = subprocess.run(shell, env={**os.environ, "PYTHONPATH": PATHS}, capture_output=True, text=True, check=False)
    goes_on = not ends and number == signal.SIGHUP
    assert done.stdout.split() == (["on", "away"] if goes_on else ["away"])
    assert done.returncode == (0 if goes_on else 128 + signal.SIGTERM)
    assert done.stderr == ""


@pytest.mark.timeout(300)
def test_the_cluster_of_up_can_be_changed_without_kubectl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who applies another example of the same cluster is its owner, not in conflict with it."""
    with running("-m", "ballast_cli", "up", "--data", str(tmp_path)) as process:
        read_until(process, b"waiting for the cluster")
        for name in ("cluster-scaled-up", "cluster-volume-removed"):
            file = str(ROOT / "manifests" / "examples" / f"{name}.yaml")
            config = str(tmp_path / "kubeconfig")
            assert main(["apply", "-f", file, "--kubeconfig", config, "--dry-run", "server"]) == 0
            told = capsys.readouterr().out
            assert told == "kafkacluster.ballast.dev/demo configured (server dry run)\n"
        process.terminate()
        assert process.wait(60) in (0, 128 + signal.SIGTERM), "whether or not it was ready by then"


def said_in_one_line(told: bytes, says: bytes) -> bool:
    return told.startswith(b"ballast up: ") and says in told and told.count(b"\n") == 1


def children_that_run(pid: int, command: bytes) -> list[int]:
    deadline = time.monotonic() + 30
    while True:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        found = [child for child in children if command in words_of(child)]
        if found or time.monotonic() > deadline:
            return found


def words_of(pid: int) -> list[bytes]:
    """Its command line; nothing of one that has ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def until_gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, deadline = select.poll(), 30_000
        ended.register(handle, select.POLLIN)
        assert ended.poll(deadline), f"process {pid} is still there"
    finally:
        os.close(handle)


@pytest.mark.timeout(300)
def test_a_demo_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    with running("-m", "ballast_cli", "demo", TMPDIR=str(tmp_path)) as process:
        read_until(process, b"1. A KafkaCluster")
        (operator,) = children_that_run(process.pid, b"operator")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{operator}").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_demo_without_room_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ROOM_BYTES", shutil.disk_usage(tmp_path).total + 1)
    assert main(["demo", "--data", str(tmp_path / "new")]) == 2
    assert f"{tmp_path} has room for " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
async def test_a_demo_does_not_wait_for_ever_for_brokers_that_take_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did, also when told to end: its brokers had ended with it, and the producer waited for them."""
    monkeypatch.setattr(demo, "MOVE_SECONDS", 2.0)
    with Brokers(tmp_path / "brokers", 2, [0, 1]) as two:
        two.create(demo.TOPIC, [[0, 1]], min_insync_replicas="2")
        two[1].kill()  # the other takes nothing without it, and producers go on trying
        with pytest.raises(TimeoutError, match="writing the data took more than 2 s; see "):
            await demo.fill(Stack(tmp_path), two.bootstrap, {0: demo.SMALL_BYTES})


@pytest.mark.timeout(300)
def test_the_quick_demo_ends_with_level_disks(tmp_path: Path) -> None:
    with running("-m", "ballast_cli", "demo", "--quick", TMPDIR=str(tmp_path)) as process:
        told = read_until(process, b"planned by the operator itself")
        assert process.wait(60) == 0
    assert b"6. Level disks, and the throttles are gone:" in told
    assert list(tmp_path.iterdir()) == []
