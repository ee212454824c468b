"""Runs the cleaner in a process of its own: one job per line on stdin, one answer per line on stdout. A line with
nothing but a rate changes the rate of the job under way.

The broker's event loop keeps running while records are decoded. The process exits when its stdin closes, even in the
middle of a job: a cleaner that outlived its broker would write into files of the next one's. This module has both ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from ballast_broker.storage.cleaner import CleanedGroup, CleanJob, CleanResult, Throttle, clean
from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.transactions import EndedTransaction

RATE = "bytes_per_second"
_LINE_LIMIT = 64 << 20
_NICENESS = 10
_ENDS_WITHIN_S = 5.0


class CleanerFailed(Exception):
    """The cleaner could not do a job; the message says why. `os_error`: the errno, if an OSError was the cause."""

    def __init__(self, message: str, os_error: int | None = None) -> None:
        super().__init__(message)
        self.os_error = os_error


class CleanerMissing(CleanerFailed):
    """No cleaner could be started; the log that was to be cleaned is not to blame."""


class CleanerDied(CleanerFailed):
    """The process died: killed from outside, or by this very job, which would kill it again."""


class CleanerRunner(Protocol):
    async def run(self, job: CleanJob) -> CleanResult:
        """Raises CleanerFailed if the job could not be done; its `.cleaned` files may then be left behind."""

    def change_rate(self, bytes_per_second: float) -> None:
        """Limit reads and writes from now on, of the job under way too; 0 is unlimited."""

    async def close(self) -> None: ...


class CleanerProcess:
    """Starts the process at the first job and again if it died; a second one while the first hangs on a disk."""

    def __init__(self) -> None:
        self._idle: asyncio.subprocess.Process | None = None
        self._busy: set[asyncio.subprocess.Process] = set()
        self._rate = 0.0

    @property
    def pid(self) -> int | None:
        process = next(iter(self._busy), self._idle)
        return process.pid if process is not None else None

    async def run(self, job: CleanJob) -> CleanResult:
        process, self._idle = self._idle, None
        if process is None:
            try:
                process = await _spawn()
            except OSError as error:  # no memory or no handles left
                raise CleanerMissing(f"the cleaner process cannot be started: {error}") from error
        self._busy.add(process)
        finished = False
        try:
            answer = await _exchange(process, json.dumps(dataclasses.asdict(job) | {RATE: self._rate}))
            finished = True
        finally:
            self._busy.discard(process)
            if finished and self._idle is None:
                self._idle = process
            else:
                await _kill(process)
        if "error" in answer:
            raise CleanerFailed(answer["error"], answer["errno"])
        groups = [
            CleanedGroup(**group | {"aborted": [EndedTransaction(*each) for each in group["aborted"]]})
            for group in answer.pop("groups")
        ]
        return CleanResult(groups=groups, **answer)

    def change_rate(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        line = json.dumps({RATE: bytes_per_second}).encode() + b"\n"
        for process in self._busy:
            if process.stdin is not None and process.returncode is None:
                process.stdin.write(line)

    async def close(self) -> None:
        """Call when no job is under way any more."""
        process, self._idle = self._idle, None
        if process is not None:
            await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """A process blocked on a disk dies only when the disk answers; do not wait long, so that the broker can stop."""
    if process.returncode is None:
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await process.wait()


async def _spawn() -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ballast_broker.storage.cleaner_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        limit=_LINE_LIMIT,
        start_new_session=True,  # an interrupt at the terminal is the broker's to handle
    )


async def _exchange(process: asyncio.subprocess.Process, line: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()
        answer = await process.stdout.readline()
    except ConnectionError as error:
        raise CleanerDied(f"the cleaner process is gone: {error}") from error
    except ValueError as error:  # longer than _LINE_LIMIT
        raise CleanerFailed(f"the cleaner process cannot be understood: {error}") from error
    if not answer.endswith(b"\n"):
        raise CleanerDied("the cleaner process ended in the middle of a job")
    result: dict[str, Any] = json.loads(answer)
    return result


class _Pace:
    """Throttles to so many bytes a second, reads and writes together; 0 is unlimited."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._changed = threading.Event()
        self._ahead_bytes = 0.0
        self._last_s = time.monotonic()

    def change(self, bytes_per_second: float) -> None:
        """Any thread. Wakes a thread that is waiting by the former rate."""
        self._rate = bytes_per_second
        self._changed.set()

    def __call__(self, size: int) -> None:
        self._ahead_bytes += size
        while (wait_s := self._wait_s()) > 0:
            self._changed.wait(wait_s)

    def _wait_s(self) -> float:
        self._changed.clear()
        rate, now_s = self._rate, time.monotonic()
        self._ahead_bytes = max(0.0, self._ahead_bytes - (now_s - self._last_s) * rate) if rate else 0.0
        self._last_s = now_s
        return self._ahead_bytes / rate if self._ahead_bytes > rate / 10 else 0.0


def _do(fields: dict[str, Any], pace: Throttle) -> dict[str, object]:
    fields["segments"] = [(base, size) for base, size in fields["segments"]]
    fields["producers"] = {int(number): (epoch, last) for number, (epoch, last) in fields["producers"].items()}
    fields["aborted"] = [EndedTransaction(*each) for each in fields["aborted"]]
    job = CleanJob(**fields)
    try:
        return dataclasses.asdict(clean(RealDisk(), job, pace))
    except OSError as error:
        return {"error": str(error), "errno": error.errno}
    except Exception as error:  # one odd log must not end the process that serves all of them
        return {"error": f"{type(error).__name__}: {error}", "errno": None}


def _read_jobs(jobs: SimpleQueue[dict[str, Any]], pace: _Pace) -> None:
    for line in sys.stdin:
        fields = json.loads(line)
        pace.change(fields.pop(RATE))
        if fields:
            jobs.put(fields)
    os._exit(0)


def main() -> None:
    os.nice(_NICENESS)
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    pace = _Pace()
    threading.Thread(target=_read_jobs, args=(jobs, pace), daemon=True).start()
    while True:
        answer = json.dumps(_do(jobs.get(), pace))
        try:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the broker has just exited
            os._exit(0)


if __name__ == "__main__":
    main()
