"""Kafka Connect in distributed mode, unchanged: workers that are a group with a protocol of their own, whose topics are
compacted, and a source that writes each line exactly once though its worker is killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from e2e.processes import free_ports, until
from tests.apache_java import java
from tests.clients.running import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-14")]

PATIENCE_S = 60.0
LINES = 500  # before and after a worker is killed
SETTINGS = {
    "group.id": "connect",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "exactly.once.source.support": "enabled",
    "offset.flush.interval.ms": 500,
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 500,
    "scheduled.rebalance.max.delay.ms": 0,
    "plugin.discovery": "only_scan",
}


class Worker:
    def __init__(self, folder: Path, bootstrap: str) -> None:
        folder.mkdir()
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.log = folder / "log"
        settings = SETTINGS | {"bootstrap.servers": bootstrap, "listeners": f"http://{self.address}"}
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                java("org.apache.kafka.connect.cli.ConnectDistributed", file),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, method: str = "GET", value: object = None) -> Any:
        """None: it is not there, or in the middle of something."""
        body = None if value is None else json.dumps(value).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}/{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except OSError:
            return None

    def place_of(self, connector: str) -> str:
        """The worker that runs its only task; nothing while none does."""
        status = self.ask(f"connectors/{connector}/status") or {"tasks": []}
        return next((task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"), "")

    def offsets(self, connector: str) -> list[Any]:
        found: list[Any] = (self.ask(f"connectors/{connector}/offsets") or {"offsets": []})["offsets"]
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


@pytest.fixture
def workers(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> Iterator[tuple[RunningBroker, list[Worker]]]:
    broker = own_broker(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
    with contextlib.ExitStack() as stack:
        started = []
        for number in range(2):
            started.append(Worker(tmp_path / f"worker-{number}", broker.bootstrap))
            stack.callback(started[-1].kill)
        yield broker, started


def committed(broker: RunningBroker, topic: str) -> Counter[str]:
    settings = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "enable.partition.eof": True, **settings})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = Counter[str]()
    try:
        while True:
            for each in reader.consume(500, 0.2):
                error = each.error()
                if error is None:
                    found[(each.value() or b"").decode()] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        reader.close()


def test_lines_go_from_a_file_through_a_topic_into_a_file(
    workers: tuple[RunningBroker, list[Worker]], tmp_path: Path
) -> None:
    broker, (one, two) = workers
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}" for number in range(2 * LINES)]
    source.write_text("".join(f"{line}\n" for line in lines[:LINES]))
    assert until(lambda: one.ask("connectors") == two.ask("connectors") == [], PATIENCE_S), one.log.read_text()
    reads = {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(source), "topic": "lines"}
    writes = {
        "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(sink), "topics": "lines",
        "consumer.override.isolation.level": "read_committed",
    }  # fmt: skip
    assert until(lambda: one.ask("connectors/reads/config", "PUT", reads), PATIENCE_S)
    assert until(lambda: one.ask("connectors/writes/config", "PUT", writes), PATIENCE_S)

    def written() -> set[str]:
        return set(sink.read_text().splitlines()) if sink.exists() else set()

    assert until(lambda: written() == set(lines[:LINES]), PATIENCE_S), one.log.read_text()
    assert until(lambda: one.place_of("reads") != "", PATIENCE_S)
    killed, left = (one, two) if one.place_of("reads") == one.address else (two, one)
    killed.kill()
    with source.open("a") as more:
        more.writelines(f"{line}\n" for line in lines[LINES:])
    assert until(lambda: written() == set(lines), PATIENCE_S), left.log.read_text()
    assert committed(broker, "lines") == Counter(lines)
    assert until(lambda: left.place_of("reads") == left.address, PATIENCE_S)
    assert until(lambda: left.offsets("reads") != [], PATIENCE_S)
    [place] = left.offsets("reads")
    assert place["offset"] == {"position": source.stat().st_size}
    assert until(lambda: left.offsets("writes") != [], PATIENCE_S)
    for connector in ("reads", "writes"):
        reset_and_delete(left, connector)
    left.stop()


def reset_and_delete(worker: Worker, connector: str) -> None:
    path = f"connectors/{connector}"
    assert until(lambda: worker.ask(f"{path}/stop", "PUT") is not None, PATIENCE_S)
    assert until(lambda: worker.ask(f"{path}/offsets", "DELETE") is not None, PATIENCE_S)
    assert until(lambda: worker.ask(f"{path}/offsets") == {"offsets": []}, PATIENCE_S)
    assert until(lambda: worker.ask(path, "DELETE") is not None, PATIENCE_S)
