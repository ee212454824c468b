"""Serves `/metrics` and `/ready` over HTTP on `metrics.port`. Deliberately small: GET, one response per connection.

Bounds: `MAX_CONNECTIONS` at a time, `MAX_HEAD_BYTES` of request, `TIMEOUT_S` per connection. The page is sent as it is
rendered, so its size costs no memory; a slow reader delays only itself. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 8192
TIMEOUT_S = 30.0
PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page(Protocol):
    def render(self) -> AsyncIterator[bytes]: ...


class MetricsServer:
    """`page` returns None while there is nothing to report yet."""

    def __init__(self, page: Callable[[], Page | None], ready: Callable[[], bool]) -> None:
        self._page = page
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> int:
        """Start serving; return the port (0 asks for any). Raises OSError if it cannot be bound."""
        self._server = await asyncio.start_server(self._accept, host or None, port, limit=MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="metrics")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"), writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: %s", error)
        except Exception:
            log.exception("the page of metrics could not be made")
        finally:
            with suppress(OSError):
                writer.transport.abort()

    async def _answer(self, request_line: str, writer: asyncio.StreamWriter) -> None:
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            _say(writer, "405 Method Not Allowed", "only GET is answered here\n")
        elif path == "/metrics":
            page = self._page()
            if page is None:
                _say(writer, "503 Service Unavailable", "starting\n")
            else:
                await _send_page(page, writer, with_body=method == "GET")
        elif path == "/ready":
            ready = self._ready()
            _say(writer, "200 OK" if ready else "503 Service Unavailable", "ready\n" if ready else "not ready\n")
        else:
            _say(writer, "404 Not Found", "/metrics and /ready are here\n")
        await writer.drain()


async def _send_page(page: Page, writer: asyncio.StreamWriter, *, with_body: bool) -> None:
    # Chunked, so that a truncated page is recognised as such.
    writer.write(_head("200 OK", f"Content-Type: {PAGE_TYPE}\r\nTransfer-Encoding: chunked"))
    if not with_body:
        return
    async for piece in page.render():
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _head(status: str, headers: str) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}\r\nConnection: close\r\n\r\n".encode("latin-1")


def _say(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    writer.write(_head(status, f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}"))
    writer.write(text.encode())
