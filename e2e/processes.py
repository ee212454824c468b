"""Runs real broker processes on loopback: starts, stops, freezes and kills them, and ends them whatever happens.

A broker keeps its port and its data directories over restarts, as a pod does. Ports are below the kernel's ephemeral
range, so nobody else takes one while its broker is down. Brokers may have hosts of their own instead (`hosts.py`).
Blocking; only the main thread: brokers end with the thread that started them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from e2e import stepped_broker
from e2e.asking import ask, message
from e2e.hosts import Host

import ballast_broker
from ballast_local.workloads import launch

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
# Brokers run the same code that this process imports, interpreted or compiled.
BROKER_SOURCES = Path(ballast_broker.__file__).resolve().parents[1]
READY_S = 120.0
STOP_S = 60.0
POLL_S = 0.02
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
LOOPBACK = "127.0.0.1"
VOLUMES = ("a", "b", "c")
BROKER_PORT, CONTROLLER_PORT = 9092, 9093  # if a broker has a host of its own
LOWEST_PORT = 10_000
NODE_PORTS_FROM = 30_000  # what a Kubernetes on this machine gives away itself
PORT_ATTEMPTS = 1000
# Each process of a test run has ports of its own: until its broker listens, and while it is down, one is free to all.
LANES = 8
_given: deque[int] = deque(maxlen=500)
WORDS_OF_A_BUG = ("Traceback", "Task exception was never retrieved")


class BrokerTrouble(Exception):
    """A broker did not start, keep running, or stop as it must."""


class BrokerProcess:
    """One broker. `start` returns once it is spawned, `wait_ready` once it serves."""

    def __init__(
        self, folder: Path, node_id: int, port: int, properties: Mapping[str, str], host: Host | None = None
    ) -> None:
        self.folder = folder
        self.node_id = node_id
        self.port = port
        self.host = host  # None: this machine
        self.volumes = [folder / name for name in VOLUMES]
        self.paused = False
        self.module = "e2e.stepped_broker"  # the broker, with a clock that can be set
        self.environment: dict[str, str] = {}
        self._wanted = False
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "server.properties"
        self._clock = folder / "clock-offset-ms"
        self._output = folder / "output.log"
        self._output_from = 0
        values = {
            "node.id": str(node_id),
            "log.dirs": ",".join(map(str, self.volumes)),
            "ballast.log.dir.reserve.bytes": "0",  # this machine's free space must not matter
            **properties,
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended_by_itself(self) -> bool:
        """Whether it is gone although we neither killed nor stopped it."""
        return self._wanted and not self.is_running

    @property
    def address(self) -> str:
        return f"{LOOPBACK if self.host is None else self.host.address}:{self.port}"

    def start(self) -> None:
        assert not self.is_running
        paths = os.pathsep.join(map(str, (BROKER_SOURCES, ROOT)))
        clock = {stepped_broker.OFFSET_FILE: str(self._clock)}
        environment = {**os.environ, "PYTHONPATH": paths, **clock, **self.environment}
        self._output_from = self._output.stat().st_size if self._output.exists() else 0
        there = contextlib.nullcontext() if self.host is None else self.host.inside()
        with self._output.open("ab") as output, there:
            # A session of its own: Ctrl-C reaches only us, and we end the brokers in our own order. If we are killed,
            # the kernel ends them, frozen ones too.
            self._process = subprocess.Popen(
                launch.under(
                    sys.executable, "-P", "-m", self.module, str(self._file), "--log-level", "info",
                    ended_by=signal.SIGKILL,
                ),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        self.paused = False
        self._wanted = True

    def wait_ready(self, seconds: float = READY_S) -> None:
        deadline = time.monotonic() + seconds
        while not self._said_ready():
            if not self.is_running:
                raise BrokerTrouble(f"broker {self.node_id} ended while it started; see {self._output}")
            if time.monotonic() > deadline:
                raise BrokerTrouble(f"broker {self.node_id} is not ready after {seconds:.0f} s; see {self._output}")
            time.sleep(POLL_S)

    def _said_ready(self) -> bool:
        with self._output.open("rb") as output:
            output.seek(self._output_from)
            return b" is ready on " in output.read()

    def kill(self) -> None:
        self._wanted = False
        self._signal(signal.SIGKILL)
        self._wait(STOP_S)

    def stop(self, seconds: float = STOP_S) -> None:
        """An orderly stop; raises if it takes too long or ends badly. If already asked to stop, only waits."""
        if self._wanted:
            self.ask_to_stop()
        code = self._wait(seconds)
        if code != 0:
            self.kill()
            what = "did not stop" if code is None else f"stopped with exit code {code}"
            raise BrokerTrouble(f"broker {self.node_id} {what} within {seconds:.0f} s; see {self._output}")

    def ask_to_stop(self) -> None:
        self._wanted = False
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def set_clock(self, offset_ms: int) -> None:
        """Step its wall clock to this offset from the machine's, also after restarts. Only once it is ready."""
        self._clock.write_text(str(offset_ms))
        self._signal(signal.SIGUSR1)

    def last_lines(self, count: int = 50) -> list[str]:
        """The last lines of its output."""
        return self._output.read_text(errors="replace").splitlines()[-count:] if self._output.exists() else []

    def complaints(self) -> list[str]:
        """Lines of its output that no fault excuses."""
        if not self._output.exists():
            return []
        lines = self._output.read_text(errors="replace").splitlines()
        found = [number for number, line in enumerate(lines) if any(word in line for word in WORDS_OF_A_BUG)]
        return [f"broker {self.node_id} wrote: {_last_of_traceback(lines[number:])}" for number in found]

    def _signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def _wait(self, seconds: float) -> int | None:
        if self._process is None:
            return 0
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _last_of_traceback(lines: list[str]) -> str:
    last = next((line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception|Failed|Group|\w+:)", line)), lines[0])
    return last[:300]


class Cluster:
    """Brokers 1 to N, each also a controller. A context manager: on exit, every process has ended."""

    def __init__(
        self, folder: Path, count: int, properties: Mapping[str, str], hosts: Sequence[Host] | None = None
    ) -> None:
        """Broker N runs on host N, which must exist when it starts; without hosts all run on loopback."""
        ports = free_ports(2 * count) if hosts is None else [BROKER_PORT] * count + [CONTROLLER_PORT] * count
        addresses = [LOOPBACK] * count if hosts is None else [host.address for host in hosts]
        controllers = ports[count:]
        voters = ",".join(f"{n}@{addresses[n - 1]}:{port}" for n, port in enumerate(controllers, 1))
        self.folder = folder
        self.brokers = []
        for node_id in range(1, count + 1):
            port, controller, address = ports[node_id - 1], controllers[node_id - 1], addresses[node_id - 1]
            host = None if hosts is None else hosts[node_id - 1]
            own = {
                "process.roles": "broker,controller",
                "cluster.id": CLUSTER_ID,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://{address}:{port},CONTROLLER://{address}:{controller}",
                "group.initial.rebalance.delay.ms": "0",
                "auto.create.topics.enable": "false",
                "offsets.topic.num.partitions": "4",
                "offsets.topic.replication.factor": str(min(3, count)),
                "transaction.state.log.num.partitions": "4",
                "transaction.state.log.replication.factor": str(min(3, count)),
                "transaction.state.log.min.isr": str(min(2, count)),
                **properties,
            }
            self.brokers.append(BrokerProcess(folder / f"broker-{node_id}", node_id, port, own, host))

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.kill()

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait_ready()
        # The others need not know a ready broker yet, and librdkafka drops its requests to a broker as soon as another
        # one's metadata lacks it.
        everybody = {each.node_id for each in self.brokers}
        if not until(lambda: all(brokers_told(each.address) == everybody for each in self.brokers), READY_S):
            raise BrokerTrouble("the brokers do not all know of each other")

    def stop(self) -> None:
        """Ask all at once: the last ones, with no quorum left to hand over their leaderships, must stop as well."""
        trouble = []
        for broker in self.brokers:
            broker.ask_to_stop()
        for broker in self.brokers:
            try:
                broker.stop()
            except BrokerTrouble as failure:
                trouble.append(str(failure))
        if trouble:
            raise BrokerTrouble("; ".join(trouble))

    def active_controller(self) -> int | None:
        """The active controller's node id according to the brokers, or None if none of them knows."""
        for broker in self.brokers:
            if broker.is_running and not broker.paused:
                with contextlib.suppress(OSError, ValueError):
                    return _quorum_leader(broker.address)
        return None


def until_interrupted(work: Callable[[], T]) -> T:
    """The result of `work`; KeyboardInterrupt on Ctrl-C, SIGTERM or if the terminal closes. Main thread.

    An interrupt while a client's C code runs may surface as any error, so errors after it are taken for the interrupt.
    """
    asked: list[int] = []

    def interrupt(number: int, _: object) -> None:
        asked.append(number)
        for other in (signal.SIGTERM, signal.SIGHUP):  # even if asked twice, it must end its brokers
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        result = work()
    except Exception as error:
        if asked:
            raise KeyboardInterrupt from error
        raise
    if asked:
        raise KeyboardInterrupt
    return result


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for the condition; whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below the kernel's ephemeral range, and that were not given to somebody lately."""
    highest = NODE_PORTS_FROM
    with contextlib.suppress(OSError, ValueError):
        highest = min(highest, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    lane = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % LANES
    ours = range(LOWEST_PORT + lane, max(highest, LOWEST_PORT + 2 * LANES * PORT_ATTEMPTS), LANES)
    found: list[int] = []
    for port in random.SystemRandom().sample(ours, PORT_ATTEMPTS):
        if len(found) == count:
            return found
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        _given.append(port)
    raise BrokerTrouble(f"no {count} free ports on loopback")


def brokers_told(address: str) -> set[int]:
    """The brokers that this one's metadata names."""
    response = ask(address, message("MetadataRequest")(topics=[], allow_auto_topic_creation=False), 4, READY_S)
    return {broker.node_id for broker in response.brokers}


def _quorum_leader(address: str) -> int | None:
    from ballast_broker.raft.describe import describe_request  # lazily, like `message`

    response = ask(address, describe_request(), 0, timeout_s=2.0)
    partitions = response.topics[0].partitions if response.topics else []
    leader = partitions[0].leader_id if partitions and not partitions[0].error_code else -1
    return leader if leader > 0 else None
