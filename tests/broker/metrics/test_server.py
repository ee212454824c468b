"""The HTTP server of the metrics page: responses, limits, and clients that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ballast_broker.metrics.server import MAX_CONNECTIONS, MetricsServer


class Page:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def render(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(0)
            yield piece


class Running:
    """An async context manager: a server on a free port."""

    def __init__(self, page: Page | None, *, ready: bool = True) -> None:
        self.page = page
        self.ready = ready
        self.server = MetricsServer(lambda: self.page, lambda: self.ready)
        self.port = 0

    async def __aenter__(self) -> Running:
        self.port = await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    async def ask(self, request: bytes) -> tuple[str, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.decode(), body


def dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out, body = out + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return out


async def test_the_page_is_sent_in_pieces() -> None:
    async with Running(Page(b"a 1\n", b"b 2\n" * 100_000)) as running:
        head, body = await running.ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert "text/plain; version=0.0.4" in head
    assert body.endswith(b"0\r\n\r\n")
    assert dechunked(body) == b"a 1\n" + b"b 2\n" * 100_000


async def test_ready_says_whether() -> None:
    async with Running(Page(), ready=False) as running:
        assert "503" in (await running.ask(b"GET /ready HTTP/1.1\r\n\r\n"))[0]
        running.ready = True
        assert "200" in (await running.ask(b"GET /ready HTTP/1.1\r\n\r\n"))[0]


async def test_there_is_no_page_before_the_start() -> None:
    async with Running(None) as running:
        assert "503" in (await running.ask(b"GET /metrics HTTP/1.1\r\n\r\n"))[0]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", "404"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"\r\n\r\n", "405"),
    ],
)
async def test_other_requests(request_bytes: bytes, status: str) -> None:
    async with Running(Page(b"a 1\n")) as running:
        head, body = await running.ask(request_bytes)
    assert status in head.split("\r\n")[0]
    assert b"a 1" not in body


@pytest.mark.spec("CLI-08")
async def test_an_endless_head_is_cut_off() -> None:
    async with Running(Page()) as running:
        assert await running.ask(b"x" * 100_000) == ("", b"")
        assert "200" in (await running.ask(b"GET /ready HTTP/1.1\r\n\r\n"))[0]


@pytest.mark.spec("CLI-09")
async def test_connections_are_bounded() -> None:
    async with Running(Page()) as running:
        idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(MAX_CONNECTIONS)]
        assert await running.ask(b"GET /ready HTTP/1.1\r\n\r\n") == ("", b"")
        for _, writer in idle:
            writer.close()
        head = ""
        for _ in range(1000):  # until the server has noticed that they are gone
            head = head or (await running.ask(b"GET /ready HTTP/1.1\r\n\r\n"))[0]
        assert "200" in head


async def test_a_page_that_breaks_off_is_seen_as_broken() -> None:
    class Broken(Page):
        async def render(self) -> AsyncIterator[bytes]:
            yield b"a 1\n"
            raise OSError("the disk is gone")

    async with Running(Broken()) as running:
        _, body = await running.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert not body.endswith(b"0\r\n\r\n")
