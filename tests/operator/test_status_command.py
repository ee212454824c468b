"""`./ballast status --watch` as a person leaves it open: it looks again and again, also while nobody answers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.moves.brokers import Brokers
from tests.operator.making import topic_view, view
from tests.operator.world import World

from ballast_cli import CommandError, kube_api, status
from ballast_cli.__main__ import main
from ballast_cli.picture import draw, summary
from ballast_cli.places import ROOT
from ballast_operator.kafka_client import ConnectionSettings
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, LogView

pytestmark = pytest.mark.timeout(120)


@contextmanager
def watching(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
    process = subprocess.Popen(
        [sys.executable, "-m", "ballast_cli", "status", "--watch", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate(timeout=60)


def read_until(process: subprocess.Popen[bytes], text: bytes, times: int) -> bytes:
    assert process.stdout is not None
    found, deadline = b"", time.monotonic() + 60
    output = select.poll()
    output.register(process.stdout, select.POLLIN)
    while found.count(text) < times:
        assert time.monotonic() < deadline, found
        if output.poll(1000):
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            assert chunk, found
            found += chunk
    return found


@pytest.mark.spec("OPR-41")
def test_it_shows_a_cluster_again_and_again(ballast_world: World) -> None:
    with watching("--json", "--bootstrap", ballast_world.bootstrap) as process:
        first, second = read_until(process, b"\n", 2).splitlines()[:2]
    for line in (first, second):
        brokers = json.loads(line)["brokers"]
        assert [len(broker["directories"]) for broker in brokers] == [3, 3, 3]


def test_directories_of_one_disk_are_told_by_what_they_hold_though_the_disk_fills_meanwhile() -> None:
    """They are asked one after the other."""
    seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 4 << 20)}, brokers=[0])
    used = {"/a": 50 << 30, "/b": (50 << 30) + 4096}
    sizes = {DirectoryId(0, path): DirectoryView(None, 100 << 30, (100 << 30) - size) for path, size in used.items()}
    lines = draw(replace(seen, directories=sizes)).splitlines()[-2:]
    assert [line.split("·")[-1].split("█")[-1].split("  ")[1] for line in lines] == ["4.0Mi of logs", "0 of logs"]
    apart = {**sizes, DirectoryId(0, "/b"): DirectoryView(None, 100 << 30, 40 << 30)}
    assert [line.count("of 100Gi") for line in draw(replace(seen, directories=apart)).splitlines()[-2:]] == [1, 1]


def test_directories_stand_in_the_order_of_their_numbers() -> None:
    paths = ["/data/disk-1/data", "/data/disk-2/data", "/data/disk-10/data", "/data/other"]
    sizes = {DirectoryId(0, path): DirectoryView(None, 100, 50) for path in sorted(paths)}
    seen = summary(replace(view({}, brokers=[0]), directories=sizes))
    assert [directory["path"] for directory in seen["brokers"][0]["directories"]] == paths


def test_a_broker_that_the_cluster_does_not_list_any_more_is_shown_as_away() -> None:
    seen = replace(view({"orders": topic_view((0, 1))}, brokers=[0]), lists_fenced=False).with_absent()
    assert summary(seen)["brokers"][1] | {"id": 1, "address": None, "online": False} == summary(seen)["brokers"][1]
    assert "1 of 2 brokers online" in draw(seen)
    assert "broker 1  away  1 replica, 0 leaders  OFFLINE" in draw(seen)


def test_while_the_controller_hangs_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it matters most, nothing was shown but a timeout, after half a minute."""
    monkeypatch.setattr(status, "REQUEST_TIMEOUT_MS", 2_500)
    with Brokers(tmp_path, 2, [0, 1]) as brokers:
        address = brokers[1].address
        brokers[0].pause()
        try:
            assert main(["status", "--bootstrap", address]) == 1
            shown = capsys.readouterr().out
        finally:
            brokers[0].resume()
    assert "2 of 2 brokers online, controller unknown" in shown
    assert shown.count("directories unknown: the broker did not describe them") == 1
    assert shown.endswith(f"{address}: the controller does not answer; moves are unknown\n")


def test_a_cluster_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def look(settings: ConnectionSettings, body: object) -> NoReturn:
        looks.append(settings)
        if len(looks) == 3:
            raise KeyboardInterrupt
        raise CommandError(f"{settings.bootstrap_servers} does not answer: refused")

    monkeypatch.setattr(status, "_look", look)
    monkeypatch.setattr(status, "WATCH_SECONDS", 0.0)
    assert main(["status", "--watch", "--bootstrap", "127.0.0.1:1"]) == 130
    shown = capsys.readouterr().out
    assert shown.count("127.0.0.1:1 does not answer: refused") == 2
    assert "\x1b" not in shown, "nobody clears a screen that is not there"
    looks.clear()
    assert main(["status", "--bootstrap", "127.0.0.1:1"]) not in (0, 130)


def test_a_cluster_that_does_not_answer_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(settings: ConnectionSettings, body: object) -> KafkaView:
        if settings.bootstrap_servers == "well:1":
            return view(brokers=[7])
        raise CommandError(f"{settings.bootstrap_servers} does not answer: refused")

    monkeypatch.setattr(status, "_look", look)
    monkeypatch.setattr(
        status, "_targets", lambda _: [(ConnectionSettings(each), None) for each in ("away:1", "well:1", "gone:1")]
    )
    assert main(["status", "--json"]) not in (0, 130)
    shown = capsys.readouterr()
    assert [broker["id"] for broker in json.loads(shown.out)["brokers"]] == [7]
    assert "away:1 does not answer: refused" in shown.err
    assert "gone:1 does not answer: refused" in shown.err


def test_a_cluster_without_an_address_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = {"type": "Ready", "status": "Unknown", "message": "The cluster has not answered."}
    bodies = [
        {"metadata": {"name": "away"}, "status": {"conditions": [ready]}},
        {"metadata": {"name": "new"}},
        {"metadata": {"name": "well"}, "status": {"bootstrapServers": "well:1"}},
    ]
    monkeypatch.setattr(kube_api, "find_access", lambda *_: ApiAccess("https://127.0.0.1:1"))
    monkeypatch.setattr(kube_api.KubeApi, "call", lambda *_: {"items": bodies})
    monkeypatch.setattr(status, "_look", lambda address, _: view(brokers=[7]))
    assert main(["status"]) == 1
    shown = capsys.readouterr().out
    assert "1 of 1 brokers online" in shown
    assert "KafkaCluster away has no address yet: The cluster has not answered. " in shown
    assert "KafkaCluster new has no address yet: no operator has processed it yet. " in shown
    bodies.clear()
    assert main(["status"]) == 2
    assert "there is no KafkaCluster in the namespace default. " in capsys.readouterr().err


def test_ctrl_c_is_heard_while_an_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = []

    def trying(bootstrap: str) -> None:
        signal.raise_signal(signal.SIGINT)
        went_on.append(bootstrap)

    monkeypatch.setattr(status, "require_listener", trying)
    assert main(["status", "--bootstrap", "127.0.0.1:1"]) == 130
    assert went_on == []


@pytest.mark.parametrize(
    ("lines", "shown"),
    [(6, "head|a lo|a|b|c"), (5, "head|a lo|a|... "), (3, "head|... "), (2, "... "), (1, "... ")],
)
def test_who_watches_sees_the_head_however_small_the_terminal(lines: int, shown: str) -> None:
    text = "head\na long line\na\nb\nc"
    assert status.fitted(text, os.terminal_size((4, lines))).splitlines() == shown.split("|")
