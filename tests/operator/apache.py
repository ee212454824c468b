"""Runs an Apache Kafka cluster, for tests that prove that the operator works with any Kafka cluster.

The jars come from the directory that BALLAST_KAFKA_JARS names; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.processes import free_ports
from tests.apache_java import java

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
MEMORY = "384m"
# On a busy machine a start takes long.
START_SECONDS = 150.0


@dataclass
class ApacheKafka:
    """Brokers 0..n-1, each with several log directories; broker 0 is the controller as well.

    `protocols` maps further listeners to their security protocols, `settings` are further broker properties;
    `format_options` are passed to Kafka's StorageTool, `java_options` to the JVM.
    """

    directory: Path
    brokers: int = 3
    log_dirs: int = 3
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    controller_port: int = 0
    protocols: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    format_options: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()
    listeners: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def log_dir(self, broker: int, index: int) -> str:
        return str(self.directory / f"broker-{broker}" / f"disk-{index}")

    def start(self) -> None:
        *self.ports, self.controller_port = free_ports(self.brokers + 1)
        for broker in range(self.brokers):
            self.listeners[broker] = dict(zip(self.protocols, free_ports(len(self.protocols)), strict=True))
            self._write_properties(broker)
            where = ("-t", CLUSTER_ID, "-c", str(self._properties(broker)))
            self._run("kafka.tools.StorageTool", "format", *where, *self.format_options)
        for broker in range(self.brokers):
            self.start_broker(broker)
        deadline = time.monotonic() + START_SECONDS
        for port in self.ports:
            self._await_port(port, deadline)

    def start_broker(self, broker: int) -> None:
        with (self.directory / f"broker-{broker}.log").open("ab") as log:
            self.processes[broker] = subprocess.Popen(
                java("kafka.Kafka", self._properties(broker), memory=MEMORY, options=self.java_options),
                stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip

    def kill_broker(self, broker: int) -> None:
        process = self.processes.pop(broker)
        process.kill()
        process.wait(10)

    def stop(self) -> None:
        for broker in list(self.processes):
            self.kill_broker(broker)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _properties(self, broker: int) -> Path:
        return self.directory / f"broker-{broker}.properties"

    def _write_properties(self, broker: int) -> None:
        roles = "broker,controller" if broker == 0 else "broker"
        advertised = f"PLAINTEXT://127.0.0.1:{self.ports[broker]}" + "".join(
            f",{name}://127.0.0.1:{port}" for name, port in self.listeners[broker].items()
        )
        listeners = advertised
        if broker == 0:
            listeners += f",CONTROLLER://127.0.0.1:{self.controller_port}"
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self.protocols}
        settings = {
            "node.id": broker,
            "process.roles": roles,
            "listeners": listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{one}" for name, one in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"0@127.0.0.1:{self.controller_port}",
            "log.dirs": ",".join(self.log_dir(broker, index) for index in range(self.log_dirs)),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "auto.create.topics.enable": "false",
            "default.replication.factor": min(2, self.brokers),
            "replica.lag.time.max.ms": 3000,
            "broker.session.timeout.ms": 6000,
            "log.index.size.max.bytes": 65536,
            **self.settings,
        }
        self._properties(broker).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _run(self, *arguments: str) -> None:
        subprocess.run(java(*arguments, memory=MEMORY), check=True, capture_output=True, timeout=60, cwd=self.directory)

    def _await_port(self, port: int, deadline: float) -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.directory.glob("*.log"))
                raise TimeoutError(f"Apache Kafka did not listen on port {port}:\n{logs}")
            time.sleep(0.1)
