"""Manages the listeners and accepted connections, with the limits that they share. Loop thread only.

Limits: connections in total, per listener and per address, idle time, memory of requests still being received
(`queued.max.request.bytes`), the size of a request. Clients cannot use up the connections of the cluster's own
listeners.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ballast_broker.config.broker import address
from ballast_broker.net import event_loop
from ballast_broker.net.connection import FRAME_LENGTH_BYTES, Connection, descriptor_of
from ballast_broker.net.connection_rates import ConnectionRates, CreationRates
from ballast_broker.net.frame_buffers import WORTH_BYTES, FrameBuffers
from ballast_broker.net.secured import Access, SecuredConnection, TlsConnection
from ballast_broker.net_reply import Dispatch, FileData
from ballast_broker.seldom import Seldom

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 32
_PROBE: Final = [bytearray(1)]
CAN_PROBE: Final = hasattr(os, "RWF_NOWAIT")
ACCEPT_PAUSE_S: Final = 0.1
GONE_AFTER_S = 10.0  # how often waiting clients are checked for a closed connection
MOST_TURNED_AWAY: Final = 1_000  # refused connections to keep open for the delay; and at most
PART_TURNED_AWAY: Final = 10  # a tenth of `max_connections`
OUT_OF_HANDLES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Limits:
    max_request_bytes: int = 104_857_600
    max_connections: int = 2**31 - 1
    own_listeners: frozenset[str] = frozenset()  # the cluster's own: exempt from `max_connections`
    of_listeners: Mapping[str, int] = field(default_factory=dict)  # per listener, besides the total
    max_connections_per_ip: int = 2**31 - 1
    max_queued_bytes: int = -1
    max_idle_ms: int = 600_000
    backlog: int = 50
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Server:
    """All listeners of one process. Each has a `dispatch` that turns a frame into a reply."""

    def __init__(
        self,
        limits: Limits,
        accesses: Mapping[str, Access] | None = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        self.loop = event_loop.running()
        self.limits = limits
        self._rates = rates
        self.max_request_bytes = limits.max_request_bytes
        # A read is never longer than the largest request, so that a frame received by one read needs no length check.
        longest_read = limits.max_request_bytes + FRAME_LENGTH_BYTES
        if limits.max_queued_bytes > 0:  # data of a single read is not counted, even while its client has to wait
            longest_read = min(longest_read, WORTH_BYTES)
        self.buffers = FrameBuffers(longest_read)
        self.connections: set[Connection] = set()
        self.queued_bytes = 0
        self.accepted_count = 0
        self.refused_count = 0
        self.delayed_count = 0  # how often a listener stopped accepting for a while
        self._dispatches: dict[str, Dispatch] = {}
        self._accesses = accesses or {}  # of listeners that require TLS or SASL
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._clients = 0  # connections that `max_connections` counts
        self._sockets: dict[str, socket.socket] = {}
        self._held: set[str] = set()  # listeners that do not accept yet
        self._paused: set[str] = set()  # listeners that do not accept for the moment
        self._delays: dict[str, asyncio.TimerHandle] = {}  # listeners over their connection rate, by name
        self._turned_away: dict[socket.socket, asyncio.TimerHandle] = {}
        self._starved: deque[Connection] = deque()
        self._out_of_handles = Seldom()  # tried again at once
        self._answered: list[Connection] = []  # with small replies not sent yet
        self._idle_timer: asyncio.TimerHandle | None = None
        self._gone_timer: asyncio.TimerHandle | None = None
        self._warmings: set[asyncio.Task[None]] = set()

    # -- listening ------------------------------------------------------------------------------------------------
    def listen(self, name: str, host: str, port: int, dispatch: Dispatch, *, accept: bool = True) -> int:
        """Bind an address; returns the port (0 asks for any). Raises OSError naming the address.

        Until `accept` is called the kernel queues connections: a probe finds us alive, a client waits.
        """
        sock = socket.socket(_family_of(host), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if not host and sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.limits.receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)
            sock.bind((host, port))
            sock.listen(self.limits.backlog)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot listen on {name}://{address(host, port)}: {error.strerror}") from None
        self._sockets[name] = sock
        self._dispatches[name] = dispatch
        self._held.add(name)
        if accept:
            self.accept(name)
        self._sweep_later()
        if self._gone_timer is None:
            self._gone_timer = self.loop.call_later(GONE_AFTER_S, self._close_gone)
        bound: int = sock.getsockname()[1]
        return bound

    def accept(self, name: str) -> None:
        self._held.discard(name)
        self.loop.add_reader(self._sockets[name].fileno(), self._accept, name, self._sockets[name])

    def _accept(self, name: str, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._is_full(name) or self._comes_too_soon(name):
                self._pause_accepting(name)
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_HANDLES:
                    raise
                if self._out_of_handles.is_due(name):
                    log.warning("listener %s cannot accept connections, which wait: %s", name, error.strerror)
                self._pause_accepting(name)
                self.loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)
                return
            self._welcome(name, sock, _as_told(address[0]))

    def limit_rates(self, rates: CreationRates) -> None:
        """Set the limits of new connections per second."""
        if self._rates is not None:
            self._rates.change(rates)

    def _comes_too_soon(self, name: str) -> bool:
        """Whether the next connection has to wait, in the kernel's queue."""
        wait_s = 0.0 if self._rates is None else self._rates.wait_s(name)
        if not wait_s:
            return False
        self.delayed_count += 1
        self._delays[name] = self.loop.call_later(wait_s, self._delay_ends, name)
        return True

    def _delay_ends(self, name: str) -> None:
        del self._delays[name]
        self._resume_accepting()

    def _turn_away(self, sock: socket.socket, wait_s: float) -> None:
        """Close the connection after a delay: a client that is refused at once retries at once."""
        self.refused_count += 1
        if len(self._turned_away) < min(MOST_TURNED_AWAY, self.limits.max_connections // PART_TURNED_AWAY):
            self._turned_away[sock] = self.loop.call_later(wait_s, self._end_turned_away, sock)
        else:
            sock.close()

    def _end_turned_away(self, sock: socket.socket) -> None:
        del self._turned_away[sock]
        sock.close()
        self._resume_accepting()

    def _welcome(self, name: str, sock: socket.socket, ip: str) -> None:
        wait_s = 0.0 if self._rates is None else self._rates.admit(name, ip)
        if wait_s:
            self._turn_away(sock, wait_s)
            return
        if self._per_ip[ip] >= self.limits.max_connections_per_ip:
            self.refused_count += 1
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
        try:
            connection = self._connection(name, sock, f"/{ip}")
        except OSError:  # closed by the client already
            sock.close()
            return
        self._per_ip[ip] += 1
        self._per_listener[name] += 1
        self._clients += name not in self.limits.own_listeners
        self.accepted_count += 1
        self.connections.add(connection)

    def _connection(self, name: str, sock: socket.socket, host: str) -> Connection:
        access, dispatch = self._accesses.get(name), self._dispatches[name]
        if access is None:
            return Connection(self, sock, host, name, dispatch)
        kind = SecuredConnection if access.tls is None else TlsConnection
        return kind(self, sock, host, name, dispatch, access)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._per_listener[connection.listener] -= 1
        self._clients -= connection.listener not in self.limits.own_listeners
        ip = connection.host[1:]
        self._per_ip[ip] -= 1
        if self._per_ip[ip] <= 0:
            del self._per_ip[ip]
        self._resume_accepting()

    def _pause_accepting(self, name: str) -> None:
        if name not in self._paused:
            self._paused.add(name)
            self.loop.remove_reader(self._sockets[name].fileno())

    def _is_full(self, name: str) -> bool:
        own = self.limits.of_listeners.get(name)
        if own is not None and self._per_listener[name] >= own:
            return True
        taken = self._clients + len(self._turned_away)
        return taken >= self.limits.max_connections and name not in self.limits.own_listeners

    def _resume_accepting(self) -> None:
        for name in [each for each in self._paused if not self._is_full(each) and each not in self._delays]:
            self._paused.discard(name)
            sock = self._sockets.get(name)
            if sock is not None:
                self.loop.add_reader(sock.fileno(), self._accept, name, sock)

    def certificates_end_s(self) -> dict[str, float]:
        """When each listener's certificate expires, by the wall clock; takes renewed files into account."""
        shown = {name: access.tls for name, access in self._accesses.items() if access.tls is not None}
        for tls in shown.values():
            tls.current()
        return {name: tls.ends_s for name, tls in shown.items() if tls.ends_s is not None}

    def stop_listening(self) -> None:
        for name, sock in self._sockets.items():
            if name not in self._paused and name not in self._held:
                self.loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()
        self._paused.clear()
        for delay in self._delays.values():
            delay.cancel()
        self._delays.clear()

    def close(self) -> None:
        self.stop_listening()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._gone_timer is not None:
            self._gone_timer.cancel()
        for connection in list(self.connections):
            connection.close(None)
        for sock, end in self._turned_away.items():
            end.cancel()
            sock.close()
        self._turned_away.clear()
        for task in self._warmings:
            task.cancel()

    # -- replies --------------------------------------------------------------------------------------------------
    def send_soon(self, connection: Connection) -> None:
        """Send replies once everything received in this turn of the loop is handled: a write wakes the client, which
        then competes for the CPU; and one connection's replies go out together."""
        if not self._answered:
            self.loop.after_turn(self._send_replies)
        self._answered.append(connection)

    def _send_replies(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            connection.send_unsent()

    # -- bounds for all -------------------------------------------------------------------------------------------
    def take_memory(self, size: int, connection: Connection) -> bool:
        """Reserve memory for a request; if False the connection has to wait for it (a single request always fits)."""
        limit = self.limits.max_queued_bytes
        if limit > 0 and self.queued_bytes > 0 and self.queued_bytes + size > limit:
            self._starved.append(connection)
            return False
        self.queued_bytes += size
        return True

    def give_back(self, size: int, frame: bytearray) -> None:
        self.queued_bytes -= size
        self.buffers.give_back(frame)
        if self._starved:
            waiting, self._starved = self._starved, deque()
            for connection in waiting:
                self.loop.call_soon(connection.resume)

    def _sweep_later(self) -> None:
        if self._idle_timer is None and self.limits.max_idle_ms > 0:
            self._idle_timer = self.loop.call_later(self.limits.max_idle_ms / 4000, self._sweep)

    def _sweep(self) -> None:
        self._idle_timer = None
        oldest = self.loop.time() - self.limits.max_idle_ms / 1000
        for connection in [c for c in self.connections if c.last_active < oldest and not c.awaited]:
            connection.close(None)
        self._sweep_later()

    def _close_gone(self) -> None:
        """Close connections whose clients are gone: while a request is being worked on nothing is read, so that a
        closed connection is noticed only here."""
        self._gone_timer = self.loop.call_later(GONE_AFTER_S, self._close_gone)
        oldest = self.loop.time() - GONE_AFTER_S
        waiting = {c.fd: c for c in self.connections if c.awaited and c.last_active < oldest}
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLRDHUP)
        for descriptor, _ in poll.poll(0):
            waiting[descriptor].close(None)

    # -- cold data ------------------------------------------------------------------------------------------------
    def is_warm(self, part: FileData) -> bool:
        """Whether its first and last page are in the page cache. True if the kernel cannot tell."""
        if not CAN_PROBE:
            return True
        descriptor = descriptor_of(part)
        try:
            # Past the end of a file that was truncated meanwhile there is nothing to wait for either.
            os.preadv(descriptor, _PROBE, part.position, os.RWF_NOWAIT)
            os.preadv(descriptor, _PROBE, part.position + part.size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        return True

    def warm(self, part: FileData) -> asyncio.Task[None]:
        task = self.loop.create_task(_warm(part))
        self._warmings.add(task)
        task.add_done_callback(self._warmings.discard)
        return task


def _family_of(host: str) -> int:
    """The address family for a host. Empty: all addresses of both families. A name may have only IPv6 addresses."""
    if not host:
        return socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        found = {family for family, *_ in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:  # `bind` will report what is wrong
        found = set()
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def _as_told(address: str) -> str:
    """On a dual-stack socket an IPv4 address comes mapped into IPv6, as `::ffff:10.0.0.1`: map it back."""
    return address.removeprefix("::ffff:") if "." in address else address


async def _warm(part: FileData) -> None:
    try:
        await part.threads.run(_reader_of(part))
    except OSError as error:
        part.failed(error)
        raise


def _reader_of(part: FileData) -> Callable[[], None]:
    descriptor, position, end = descriptor_of(part), part.position, part.position + part.size

    def read() -> None:
        buffer = bytearray(256 * 1024)
        at = position
        while at < end:
            count = os.preadv(descriptor, [memoryview(buffer)[: min(len(buffer), end - at)]], at)
            if count <= 0:
                return
            at += count

    return read
