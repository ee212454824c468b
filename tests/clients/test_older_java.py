"""Java clients of Apache Kafka 0.11, 2.8 and 3.9."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.apache_java import compiled, java
from tests.clients.running import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).with_name("Older.java")
OLDEST = "0.11.0.3"
LIMIT_S = 90


def clients(version: str) -> Path:
    return Path(os.environ["BALLAST_KAFKA_JARS"]) / "older" / f"kafka-clients-{version}.jar"


@pytest.mark.spec("CLI-01", "CLI-04", "CLI-05", "CLI-07")
@pytest.mark.parametrize("version", [OLDEST, "2.8.2", "3.9.1"])
def test_producers_groups_and_transactions_outlive_the_broker(
    own_broker: Callable[..., RunningBroker], topic: str, version: str
) -> None:
    broker = own_broker()
    broker.stays_where_it_is()
    classes = compiled(PROGRAM, clients(OLDEST))  # once, as an application is that only gets newer jars
    running = subprocess.Popen(
        java("Older", broker.bootstrap, topic, classes=[classes, clients(version)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        before = [running.stdout.readline() for _ in range(3)]
        if before[-1] == "waiting 0\n":
            broker.kill()
            broker.start()
        after, errors = running.communicate("\n", timeout=LIMIT_S)
    finally:
        running.kill()
        running.wait()
    told = ["seen 0", "committed 4", "waiting 0", "seen 0", "committed 8", "fenced 1"]
    assert ("".join(before) + after).splitlines() == told, errors
    assert running.returncode == 0, errors
