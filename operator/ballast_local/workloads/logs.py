"""Pods' logs: one file per container and run, read back by `kubectl logs`."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from ballast_local.errors import ApiError, Obj, bad_request, not_implemented
from ballast_local.requests import is_gone, whole_number

CHUNK_BYTES = 1 << 16
FOLLOW_SECONDS = 0.2
LAST_WORDS_LINES = 80
LAST_WORDS_BYTES = 2048


def log_path(pods: Path, uid: str, container: str, previous: bool = False) -> Path:
    path = pods / uid / "logs" / f"{container}.log"
    return previous_of(path) if previous else path


def previous_of(log: Path) -> Path:
    return log.with_suffix(".previous.log")


def last_words(log: Path) -> str:
    """The end of a log, as the termination message by the policy FallbackToLogsOnError. Blocking."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        start = _tail_start(file, LAST_WORDS_LINES)
        file.seek(max(start, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        return file.read(LAST_WORDS_BYTES).decode(errors="replace")
    return ""


class Logs:
    def __init__(self, pods: Path, closing: asyncio.Event) -> None:
        self._pods, self._closing = pods, closing
        # (uid of the pod, name of the container)
        self.running: set[tuple[str, str]] = set()

    async def read(self, request: web.Request, pod: Obj) -> web.StreamResponse:
        query = request.query
        for name in ("sinceSeconds", "sinceTime", "timestamps", "stream"):
            if query.get(name) not in (None, "", "false", "All"):
                raise not_implemented(f"{name} of pod logs: lines are kept as the process wrote them, without times")
        container = self._container(pod, query.get("container"))
        uid = pod["metadata"]["uid"]
        previous = query.get("previous") == "true"
        path = log_path(self._pods, uid, container, previous)
        tail, limit = (whole_number(query.get(name)) for name in ("tailLines", "limitBytes"))
        try:
            file = await asyncio.to_thread(path.open, "rb", buffering=0)
        except FileNotFoundError:
            name = pod["metadata"]["name"]
            if previous:
                raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found') from None
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start') from None
        with file:
            start = 0 if tail is None else await asyncio.to_thread(_tail_start, file, tail)
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            run = Run(path, file, start)
            await self._copy(request, response, run, limit, (uid, container))
            await response.write_eof()
        return response

    def _container(self, pod: Obj, wanted: str | None) -> str:
        spec = pod["spec"]
        names = [one["name"] for one in (spec.get("initContainers") or []) + spec["containers"]]
        if wanted:
            if wanted not in names:
                raise bad_request(f"container {wanted} is not valid for pod {pod['metadata']['name']}")
            return wanted
        if len(spec["containers"]) > 1:
            choices = " ".join(names)
            raise bad_request(
                f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: [{choices}]"
            )
        name: str = spec["containers"][0]["name"]
        return name

    async def _copy(
        self, request: web.Request, response: web.StreamResponse, run: "Run", left: int | None, key: tuple[str, str]
    ) -> None:
        follow = request.query.get("follow") == "true"
        while left is None or left > 0:
            ended = not follow or key not in self.running or self._closing.is_set() or is_gone(request)
            chunk, is_last = await asyncio.to_thread(run.read, CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            if chunk:
                await response.write(chunk)
                left = None if left is None else left - len(chunk)
            elif ended or is_last:
                return
            else:
                await asyncio.sleep(FOLLOW_SECONDS)


class Run:
    """Reads the log of one run of a container, and never continues with that of the next run, which is another file."""

    def __init__(self, path: Path, file: BinaryIO, position: int) -> None:
        self._path, self._file, self._position = path, file, position
        self._copy = self._present_copy()

    def read(self, size: int) -> tuple[bytes, bool]:
        """Read the next bytes; the second value is True if the run is over, so that nothing follows them. Blocking."""
        held = os.fstat(self._file.fileno())
        try:
            is_last = self._path.stat().st_ino != held.st_ino
        except FileNotFoundError:
            is_last = True
        copy, length = present = self._present_copy()
        if copy not in (self._copy[0], held.st_ino) and held.st_size < length:  # `cut_logs` has truncated it
            with contextlib.suppress(FileNotFoundError), previous_of(self._path).open("rb", buffering=0) as file:
                if chunk := self._next(file, size):
                    return chunk, False
            self._copy, self._position = present, 0
        return self._next(self._file, size), is_last

    def _next(self, file: BinaryIO, size: int) -> bytes:
        file.seek(self._position)
        chunk = file.read(size)
        self._position += len(chunk)
        return chunk

    def _present_copy(self) -> tuple[int, int]:
        """(inode, length) of the previous log."""
        try:
            found = previous_of(self._path).stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size


def _tail_start(file: BinaryIO, lines: int) -> int:
    """The position at which the last lines begin, searched from the end."""
    if lines < 0:
        raise ApiError(422, "Invalid", "tailLines must be greater than or equal to 0")
    position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return position
    position -= 1  # a newline at the very end begins no line
    while position > 0:
        size = found = min(CHUNK_BYTES, position)
        file.seek(position - size)
        chunk = file.read(size)
        while (found := chunk.rfind(b"\n", 0, found)) >= 0:
            lines -= 1
            if lines == 0:
                return position - size + found + 1
        position -= size
    return 0
