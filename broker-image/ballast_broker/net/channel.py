"""Connects to other brokers and controllers as a client; implements `seams.Network`. Loop thread only.

Requests are sent at once, and responses are matched by correlation id. If the peer closes the connection, or its
machine is silent, all pending requests fail.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from ballast_broker.config.broker import address
from ballast_broker.net.outgoing import Login, Outgoing, authenticate, shake_hands
from ballast_broker.net.tls_socket import TlsSocket
from ballast_broker.security.tls import reason_of
from ballast_wire.headers import API_VERSIONS_KEY, frame_request, is_flexible
from ballast_wire.messages import message

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
MAX_FRAME_BYTES = 256 * 1024 * 1024
MAX_WAITING = 10_000
RECORDS_PER_TURN = 64
RENEWED_AT = 0.5  # share of a login's lifetime: a renewal has to queue behind fetches, which may wait long
Decode = Callable[..., Any]
# A machine that acknowledges nothing for four seconds counts as unreachable: once it is back, a new connection reaches
# it sooner than the kernel's backed-off retransmissions. If only the process is busy or stopped, its kernel still acks.
UNHEARD = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_USER_TIMEOUT": 4000}


class SocketNetwork:
    """`outgoing`: TLS and login for outgoing connections; by default neither."""

    def __init__(self, client_id: str, outgoing: Outgoing | None = None) -> None:
        self._client_id = client_id
        self._outgoing = outgoing or Outgoing()
        self._told: dict[tuple[str, int], str] = {}
        self._renewals: set[asyncio.Task[None]] = set()

    async def connect(self, host: str, port: int, *, timeout_s: float) -> SocketChannel:
        """Connect to the first of the host's addresses that answers: a name may have an IPv4 and an IPv6 address while
        the listener has only one of them."""
        loop = asyncio.get_running_loop()
        began, refusal = loop.time(), OSError(f"{host} has no address")
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for tried, (family, _, _, _, place) in enumerate(found):
            left_s = began + timeout_s - loop.time()
            try:
                async with asyncio.timeout(left_s / (len(found) - tried)):
                    return await self._channel(await _connected(family, place), host, port)
            except OSError as error:
                refusal = error
        raise refusal

    async def _channel(self, sock: socket.socket, host: str, port: int) -> SocketChannel:
        """Shake hands and log in, if configured. ConnectionError if refused; logged once, not at each attempt."""
        outgoing = self._outgoing
        if outgoing.tls is None and outgoing.login is None:
            return SocketChannel(sock, self._client_id)
        channel: SocketChannel | None = None
        try:
            if outgoing.tls is None:
                channel = SocketChannel(sock, self._client_id)
            else:
                channel = TlsChannel(await shake_hands(outgoing.tls.current(), sock, host), self._client_id)
            if outgoing.login is not None:
                self._renew_later(channel, outgoing.login, await authenticate(channel, outgoing.login, host), host)
        except BaseException as error:
            if channel is not None:
                channel.close()
            if isinstance(error, ConnectionError | ssl.SSLError):
                said = reason_of(error)
                if self._told.get((host, port)) != said:
                    self._told[host, port] = said
                    log.warning("%s does not let this node in: %s", address(host, port), said)
                raise ConnectionResetError(f"{address(host, port)}: {said}") from error
            raise
        self._told.pop((host, port), None)
        return channel

    def _renew_later(self, channel: SocketChannel, login: Login, lifetime_ms: int, host: str) -> None:
        """Renew a login with limited lifetime in time, between other requests."""
        loop = asyncio.get_running_loop()

        async def renew() -> None:
            try:
                self._renew_later(channel, login, await authenticate(channel, login, host), host)
            except OSError as error:
                if isinstance(error, ConnectionAbortedError):  # otherwise the connection has ended anyway
                    log.warning("the login at %s was not renewed, its connection is closed: %s", host, error)
                channel.close()

        def begin() -> None:
            task = loop.create_task(renew())
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)

        if lifetime_ms > 0:
            channel.renewal = loop.call_later(lifetime_ms / 1000 * RENEWED_AT, begin)


async def _connected(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_silence(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _notice_silence(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in UNHEARD.items():
        option = getattr(socket, name, None)  # some exist only on Linux
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class SocketChannel:
    def __init__(self, sock: socket.socket, client_id: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._fd = sock.fileno()
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], str, int, Decode | None]] = {}
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._frame: bytearray | None = None
        self._filled = 0
        self._closed = False
        self.renewal: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def closed(self) -> bool:
        return self._closed

    async def call(self, request: Any, version: int) -> Any:
        if self._closed:
            raise ConnectionResetError("the connection is closed")
        if len(self._waiting) >= MAX_WAITING:
            raise ConnectionError(f"{MAX_WAITING} requests wait for answers already")
        name = type(request).__name__
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation_id = self._correlation_id
        body = request.encode(version=version)
        flexible = is_flexible(name, version)
        frame = frame_request(request.API_KEY, version, correlation_id, self._client_id, body, flexible=flexible)
        answer: asyncio.Future[Any] = self._loop.create_future()
        # A request may bring its own decoder of the response.
        self._waiting[correlation_id] = (answer, name, version, getattr(request, "decode_response", None))
        self._send(memoryview(frame))
        try:
            return await answer
        finally:
            self._waiting.pop(correlation_id, None)

    # -- sending --------------------------------------------------------------------------------------------------
    def _send(self, data: memoryview) -> None:
        if not self._out:
            try:
                data = data[self._socket.send(data) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._fail(error)
                return
            if not data:
                return
            self._loop.add_writer(self._fd, self._on_writable)
        self._out.append(data)

    def _on_writable(self) -> None:
        try:
            while self._out:
                data = self._out[0]
                sent = self._socket.send(data)
                if sent < len(data):
                    self._out[0] = data[sent:]
                    return
                self._out.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        self._loop.remove_writer(self._fd)

    # -- receiving ------------------------------------------------------------------------------------------------
    def _on_readable(self) -> None:
        try:
            self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError, struct.error) as error:
            self._fail(error)

    def _receive(self) -> None:
        if self._frame is not None:
            with memoryview(self._frame) as view:
                count = self._socket.recv_into(view[self._filled :])
            if count == 0:
                raise ConnectionResetError("the peer closed the connection")
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(memoryview(frame))
            return
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the peer closed the connection")
        self._in += data
        self._take_frames()

    def _take_frames(self) -> None:
        position, have = 0, len(self._in)
        while have - position >= 4:
            size = int.from_bytes(self._in[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_FRAME_BYTES:
                raise ValueError(f"an answer of {size} bytes")
            start = position + 4
            if have - start < size:
                if size > RECEIVE_BYTES:
                    self._frame = bytearray(size)
                    self._filled = have - start
                    self._frame[: self._filled] = self._in[start:]
                    position = have
                break
            self._answer(memoryview(bytes(self._in[start : start + size])))
            position = start + size
        del self._in[:position]

    def _answer(self, frame: memoryview) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            return  # the caller has given up
        future, name, version, decode = waiting
        if future.done():
            return
        kind = message(name.removesuffix("Request") + "Response")
        tagged = is_flexible(name, version) and kind.API_KEY != API_VERSIONS_KEY
        try:
            future.set_result((decode or kind.decode)(frame[5 if tagged else 4 :], version=version))
        except Exception as error:
            raise ValueError(f"{kind.__name__} version {version} cannot be read: {error}") from error

    # -- the end --------------------------------------------------------------------------------------------------
    def _fail(self, error: BaseException) -> None:
        if self._closed:
            return
        self._closed = True
        if self.renewal is not None:
            self.renewal.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._out.clear()
        reason = error if isinstance(error, ConnectionError) else ConnectionResetError(str(error))
        for future, *_ in self._waiting.values():
            if not future.done():
                future.set_exception(reason)

    def close(self) -> None:
        self._fail(ConnectionResetError("the connection was closed here"))


class TlsChannel(SocketChannel):
    """Reads several TLS records per turn of the loop, and what is decrypted already."""

    def __init__(self, sock: TlsSocket, client_id: str) -> None:
        self._tls = sock
        super().__init__(cast(socket.socket, sock), client_id)
        if sock.pending():
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(RECORDS_PER_TURN):
            super()._on_readable()
            if self._closed or not self._tls.more:
                return
        if self._tls.pending():
            self._loop.call_soon(self._on_readable)
