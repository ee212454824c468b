"""Clients that others have written in Go, each with a protocol of its own making: franz-go, Sarama, kafka-go."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.clients.go_programs import RUN_LIMIT_S, command, told
from tests.clients.running import RunningBroker
from tests.clients.secured import PASSWORD, USER, Secured
from tests.clients.three_nodes import NODES, ThreeNodes

pytestmark = [pytest.mark.go, pytest.mark.timeout(700), pytest.mark.spec("CLI-01")]  # the first one builds them
CODECS = {"none", "gzip", "snappy", "lz4", "zstd"}


@pytest.mark.spec("CLI-07")
def test_franz_in_every_codec(broker: RunningBroker, topic: str) -> None:
    lines = told("franz", "codecs", broker.bootstrap, topic)
    assert {line["codec"]: line["differing"] for line in lines} == dict.fromkeys(CODECS, 0)


@pytest.mark.spec("CLI-04")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_franz_in_a_group(broker: RunningBroker, topic: str, protocol: str) -> None:
    lines = told("franz", protocol, broker.bootstrap, f"{protocol}-group")
    assert [(line["when"], line.get("seen", line.get("committed"))) for line in lines] == [
        ("one member", 60),
        ("three members", 120),
        ("another topic", 180),
        ("one left", 240),
        ("all left", 240),
    ]


@pytest.mark.spec("CLI-05")
def test_franz_exactly_once(broker: RunningBroker, topic: str) -> None:
    [line] = told("franz", "exactly-once", broker.bootstrap, topic)
    assert line["received"] == line["seen"] == 603


@pytest.mark.spec("DIR-11", "DIR-20")
def test_franz_reads_while_its_partition_moves(broker: RunningBroker, topic: str) -> None:
    assert told("franz", "directories", broker.bootstrap, topic) == [{"moved": True, "differing": 0}]


@pytest.mark.spec("CLI-05", "CLI-07")
def test_sarama_as_old_and_as_new(broker: RunningBroker, topic: str) -> None:
    lines = told("sarama", "versions", broker.bootstrap, topic)
    assert [line["version"] for line in lines[:-1]] == ["2.1.0", "2.8.0", "3.9.0"]
    assert [(line["sent"], line["seen"]) for line in lines] == [(250, 250)] * 4


def test_kafka_go(broker: RunningBroker, topic: str) -> None:
    [line] = told("kafkago", "connection", broker.bootstrap, topic)
    assert line == {"first": 0, "last": len(CODECS), "differing": 0, "beyond": True}
    assert told("kafkago", "group", broker.bootstrap, f"{topic}-group") == [{"sent": 500, "seen": 500}]


@pytest.mark.spec("CLI-06")
def test_with_tls_and_a_password(tmp_path: Path, topic: str) -> None:
    secured = Secured(tmp_path).start()
    try:
        address = secured.broker.listeners["SAFE"]
        login = {"CLIENT_CA": str(secured.authority.ca), "CLIENT_USER": USER, "CLIENT_PASSWORD": PASSWORD}
        assert len(told("franz", "codecs", address, topic, login)) == len(CODECS)  # SCRAM
        assert len(told("sarama", "versions", address, topic, login)) == 4  # PLAIN
    finally:
        assert secured.broker.stop() == 0
    assert "Traceback" not in secured.broker.log_text()


@pytest.mark.spec("CLI-05")
def test_franz_while_every_broker_is_killed_once(tmp_path: Path, topic: str) -> None:
    nodes = ThreeNodes(tmp_path, "PLAINTEXT", "PLAINTEXT")
    with nodes.running():
        following = subprocess.Popen(
            command("franz", "follow", nodes.bootstrap, topic),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
        )  # fmt: skip
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline()) == {"when": "begun"}
            for number in NODES:
                nodes.nodes[number - 1].kill()
                nodes.nodes[number - 1].start()
            out, err = following.communicate("\n", timeout=RUN_LIMIT_S)
        finally:
            following.kill()
            following.wait()
    assert following.returncode == 0, err
    line = json.loads(out)
    assert line["wrong"] == ""
    assert line["sent"] > 0
