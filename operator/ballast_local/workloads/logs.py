"""Pods' logs: one file per container and run, read back by `kubectl logs`."""

import asyncio
import os
from pathlib import Path

from aiohttp import web

from ballast_local.errors import ApiError, Obj, bad_request, not_implemented
from ballast_local.requests import whole_number

CHUNK_BYTES = 1 << 16
FOLLOW_SECONDS = 0.2


def log_path(pods: Path, uid: str, container: str, previous: bool = False) -> Path:
    return pods / uid / "logs" / f"{container}{'.previous' if previous else ''}.log"


class Logs:
    def __init__(self, pods: Path, closing: asyncio.Event) -> None:
        self._pods, self._closing = pods, closing
        self.is_running: dict[tuple[str, str], bool] = {}

    async def read(self, request: web.Request, pod: Obj) -> web.StreamResponse:
        query = request.query
        for name in ("sinceSeconds", "sinceTime", "timestamps", "stream"):
            if query.get(name) not in (None, "", "false", "All"):
                raise not_implemented(f"{name} of pod logs: lines are kept as the process wrote them, without times")
        container = self._container(pod, query.get("container"))
        uid = pod["metadata"]["uid"]
        previous = query.get("previous") == "true"
        path = log_path(self._pods, uid, container, previous)
        if not path.is_file():
            name = pod["metadata"]["name"]
            if previous:
                raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start')
        tail, limit = (whole_number(query.get(name)) for name in ("tailLines", "limitBytes"))
        start = 0 if tail is None else await asyncio.to_thread(_tail_start, path, tail)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            await self._copy(response, path, start, limit, query.get("follow") == "true", (uid, container))
            await response.write_eof()
        except ConnectionError:
            pass
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
        self,
        response: web.StreamResponse,
        path: Path,
        start: int,
        limit: int | None,
        follow: bool,
        key: tuple[str, str],
    ) -> None:
        position, left = start, limit
        while True:
            size = CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)
            running = self.is_running.get(key, False)
            chunk = await asyncio.to_thread(_read, path, position, size)
            if chunk:
                await response.write(chunk)
                position += len(chunk)
                left = None if left is None else left - len(chunk)
            elif not follow or not running or self._closing.is_set():
                return
            else:
                await asyncio.sleep(FOLLOW_SECONDS)
            if left == 0:
                return


def _read(path: Path, position: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(size)
    except FileNotFoundError:
        return b""


def _tail_start(path: Path, lines: int) -> int:
    """The position of the last lines, found from the end."""
    if lines < 0:
        raise ApiError(422, "Invalid", "tailLines must be greater than or equal to 0")
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        wanted = lines + 1
        ends_with_newline = False
        while position > 0 and wanted > 0:
            size = min(CHUNK_BYTES, position)
            file.seek(position - size)
            chunk = file.read(size)
            if not ends_with_newline and not chunk.endswith(b"\n"):
                wanted -= 1
            ends_with_newline = True
            end = size
            while wanted > 0 and (found := chunk.rfind(b"\n", 0, end)) >= 0:
                wanted -= 1
                end = found
                if wanted == 0:
                    return position - size + found + 1
            position -= size
    return 0
