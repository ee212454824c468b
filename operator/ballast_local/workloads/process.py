"""Runs a container's process in a session of its own, with its output in a file.

`kill_strays` identifies processes left by a killed node by pid and start time or by their environment, so that it never
kills others.
"""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from ballast_local.workloads import launch

MARK = "BALLAST_POD"
"""The environment variable of every process that has its pod's directory."""
GONE_SECONDS = 10.0


def start_time(pid: int) -> str:
    """The kernel's start time of a process; empty if it is gone or unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def kill_strays(pods: Path) -> None:
    """Kill what a killed node left running, and wait until it is gone, as new pods use the same volumes.

    These are the process groups in the records, if their leaders still are the same processes, and, since a leader may
    have exited, all processes with the mark of a pod in their environment.
    """
    for record in pods.glob("*/pids/*"):
        pid_text, _, started = record.read_text().partition(" ")
        if pid_text.isdecimal() and started and start_time(int(pid_text)) == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(pid_text), signal.SIGKILL)
        record.unlink(missing_ok=True)
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _marked(pods)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(pods: Path) -> list[int]:
    mark = f"\0{MARK}={pods}/".encode()
    found: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if mark in b"\0" + (directory / "environ").read_bytes():
                found.append(int(directory.name))
    return found


def _open(log: Path, record: Path) -> int:
    for directory in (log.parent, record.parent):
        directory.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _note(record: Path, pid: int) -> None:
    record.write_text(f"{pid} {start_time(pid)}")


class Process:
    def __init__(self, process: asyncio.subprocess.Process, record: Path) -> None:
        self._process, self._record = process, record
        self._ended = asyncio.Event()

    @classmethod
    async def start(
        cls, command: list[str], environment: dict[str, str], directory: Path, log: Path, record: Path
    ) -> "Process":
        """Start the process; raises OSError if that is not possible."""
        output = await asyncio.to_thread(_open, log, record)
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.under(*command),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment, cwd=directory, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(output)
        started = cls(process, record)
        try:
            await asyncio.to_thread(_note, record, process.pid)
        except BaseException:  # e.g. a full disk: without a record `kill_strays` might not find it
            started.kill()
            await process.wait()
            raise
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end; returns the exit code as containers report it, 128 + n after signal n."""
        code = await self._process.wait()
        self._ended.set()
        self.kill()
        self._record.unlink(missing_ok=True)
        return code if code >= 0 else 128 - code

    async def wait_ended(self, seconds: float) -> bool:
        """Wait for the end for at most this time; returns whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    def terminate(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole process group, including children that outlived the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def run_command(
    command: list[str], environment: dict[str, str], directory: Path, seconds: float
) -> tuple[int, str]:
    """Run a command of an exec probe or hook; returns its exit code and output. It is killed on timeout.

    Uses `asyncio.timeout`, because Python 3.11's `wait_for` may swallow a cancellation at the moment of completion.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env=environment, cwd=directory, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")
