"""Runs a real broker in a process of its own, as a user would start it."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from e2e.processes import BROKER_SOURCES

START_TIMEOUT_S = 50.0
BETWEEN_SIGNALS_S = 0.02
STOP_TIMEOUT_S = 30.0
VOLUMES = 2
# A record's timestamp. Far older ones are deleted at the broker's next look for what has expired: after five minutes.
AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000


class RunningBroker:
    """A broker process. `bootstrap` is known once `start` has returned; a restart keeps the data, not the port."""

    def __init__(self, folder: Path, **properties: str | int) -> None:
        self.folder = folder
        self.log_dirs = [folder / f"volume-{n}" for n in range(VOLUMES)]
        self.bootstrap = ""
        self.listeners: dict[str, str] = {}  # addresses, by name
        self.metrics = ""
        self.on_end: list[Callable[[], object]] = []  # called before it ends, such as to close clients
        self._process: subprocess.Popen[str] | None = None
        defaults: dict[str, str | int] = {
            "node.id": 1,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 100,
            "metrics.port": 0,
        }
        self._properties = defaults | {name.replace("_", "."): value for name, value in properties.items()}

    def start(self) -> RunningBroker:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._properties.items()))
        environment = {**os.environ, "PYTHONPATH": str(BROKER_SOURCES)}
        with (self.folder / "broker.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ballast_broker", str(file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        line = self._ready_line(self._process)
        self.listeners = dict(re.findall(r"([A-Z]\w*)://([\w.]+:\d+)", line))
        assert self.listeners, f"no ready line but {line!r}; the log says: {self.log_text()}"
        self.bootstrap = self.listeners.get("PLAINTEXT", next(iter(self.listeners.values())))
        page = re.search(r"http://\S+", line)
        self.metrics = page[0] if page else ""
        return self

    def _ready_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()

        def read(stream: IO[str]) -> None:
            lines.put(stream.readline())

        threading.Thread(target=read, args=(process.stdout,), daemon=True).start()
        try:
            return lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            self.kill()
            raise AssertionError(f"not ready after {START_TIMEOUT_S:g} s: {self.log_text()}") from None

    def log_text(self) -> str:
        return (self.folder / "broker.log").read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def stays_where_it_is(self) -> None:
        """Keep the port over restarts."""
        self._properties["listeners"] = f"PLAINTEXT://{self.bootstrap}"

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def stop_impatiently(self) -> int:
        """Send SIGTERM again and again, as an impatient user would, until it is gone; return the exit code."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(BETWEEN_SIGNALS_S)
        return self.stop()

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        while self.on_end:
            self.on_end.pop()()
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"still there {STOP_TIMEOUT_S:g} s after signal {number}: {self.log_text()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
