"""Watches: streams the changes after a revision as lines of JSON, with bookmarks.

Every watch reads the store's bounded history at its own pace; nothing is queued per watch. One that falls behind the
history gets a 410 as an ERROR event.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Literal

from aiohttp import web

from ballast_local.errors import ApiError, Obj, bad_request
from ballast_local.listing import Selection, Writer, check_options
from ballast_local.requests import Target, is_gone, whole_number
from ballast_local.resources import storage_key
from ballast_local.store import Change, Store, encode, entry_of

BOOKMARK_SECONDS = 60.0
WRITE_CHUNK_BYTES = 1 << 18


def _line(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


class Watch:
    def __init__(
        self, store: Store, target: Target, query: Mapping[str, str], selection: Selection, writer: Writer
    ) -> None:
        self._store, self._target, self._selection, self._writer = store, target, selection, writer
        self._resource = storage_key(target.resource)
        self._bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        self._initial = query.get("sendInitialEvents") in ("true", "1")
        self._seconds = float(whole_number(query.get("timeoutSeconds")) or random.uniform(1800, 3600))
        version = query.get("resourceVersion") or ""
        if version and not version.isdecimal():
            raise bad_request(f'Invalid value: "{version}": resourceVersion')
        self._from_now = version in ("", "0")
        self._revision = int(version or 0)
        check_options(query, watch=True)

    async def run(self, request: web.Request, response: web.StreamResponse, closing: asyncio.Event) -> None:
        """Stream until the timeout, the client disconnects, the server closes or the revision has expired."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            if self._initial or self._from_now:
                await self._send_present(response)
            await self._follow(request, response, closing, deadline)
        except ApiError as refusal:
            await response.write(_line("ERROR", encode(refusal.status())))

    async def _send_present(self, response: web.StreamResponse) -> None:
        await self._store.flush()
        self._revision = self._store.durable_revision
        present = self._store.entries_at(self._resource, self._revision, self._target.namespace)
        lines = [_line("ADDED", self._writer.one(entry)) for entry in present if self._selection(entry)]
        await self._write(response, lines)
        if self._initial and self._bookmarks:
            await response.write(self._bookmark({"k8s.io/initial-events-end": "true"}))

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        metadata: Obj = {"resourceVersion": str(self._revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        row = self._target.resource
        return _line("BOOKMARK", encode({"kind": row.kind, "apiVersion": row.api_version, "metadata": metadata}))

    async def _follow(
        self, request: web.Request, response: web.StreamResponse, closing: asyncio.Event, deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.create_task(closing.wait())
        try:
            while not closing.is_set() and not is_gone(request):
                news = self._store.news(self._resource)
                durable = self._store.durable_revision
                changes = self._store.changes_after(self._resource, self._revision)
                await self._write(response, [line for change in changes if (line := self._change(change))])
                self._revision = max(self._revision, changes[-1].revision if changes else durable)
                left = deadline - loop.time()
                if left <= 0:
                    if self._bookmarks:
                        await response.write(self._bookmark())
                    return
                if changes or await self._wait(news, stop, min(left, BOOKMARK_SECONDS)):
                    continue
                if self._bookmarks and left > BOOKMARK_SECONDS:
                    await response.write(self._bookmark())
        finally:
            stop.cancel()

    async def _wait(self, news: asyncio.Event, stop: "asyncio.Task[Literal[True]]", seconds: float) -> bool:
        waiter = asyncio.create_task(news.wait())
        try:
            waits: set[asyncio.Task[Any]] = {waiter, stop}
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return news.is_set() or stop.done()

    def _change(self, change: Change) -> bytes | None:
        """The event of a change for this watch: an object may also enter or leave the selection."""
        fits = self._selection(change.entry)
        if change.kind == "DELETED":
            return _line("DELETED", self._writer.one(change.entry)) if fits else None
        fitted = change.previous is not None and self._selection(change.previous)
        if fits:
            return _line("MODIFIED" if fitted else "ADDED", self._writer.one(change.entry))
        if change.previous is None or not fitted:
            return None
        # The last version that was in the selection, with the revision at which it left.
        last = change.previous.object()
        last["metadata"]["resourceVersion"] = str(change.revision)
        left = entry_of(change.entry.resource, last, change.revision, encode(last))
        return _line("DELETED", self._writer.one(left))

    async def _write(self, response: web.StreamResponse, lines: list[bytes]) -> None:
        chunk: list[bytes] = []
        size = 0
        for line in lines:
            chunk.append(line)
            size += len(line)
            if size >= WRITE_CHUNK_BYTES:
                await response.write(b"".join(chunk))
                chunk, size = [], 0
        if chunk:
            await response.write(b"".join(chunk))
