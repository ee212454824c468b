"""Starts the nodes to compare: Apache Kafka from its jars, and Ballast, with equal properties."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.processes import BROKER_SOURCES, free_ports
from tests.apache_java import java

START_TIMEOUT_S = 120.0
MEMORY = "400m"
STOP_TIMEOUT_S = 15.0
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "broker.rack": "r1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "request.timeout.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.partition.verification.enable": "false",  # what partitions do in transactions is compared separately
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
}


class Node:
    """A process with two log directories under `directory`; `port` is where clients connect."""

    def __init__(self, directory: Path, more: dict[str, str] | None = None) -> None:
        self.directory = directory
        directory.mkdir()
        self.port, self.controller_port = free_ports(2)  # that nobody is given before a JVM has started
        self.log_dirs = [str(directory / name) for name in ("d1", "d2")]
        listeners = f"PLAINTEXT://localhost:{self.port},CONTROLLER://localhost:{self.controller_port}"
        properties = PROPERTIES | {
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://localhost:{self.port}",
            "controller.quorum.voters": f"1@localhost:{self.controller_port}",
            "log.dirs": ",".join(self.log_dirs),
            **(more or {}),
        }
        self.properties = directory / "node.properties"
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._log = (directory / "node.log").open("ab")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def succeeded_by(self, kind: type[Node]) -> Node:
        """A node of this kind, started where this one was stopped: with its directories, ports and properties."""
        self.stop()
        other = kind.__new__(kind)
        other.__dict__ |= self.__dict__ | {"_log": (self.directory / "next.log").open("ab")}
        other._process = other._serve()
        return other

    def _serve(self) -> subprocess.Popen[bytes]:
        return self._start()

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        merged = os.environ | (environment or {})
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=self.directory, env=merged)

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("localhost", self.port), timeout=1).close()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    tail = (self.directory / "node.log").read_text(errors="replace")[-3000:]
                    raise TimeoutError(f"{type(self).__name__} does not listen on {self.port}:\n{tail}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._log.close()


class Kafka(Node):
    features: tuple[str, ...] = ()

    def _start(self) -> subprocess.Popen[bytes]:
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties)]
        command += [word for feature in self.features for word in ("--feature", feature)]
        subprocess.run(java(*command, memory=MEMORY), check=True, capture_output=True, timeout=START_TIMEOUT_S)
        return self._serve()

    def _serve(self) -> subprocess.Popen[bytes]:
        return self._run(java("kafka.Kafka", self.properties, memory=MEMORY))


class KafkaWithoutTransactions(Kafka):
    """Formatted without transaction.version: a broker that lacks a feature cannot run on metadata that has it."""

    features = ("transaction.version=0",)


class Ballast(Node):
    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ballast_broker", str(self.properties)]
        return self._run(
            [*command, "--override", f"cluster.id={CLUSTER_ID}"],
            {"PYTHONPATH": str(BROKER_SOURCES)},
        )


@contextlib.contextmanager
def both(folder: Path, properties: dict[str, str] | None = None) -> Iterator[tuple[Node, Node]]:
    """Apache Kafka and Ballast with the same properties, ready."""
    with contextlib.ExitStack() as stack:
        started: list[Node] = []
        for kind in (Kafka, Ballast):
            node = kind(folder / kind.__name__, properties)
            stack.callback(node.stop)
            started.append(node)
        for each in started:
            each.await_ready()
        yield started[0], started[1]
