"""A server on a free port with the test's own dispatch, and clients that exchange frames with it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.certificates import Authority

from ballast_broker.config.broker import broker_config
from ballast_broker.net.connection_rates import ConnectionRates
from ballast_broker.net.secured import Access
from ballast_broker.net.server import Limits, Server
from ballast_broker.net_reply import Dispatch, FileData, Peer, Reply
from ballast_broker.security.tls_settings import TlsSettings
from ballast_broker.storage.disk import RealDisk

T = TypeVar("T")
PATIENCE_S = 20.0


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def echo(peer: Peer, frame: memoryview) -> Reply:
    del peer
    return framed(bytes(frame))


def tls_of_a_node(authority: Authority, **changes: str) -> TlsSettings:
    """The TLS settings of a listener with the certificate `node`; in names of `changes`, underscores stand for dots."""
    properties = {
        "node.id": "1",
        "listeners": "SSL://a:9092",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }
    named = {key.replace("_", "."): value for key, value in changes.items()}
    settings = broker_config(properties | named).listener_security["SSL"].tls
    assert settings is not None
    return settings


class Serving:
    """An async context manager; closes every connection that the test opened."""

    def __init__(
        self,
        dispatch: Dispatch = echo,
        access: Access | None = None,
        rates: ConnectionRates | None = None,
        **limits: Any,
    ) -> None:
        accesses = {} if access is None else {"PLAINTEXT": access}
        self.server = Server(Limits(**limits), accesses, rates)
        self.port = self.server.listen("PLAINTEXT", "127.0.0.1", 0, dispatch)
        self._clients: list[Client] = []

    async def __aenter__(self) -> Serving:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        self.server.close()
        await asyncio.sleep(0)
        assert not self.server.connections

    async def connect(
        self,
        *,
        port: int | None = None,
        receive_buffer_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "localhost",
    ) -> Client:
        client = Client(*await _open(port or self.port, receive_buffer_bytes, tls, host))
        self._clients.append(client)
        return client


async def _open(
    port: int, receive_buffer_bytes: int | None, tls: ssl.SSLContext | None, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    # A small limit: unread data stays in the kernel, so that a slow reader really is one.
    try:
        return await asyncio.open_connection(
            sock=sock, limit=4096, ssl=tls, server_hostname=None if tls is None else host
        )
    except BaseException:
        sock.close()
        raise


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(framed, bodies)))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def call(self, body: bytes) -> bytes:
        self.send(body)
        return await self.receive()

    async def closed_by_server(self) -> bool:
        """Wait until the server closes the connection; discard what it sent before."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self._reader.read(65536):
                    pass
            except ConnectionError:
                pass
            return True

    def close(self) -> None:
        self.writer.close()


class ThreadsOfTests:
    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


class Slice:
    """A range of a real file that counts how often it was released."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.position = position
        self.size = size
        self.file: Any = RealDisk().open(str(path), writable=False)
        self.released = 0
        self.threads = ThreadsOfTests()
        self.errors: list[int | None] = []

    def failed(self, error: OSError) -> None:
        self.errors.append(error.errno)

    def release(self) -> None:
        self.released += 1
        if self.file is not None:
            self.file.close()
        self.file = None


def file_reply(head: bytes, part: FileData, tail: bytes = b"") -> list[Any]:
    size = len(head) + part.size + len(tail)
    return [size.to_bytes(4, "big") + head, part, tail] if tail else [size.to_bytes(4, "big") + head, part]


def random_file(path: Path, size: int) -> bytes:
    content = os.urandom(size)
    path.write_bytes(content)
    return content


async def until(holds: Any, what: str) -> None:
    """Poll on the event loop until it holds."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - the condition is nobody's event
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {PATIENCE_S:g} s") from None
