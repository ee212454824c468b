"""Runs `./ballast up` as in one terminal, and commands as in another, in a folder laid out as the pages expect."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from e2e.kubernetes.binaries import kubectl

from ballast_local.workloads import launch

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = kubectl()


def installed(home: Path) -> None:
    """Make `./ballast` find its environment installed already: the Python that runs the tests."""
    (home / "env" / "bin").mkdir(parents=True)
    (home / "env" / "stamps").mkdir()
    python = home / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for lock in (ROOT / "requirements").glob("*.lock"):
        checksum = subprocess.run(["cksum"], input=lock.read_bytes(), capture_output=True, check=True).stdout
        (home / "env" / "stamps" / lock.stem).write_bytes(checksum)


class Up:
    """`./ballast up` in a process of its own, and a shell in which kubectl is the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stopped = False
        self.data = folder / ".ballast" / "up"
        installed(folder / ".ballast")
        (folder / "bin").mkdir()
        (folder / "bin" / "kubectl").symlink_to(KUBECTL)
        (folder / "ballast").symlink_to(ROOT / "ballast")
        for name in ("manifests", "crds"):  # copies, since some pages tell users to edit them
            shutil.copytree(ROOT / name, folder / name)
        self.environment = {**os.environ, "BALLAST_HOME": str(folder / ".ballast"), "HOME": str(folder)}
        self.environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment["KUBECONFIG"] = str(self.data / "kubeconfig")
        self.idle_before = os.getloadavg()[0] < (os.cpu_count() or 1) / 2
        # It ends with the tests, however they end.
        self.process = subprocess.Popen(
            launch.under("./ballast", "up"),
            stdout=subprocess.PIPE, env=self.environment, text=True, cwd=folder,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.printed: list[str] = []
        # Reads what it prints after it is ready, so that the pipe does not fill up.
        self._drain = threading.Thread(target=self._read_on, daemon=True)

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.strip())
            if line.startswith("ready after"):
                break
        self.cpu_seconds = self._cpu_seconds()
        self._drain.start()

    def _read_on(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.strip())

    def shell(self, command: str, seconds: float = 150.0) -> str:
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self._log()}"
        return done.stdout

    def get(self, what: str) -> Any:
        return json.loads(self.shell(f"kubectl get {what} -o json"))

    def _log(self) -> str:
        return (self.data / "operator.log").read_text()[-2000:]

    def _pids(self) -> list[int]:
        return [self.process.pid, *_children(self.process.pid)]

    def _cpu_seconds(self) -> float:
        ticks = 0
        for pid in self._pids():
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def ready_seconds(self) -> float:
        """The time to ready that it printed."""
        found = [re.match(r"ready after ([\d.]+) s", line) for line in self.printed]
        return next(float(one[1]) for one in found if one)

    def memory_mb(self) -> float:
        """The memory of all processes; shared pages are counted once."""
        rows = [row for pid in self._pids() for row in _read(f"/proc/{pid}/smaps_rollup").splitlines()]
        return sum(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024

    def __enter__(self) -> Up:
        try:
            self.await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stopped:
            self.stop()

    def stop(self) -> None:
        self.stopped = True
        try:
            self.process.send_signal(signal.SIGINT)
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()
            self.process.wait()
            if self._drain.is_alive():
                self._drain.join(10)
            assert self.process.stdout is not None
            self.process.stdout.close()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in _entries(f"/proc/{pid}/task"):
        for child in _read(f"{task}/children").split():
            found += [int(child), *_children(int(child))]
    return found


def _entries(path: str) -> list[Path]:
    try:
        return list(Path(path).iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: str) -> str:
    """The file's text; empty if the process or thread has ended meanwhile."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
