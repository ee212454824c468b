"""Which Java is taken, and the command line's arguments."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rebalance.test_measured import measured
from tests.rebalance.test_prometheus_http import Answer, FakePrometheus, vector

from ballast_operator.model.quantity import parse_quantity
from ballast_planner import PlanOptions, plan_balance
from ballast_rebalance import command, java_home, job, session
from ballast_rebalance.arguments import add_arguments, quantity
from ballast_rebalance.job import JobOptions, Outcome, Watch, _propose
from ballast_rebalance.outcomes import OutcomeMetrics
from ballast_rebalance.proposal import ProposalOptions

NOBODY: Any = None  # where nothing is asked of it
PATHS = os.pathsep.join(path for path in sys.path if path)


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


def test_the_packaged_java_goes_with_the_environment_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp there would be one of each checkout that ever was."""
    environment, temporary = tmp_path / "environment", tmp_path / "temporary"
    for folder in (environment, temporary):
        folder.mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(sys, "prefix", str(environment))
    runtime = fake_java(tmp_path / "runtime", "21.0.1")
    assert java_home.wrapped_home(runtime).parent == environment
    environment.chmod(0o777)
    assert java_home.wrapped_home(runtime).parent == temporary


def test_spark_leaves_nothing_outside_of_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, it leaves what it has there: with a pod goes its directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = session.settings_for("local[2]", None)
    assert told["spark.driver.extraJavaOptions"].endswith(f' "-Djava.io.tmpdir={tmp_path}"')
    assert "spark.driver.extraJavaOptions" not in session.settings_for(None, None)


@pytest.mark.parametrize("how", ["writable by others", "a link"])
def test_a_java_that_others_may_have_put_there_is_not_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    runtime = fake_java(tmp_path / "runtime", "21.0.1")
    home = java_home.wrapped_home(runtime)
    assert java_home.wrapped_home(runtime) == home
    if how == "a link":
        home.rename(tmp_path / "elsewhere")
        home.symlink_to(tmp_path / "elsewhere")
    else:
        home.chmod(0o777)
    own = java_home.wrapped_home(runtime)
    assert own != home
    assert java_home.java_version(own / "bin" / "java") == 21


def test_spark_is_told_the_same_whether_local_is_named_or_not() -> None:
    assert "spark.driver.host" in session.settings_for(session.DEFAULT_MASTER, None)
    assert "spark.driver.host" not in session.settings_for(None, "2g")
    assert session.settings_for(None, "2g")["spark.driver.memory"] == "2g"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_arguments_reach_the_options() -> None:
    options = command.job_options(
        parsed("--prometheus", "http://p", "--cluster-label", "job=demo", "--cluster-label", "namespace=x",
               "--throttle-disk", "50Mi", "--capacity", "1.5Pi", "--horizon", "2h", "--max-moves", "7",
               "--exclude-topic", "a", "--exclude-topic", "b", "--only-disks",
               "--stream", "--checkpoint", "s3a://bucket/place")
    )  # fmt: skip
    assert options.metrics is not None
    assert options.checkpoint == "s3a://bucket/place"
    assert options.metrics.match == 'job="demo",namespace="x"'
    assert options.planning.excluded_topics == frozenset({"a", "b"})
    assert (options.planning.max_moves, options.planning.across_brokers) == (7, False)
    assert options.planning.intra_broker_bytes_per_second == 50 * 1024 * 1024
    assert options.capacity_bytes == 3 * 2**49
    assert options.horizon_s == 7_200


def test_arguments_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(parsed()) == 2
    assert "--prometheus" in capsys.readouterr().err
    assert command.run(parsed("--bootstrap", "h:1", "--stream")) == 2
    source = ("--bootstrap", "h:1")
    for arguments, says in (
        (["--apply"], "give --cluster NAME"),
        (["--out", "plans"], "give --cluster NAME"),
        (["--metrics-port", "9404"], "need --stream"),
        (["--checkpoint", "folder"], "need --stream"),
        (["--apply", "--cluster", "demo", "--kubeconfig", "/nowhere"], "found no Kubernetes"),
        (
            ["--prometheus", "http://p", "--prometheus-token", "/nowhere"],
            "/nowhere, for Prometheus, cannot be read: No such",
        ),
        (["--prometheus", "http://p", "--prometheus-token", "/dev/null"], "/dev/null has no token: it is empty"),
        (["--prometheus", "http://p", "--prometheus-secret", "/dev"], "has none of the files token"),
        (["--prometheus-secret", "/dev"], "need --prometheus URL"),
        (["--prometheus-header", "A=b"], "need --prometheus URL"),
        (["--cluster-label", "job=demo"], "give --prometheus URL"),
        (["--kubeconfig", "/nowhere"], "give --apply"),
        (["--prometheus", "http://p/?token=hush"], "with ? or # is not accepted"),
        (["--prometheus", "https://p", "--prometheus-ca", "/nowhere"], "/nowhere, for Prometheus, cannot be read"),
        (["--prometheus", "https://p", "--prometheus-ca", "/dev/null"], "no certificates"),
        (["--prometheus", "http://p", "--prometheus-ca", "/dev/null"], "with https://"),
        (["--prometheus", "prometheus:9090"], "is not a URL"),
        (["--prometheus", "https://me:hush@p:9090/x"], "--prometheus-token"),
        (["--prometheus", "me:hush@p:9090"], "--prometheus-token"),
    ):
        assert command.run(parsed(*source, *arguments)) == 2
        told = capsys.readouterr().err
        assert says in told
        assert "hush" not in told
    for option, value, says in (
        ("--band", "2", "does not lie between 0 and 1"),
        ("--band", "nan", "does not lie between 0 and 1"),
        ("--high-water", "95", "95 does not lie above 0 and at most at 1"),
        ("--min-spread", "nan", "does not lie between 0 and 1"),
        ("--min-improvement", "2", "does not lie between 0 and 1"),
        ("--confirmations", "0", "is not a number of 1 or more"),
        ("--max-moves", "0", "is not a number of 1 or more"),
        ("--throttle-disk", "50MB", "is not a quantity"),
        ("--throttle-network", "0", "is not a limit"),
        ("--throttle-disk", "0.0Mi", "is not a limit"),
        ("--capacity", "0", "is not a size"),
        ("--metrics-port", "99999", "is not a port"),
        ("--interval", "0", "less than a second"),
        ("--bootstrap", "h:port", "is not a broker address"),
        ("--bootstrap", "h:1,", "is not a broker address"),
        ("--bootstrap", "http://h:1", "is not a broker address"),
        ("--prometheus-header", "Authorization=hush", "--prometheus-secret"),
        ("--prometheus-header", "X-Scope-OrgID", "is no header"),
        ("--prometheus-header", "Host=x", "that a query has itself"),
        ("--prometheus-header", "A=b\nC: d", "is no header"),
    ):
        with pytest.raises(SystemExit, match="2"):
            parsed(*source, option, value)
        assert says in capsys.readouterr().err
    for text in ("0.5", "2.3Gi", "0.3", "1"):
        assert quantity(text) == parse_quantity(text), "as the operator reads it"
    assert parsed("--bootstrap", "h,[::1],k.example:1").bootstrap == "h:9092,[::1]:9092,k.example:1"
    for arguments in (["--horizon", "x"], ["--capacity", "1.5X"], ["--cluster-label", "nothing", "--prometheus", "p"]):
        with pytest.raises((SystemExit, argparse.ArgumentTypeError)):
            command.job_options(parsed(*arguments))


def test_a_plan_that_is_handed_to_nobody_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured()
    load = found.load()
    outcome = _propose(JobOptions(ProposalOptions("c")), found, load, plan_balance(load, PlanOptions()), None)
    assert outcome.plan is not None
    assert outcome.plan.quality is not None
    command.show(outcome, as_json=False)
    told = capsys.readouterr().out
    assert '"partitions"' in told
    assert "approve" not in told
    command.show(outcome, as_json=True)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["plan"] == json.loads(told.splitlines()[-1]), "a program gets the moves as well"
    assert document["plan"]["partitions"]
    quality = replace(outcome.plan.quality, partitions=1, waves=1)
    assert job._sentence(replace(outcome.plan, quality=quality)).startswith("1 partition in 1 wave: ")


def test_metrics_are_about_the_last_look() -> None:
    metrics, load = OutcomeMetrics(300.0), measured().load()
    spread = ("ballast_rebalance_fill_spread_ratio", {"state": "before"})
    metrics.record("Proposed", plan_balance(load, PlanOptions()), 1.0)
    assert metrics.registry.get_sample_value(*spread)
    metrics.record("Balanced", None, 1.0)
    assert metrics.registry.get_sample_value(*spread) is None


@pytest.mark.spec("REB-08")
def test_what_stands_in_the_way_of_a_proposal_is_told_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert waits until it has been so for an hour: it must not be Confirming in between."""
    found = [replace(measured(), order_known=False)]
    monkeypatch.setattr(job, "measure", lambda *_: found[0])
    options = JobOptions(ProposalOptions("c"), out=tmp_path, horizon_s=0.0)
    watcher = Watch(NOBODY, options, NOBODY, OutcomeMetrics(300.0))
    assert [watcher.cycle().reason for _ in range(4)] == ["Confirming", *["OrderUnknown"] * 3]
    found[0] = measured()
    assert [watcher.cycle().reason for _ in range(2)] == ["Proposed", "Confirming"]


@pytest.mark.spec("REB-08")
def test_after_a_reassignment_a_plan_is_confirmed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has changed the load that earlier looks saw."""
    monkeypatch.setattr(job, "measure", lambda *_: measured())
    options = JobOptions(ProposalOptions("c"), out=tmp_path, horizon_s=0.0)
    watcher = Watch(NOBODY, options, NOBODY, OutcomeMetrics(300.0))
    assert [watcher.cycle().reason for _ in range(2)] == ["Confirming", "Proposed"]
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace("approval: Required", "approval: Automatic"))
    assert [watcher.cycle().reason for _ in range(2)] == ["Confirming", "ReassignmentInProgress"]
    file.unlink()
    assert [watcher.cycle().reason for _ in range(2)] == ["Confirming", "Proposed"]


def test_a_look_that_fails_does_not_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a stream that never gets through a look ends, and does not begin anew for ever."""
    watcher = Watch(NOBODY, JobOptions(ProposalOptions("c")), NOBODY, OutcomeMetrics(300.0))
    outcomes: list[Outcome | Exception] = [RuntimeError("Spark is gone"), Outcome("Balanced", "")]

    def cycle() -> Outcome:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(watcher, "cycle", cycle)
    with pytest.raises(RuntimeError):
        watcher.on_batch(NOBODY, 0)
    assert watcher.cycles == 0
    watcher.on_batch(NOBODY, 1)
    assert watcher.cycles == 1


@pytest.mark.spec("REB-08")
def test_a_watch_starts_its_stream_when_prometheus_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark would log its stack for each stream that ends at once: what is wrong is said in a line at each look."""
    started: list[int] = []

    class Stream:
        def awaitTermination(self) -> None:
            started.append(len(server.asked))

    def answer(*_: object) -> Answer:
        away = len(server.asked) <= 4  # its clock and its directories, asked twice
        return (422, {"error": "away"}) if away else (200, vector())

    stream: Any = Stream()
    monkeypatch.setattr(job, "watch", lambda *_: stream)
    with contextlib.closing(FakePrometheus(answer)) as server:
        args = parsed("--prometheus", server.url, "--stream")
        options = replace(command.job_options(args), interval_s=0.01)
        assert command._watch(NOBODY, args, options, None, OutcomeMetrics(300.0)) == 0
    said = f"PrometheusUnavailable: {server.url}/api/v1/query: HTTP 422 away"
    assert capsys.readouterr().out.splitlines() == [said, said]
    assert started == [5], "once, after the first answer"


class Told:
    """Stands in for the store that an outcome is reported to."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, Any]] = []

    def tell(self, cluster: str, look: Mapping[str, Any]) -> None:
        self.looks.append((cluster, look["reason"]))

    def close(self) -> None:
        pass


def no_spark(master: str | None = None, memory: str | None = None) -> Any:
    raise AssertionError("Spark is started for nothing")


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("with_prometheus", [False, True])
def test_brokers_that_are_away_are_told_and_reported_without_spark(
    with_prometheus: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: Any = Told()
    monkeypatch.setattr(session, "lasting_session", no_spark)
    monkeypatch.setattr(command, "_store", lambda args: told)
    with (
        socket.socket() as deaf,
        contextlib.closing(FakePrometheus(lambda *_: (200, vector(({}, 1.0))))) as server,
    ):
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        prometheus = ("--prometheus", server.url) if with_prometheus else ()
        assert command.run(parsed(*prometheus, "--bootstrap", address, "--cluster", "demo", "--apply")) == 3
    assert capsys.readouterr().out == f"ClusterUnavailable: no broker answers at {address}: Connection refused\n"
    assert told.looks == [("demo", "ClusterUnavailable")]


@pytest.mark.spec("REB-08")
def test_a_prometheus_that_is_away_is_told_and_reported_without_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: Any = Told()
    monkeypatch.setattr(session, "lasting_session", no_spark)
    monkeypatch.setattr(command, "_store", lambda args: told)
    with contextlib.closing(FakePrometheus(lambda *_: (422, {"error": "away"}))) as server:
        assert command.run(parsed("--prometheus", server.url, "--cluster", "demo", "--apply")) == 3
    assert capsys.readouterr().out == f"PrometheusUnavailable: {server.url}/api/v1/query: HTTP 422 away\n"
    assert told.looks == [("demo", "PrometheusUnavailable")]


@pytest.mark.spec("REB-08")
def test_a_prometheus_that_is_slow_and_knows_no_time_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attempts at one that hangs take four minutes, of which nothing was said."""
    heard: list[str] = []
    told = threading.Event()

    def hear(msg: object, *args: object, **_: Any) -> None:
        heard.append(str(msg) % args)
        told.set()

    def slow(*_: object) -> Answer:
        assert told.wait(60)
        return 200, vector()

    monkeypatch.setattr(session, "lasting_session", no_spark)
    monkeypatch.setattr(command.log, "warning", hear)
    monkeypatch.setattr(command, "SILENT_SECONDS", 0.05)
    with contextlib.closing(FakePrometheus(slow)) as server:
        assert command.run(parsed("--prometheus", server.url)) == 3
    assert heard == [f"waiting for an answer of {server.url}"]
    said = f"PrometheusUnavailable: {server.url} answers time() with nothing: is it a Prometheus?\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("option", ["--out", "--report"])
def test_what_cannot_be_written_is_told_before_anything_is_asked(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    taken = tmp_path / "file" if option == "--out" else tmp_path
    for path in (taken, tmp_path / "file" / "below", Path("/proc/none")):
        assert command.run(parsed("--bootstrap", "127.0.0.1:1", "--cluster", "demo", option, str(path))) == 2
        assert f"rebalance cannot start: {path} cannot be written: " in capsys.readouterr().err


@contextlib.contextmanager
def rebalancing(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "ballast_cli", "rebalance", *arguments]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": PATHS})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """The URL of a Prometheus that answers at all: enough for Spark to be started."""
    with contextlib.closing(FakePrometheus(lambda *_: (200, vector(({}, 1.0))))) as server:
        yield server.url


def java_of(process: subprocess.Popen[bytes]) -> int:
    """A handle of the Java that Spark runs in, once it is there."""
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline, "no Java within a minute"
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return os.pidfd_open(int(child))


def ends_with_its_java(process: subprocess.Popen[bytes], java: int, sent: signal.Signals) -> bytes:
    """Interrupted; what it said."""
    process.send_signal(sent)
    try:
        assert process.wait(60) == 128 + sent
        gone = select.poll()
        gone.register(java, select.POLLIN)
        assert gone.poll(60_000), "its Java is still there"
    except BaseException:
        signal.pidfd_send_signal(java, signal.SIGKILL)
        raise
    finally:
        os.close(java)
    return process.communicate(timeout=60)[1]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_java_starts_leaves_none_behind(sent: signal.Signals) -> None:
    with answering() as url, rebalancing("--prometheus", url) as process:
        told = ends_with_its_java(process, java_of(process), sent)
    assert b"rebalance ends when Java has started" in told
    assert b"Traceback" not in told


@pytest.mark.timeout(180)
def test_a_second_interrupt_does_not_wait_for_java_and_leaves_none_behind() -> None:
    with answering() as url, rebalancing("--prometheus", url) as process:
        java = java_of(process)
        process.send_signal(signal.SIGINT)
        told = ends_with_its_java(process, java, signal.SIGTERM)
    assert b"Traceback" not in told


ASKED = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
from ballast_rebalance.session import lasting_session
with lasting_session("local[1]") as spark:
    java = spark.sparkContext._jvm.java.lang
    java.Runtime.getRuntime().exec(f"kill -SIGNAL {os.getpid()}").waitFor()
    java.Thread.sleep(60_000)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("sent", "code"), [("INT", 130), ("TERM", 143)])
def test_an_interrupt_while_java_is_asked_is_no_traceback(sent: str, code: int) -> None:
    """It comes from Java itself, so that the answer to something is still awaited. The first process of a container
    has a way of its own to end by SIGTERM, which would stop Spark, and wait for that answer instead of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED.replace("SIGNAL", sent)],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.timeout(180)
def test_a_java_that_does_not_start_is_a_sentence() -> None:
    with answering() as url, rebalancing("--prometheus", url, "--memory", "much") as process:
        told = process.communicate(timeout=150)[1]
    assert process.returncode == 2
    assert b"Spark does not start: " in told
    assert b"Traceback" not in told


def test_a_port_that_is_taken_is_a_sentence() -> None:
    """And no Spark is started for it."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        number = str(taken.getsockname()[1])
        with rebalancing("--prometheus", "http://127.0.0.1:1", "--stream", "--metrics-port", number) as process:
            told = process.communicate(timeout=50)[1]
    assert process.returncode == 2
    assert f"cannot serve metrics on port {number}: Address already in use".encode() in told
    assert b"Traceback" not in told
