"""Runs the servers of a benchmark: Apache Kafka from a directory of jars, and Ballast.

Both get the same properties file apart from what each needs; CPU and memory are the kernel's figures for the whole
process. A server runs on loopback with its data in a directory of its own, and is ended by its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from e2e.dump_log import JARS_VARIABLE

from ballast_local.workloads import launch

ROOT = Path(__file__).resolve().parent.parent
CPUCLOCK_SCHED = 2  # clock_getcpuclockid(3) makes a clock id of a pid with this
START_LIMIT_S = 60
STOP_LIMIT_S = 120  # for thousands of partitions; after a kill it would have to recover, which is another measurement
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class ServerFailed(RuntimeError):
    pass


def kafka_jars() -> Path:
    """Where Apache Kafka's jars are; if they are missing, the error says how to get them."""
    named = os.environ.get(JARS_VARIABLE, "")
    if named and any(Path(named).glob("kafka_2.13-*.jar")):
        return Path(named)
    raise ServerFailed(
        f"{JARS_VARIABLE} does not name a directory with Apache Kafka's jars. "
        "`mvn -f .ci/pom.xml dependency:copy-dependencies -DoutputDirectory=DIR` makes one."
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, from its kernel clock: /proc counts only in hundredths."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


class Server:
    """A broker process with a quorum of one. Use as a context manager."""

    name = ""

    def __init__(self, *, volumes: int = 1, overrides: dict[str, str] | None = None, node_id: int = 1) -> None:
        self.node_id = node_id
        self.voters: list[Server] = [self]
        self.port = free_port()
        self.controller_port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self.volumes = [self.directory / f"volume-{i}" for i in range(volumes)]
        self.overrides = overrides or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def properties(self) -> dict[str, str]:
        return {
            "node.id": str(self.node_id),
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(
                f"{voter.node_id}@127.0.0.1:{voter.controller_port}" for voter in self.voters
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": ",".join(map(str, self.volumes)),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.delete.delay.ms": "500",  # what one run leaves must not be written to disk during the next
            **self.overrides,
        }

    def write_properties(self) -> Path:
        path = self.directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        return path

    def command(self, properties: Path) -> list[str]:
        raise NotImplementedError

    def prepare(self, properties: Path) -> None:
        """Called once before the first start."""

    def __enter__(self) -> Server:
        try:
            properties = self.write_properties()
            self.prepare(properties)
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.remove()

    def start(self) -> None:
        begin = time.perf_counter()
        self.spawn()
        self.wait_until_answering(begin + START_LIMIT_S)
        self.start_seconds = time.perf_counter() - begin

    def spawn(self) -> None:
        log = (self.directory / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                launch.under(*self.command(self.directory / "server.properties"), ended_by=signal.SIGKILL),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self.environment(),
            )

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def wait_until_answering(self, deadline: float) -> None:
        """Wait until it answers an ApiVersions request, the first thing that any client sends."""
        while time.perf_counter() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise ServerFailed(f"{self.name} ended at once:\n{self.tail()}")
            if self.answers():
                return
            time.sleep(0.01)
        raise ServerFailed(f"{self.name} did not answer within {START_LIMIT_S} s:\n{self.tail()}")

    def answers(self) -> bool:
        request = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(len(request).to_bytes(4, "big") + request)
                return len(connection.recv(64)) > 8
        except OSError:
            return False

    def tail(self) -> str:
        lines = (self.directory / "server.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- what it costs --------------------------------------------------------------------------------------------
    def cpu_seconds(self) -> float:
        assert self.process is not None
        return cpu_seconds(self.process.pid)

    def memory_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def open_files(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class ApacheKafka(Server):
    name = "kafka"

    def prepare(self, properties: Path) -> None:
        tool = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            [*tool, "-t", CLUSTER_ID, "-c", str(properties)], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise ServerFailed(f"formatting Apache Kafka's storage failed:\n{done.stdout}{done.stderr}")

    def command(self, properties: Path) -> list[str]:
        return ["java", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-cp", f"{kafka_jars()}/*", "kafka.Kafka", str(properties)]


class Ballast(Server):
    name = "ballast"
    packages = ROOT / "broker-image"  # or the compiled ones, as in an image

    def __init__(
        self,
        *,
        volumes: int = 1,
        overrides: dict[str, str] | None = None,
        node_id: int = 1,
        profile: Path | None = None,
        log_level: str = "warning",
    ) -> None:
        super().__init__(volumes=volumes, overrides=overrides, node_id=node_id)
        self.profile = profile  # cProfile's figures go here when the broker ends
        self.log_level = log_level

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "cluster.id": CLUSTER_ID}

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.packages)}

    def command(self, properties: Path) -> list[str]:
        profiler = [] if self.profile is None else ["-m", "cProfile", "-o", str(self.profile)]
        return [sys.executable, *profiler, "-m", "ballast_broker", "--log-level", self.log_level, str(properties)]


class Cluster:
    """Several servers of one kind with one quorum among them. Use as a context manager."""

    def __init__(
        self, kind: type[Server], count: int, *, volumes: int = 1, overrides: dict[str, str] | None = None
    ) -> None:
        self.servers = [kind(volumes=volumes, node_id=number + 1, overrides=overrides) for number in range(count)]
        self.name = self.servers[0].name
        for server in self.servers:
            server.voters = self.servers

    @property
    def bootstrap(self) -> str:
        return ",".join(server.bootstrap for server in self.servers)

    def __enter__(self) -> Cluster:
        try:
            with ThreadPoolExecutor() as pool:  # if there is anything to do, it runs a process each
                list(pool.map(lambda server: server.prepare(server.write_properties()), self.servers))
            for server in self.servers:
                server.spawn()
            deadline = time.perf_counter() + START_LIMIT_S
            for server in self.servers:
                server.wait_until_answering(deadline)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.process.send_signal(signal.SIGTERM)
        for server in self.servers:
            server.stop()
            server.remove()

    def cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.servers)

    def memory_bytes(self) -> int:
        return sum(server.memory_bytes() for server in self.servers)

    def tail(self) -> str:
        return "\n".join(server.tail() for server in self.servers)
