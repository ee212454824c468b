"""Starts Spark drivers (`spark_driver.py`), sends them commands, and kills them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.apache_java import left_behind

PROGRAM = Path(__file__).with_name("spark_driver.py")
ANSWER_S = 100.0
Record = dict[str, Any]


class SparkFailure(Exception):
    """A command failed; the text is Spark's error."""


class RunningSpark:
    """A driver: Python and its JVM are one session of processes, paused and killed together."""

    def __init__(self, log: Path, settings: Mapping[str, str] = {}) -> None:
        self._log = log
        paths = os.pathsep.join(filter(None, sys.path))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(dict(settings))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True,
                env=os.environ | {"PYTHONPATH": paths, "TMPDIR": str(left_behind())},
            )  # fmt: skip

    def __enter__(self) -> RunningSpark:
        try:
            self._answer()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def do(self, what: str, /, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "failed" in answer:
            raise SparkFailure(answer["failed"])
        return answer["found"]

    def read(self, bootstrap: str, **options: str) -> list[Record]:
        found: list[Record] = self.do("read", options={"kafka.bootstrap.servers": bootstrap, **options})
        return found

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=ANSWER_S)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"no answer within {ANSWER_S:g} s: {self._log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer
