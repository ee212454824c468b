"""Connections between simulated nodes: every message travels as bytes, late, in order per connection, or not at all.

The other end is a node's real dispatcher: frames are parsed, answered and framed as in production; only the sockets
are missing. A node that is down refuses connections, one that is cut off is silent, a stalled one reads what it was
sent when it resumes. What a process sent before it died may still arrive, even after it was restarted. If the run wants
it, so may what a node sent on a connection that it closed, even after what it sent on the next one. Delays and cuts
come from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.disk import Crashed
from tests.sim.loop import NODE, SimLoop

from ballast_broker.coordinator.markers import API_KEY as WRITE_MARKERS_KEY
from ballast_broker.coordinator.transactions import BUMPS_EPOCH
from ballast_broker.net.connection_rates import CreationRates
from ballast_broker.net_reply import ANONYMOUS, Dispatch, Pending, Time
from ballast_wire.headers import API_VERSIONS_KEY, frame_request, is_flexible
from ballast_wire.messages import message

LOOPBACK_DELAY_S = 0.00005
RESEND_S = 0.2
ACCEPT_S = 0.02
ADDRESS = "/10.0.0.1"
LATE_S = (0.0, 0.0, 0.02, 0.5, 8.0)  # how long, at most, a message travels that nobody awaits any more; 0: it is lost


class Listener(NamedTuple):
    node: str
    name: str
    dispatch: Dispatch
    context: contextvars.Context  # of the listening process: request handlers run in it
    accepting: asyncio.Event


@dataclass
class Fabric:
    """Who listens where, who can hear whom, and how long a message takes."""

    rng: random.Random
    min_delay_s: float = 0.0002
    max_delay_s: float = 0.003
    slow_chance: float = 0.005
    slow_delay_s: float = 0.3
    listeners: dict[tuple[str, int], Listener] = field(default_factory=dict)
    cut: set[tuple[str, str]] = field(default_factory=set)  # (from, to): nothing gets through
    slow: dict[str, float] = field(default_factory=dict)  # by node: the additional delay from and to it
    channels: list[SimChannel] = field(default_factory=list)
    unlimited: frozenset[str] | None = None  # nodes and clients without a quota; None: there are no quotas
    given_up_arrives: bool = False  # what a node sent on a connection that it closed may arrive late
    messages: int = 0

    def silence(self, node: str) -> None:
        """The node's process is gone: connecting to it is refused, its connections break."""
        self.listeners = {where: who for where, who in self.listeners.items() if who.node != node}
        for channel in [c for c in self.channels if node in (c.source, c.target)]:
            late_s = self.late_s()
            if late_s and channel.source == node:
                channel.leave_behind(late_s)
            else:
                channel.break_off()

    def is_node(self, name: str) -> bool:
        return any(listener.node == name for listener in self.listeners.values())

    def late_s(self) -> float:
        return self.rng.choice(LATE_S) * self.rng.random()

    def partition(self, one: set[str], other: set[str], *, both_ways: bool = True) -> None:
        self.cut |= {(a, b) for a in one for b in other}
        if both_ways:
            self.cut |= {(b, a) for a in one for b in other}

    def heal(self) -> None:
        self.cut.clear()
        self.slow.clear()

    def hears(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def delay(self, source: str, target: str) -> float:
        if source == target:
            return LOOPBACK_DELAY_S
        return self._on_the_way() + (self.slow.get(source, 0.0) + self.slow.get(target, 0.0) if self.slow else 0.0)

    def _on_the_way(self) -> float:
        if self.rng.random() < self.slow_chance:
            return self.rng.uniform(self.max_delay_s, self.slow_delay_s)
        return self.rng.uniform(self.min_delay_s, self.max_delay_s)


class SimListening:
    """`world.Listening` of one node; host names are node names."""

    def __init__(self, fabric: Fabric, node: str) -> None:
        self._fabric = fabric
        self._node = node

    def listen(self, name: str, host: str, port: int, dispatch: Dispatch, *, accept: bool = True) -> int:
        listener = Listener(self._node, name, dispatch, contextvars.copy_context(), asyncio.Event())
        self._fabric.listeners[(host, port)] = listener
        if accept:
            listener.accepting.set()
        return port

    def accept(self, name: str) -> None:
        for listener in self._fabric.listeners.values():
            if listener.node == self._node and listener.name == name:
                listener.accepting.set()

    def limit_rates(self, rates: CreationRates) -> None:
        """Connection rates are not simulated."""

    def stop_listening(self) -> None:
        mine = [where for where, who in self._fabric.listeners.items() if who.node == self._node]
        for where in mine:
            del self._fabric.listeners[where]

    def close(self) -> None:
        self._fabric.silence(self._node)


class SimNetwork:
    """`seams.Network` of one node."""

    def __init__(self, fabric: Fabric, node: str) -> None:
        self._fabric = fabric
        self._node = node

    async def connect(self, host: str, port: int, *, timeout_s: float) -> SimChannel:
        target = host
        if not (self._fabric.hears(self._node, target) and self._fabric.hears(target, self._node)):
            await asyncio.sleep(timeout_s)
            raise TimeoutError(f"{host}:{port} does not answer")
        await asyncio.sleep(self._fabric.delay(self._node, target))
        listener = self._fabric.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        channel = SimChannel(self._fabric, self._node, listener)
        self._fabric.channels.append(channel)
        return channel


class SimPeer:
    """The server's end, as its dispatcher sees it."""

    def __init__(self, host: str, listener: str) -> None:
        self.host = f"/{host}"
        self.listener = listener
        self.principal = ANONYMOUS
        self.is_known = True
        self.time: Time | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.may_be_held = False  # True only for clients with a quota: nobody else may be throttled
        self.holds = 0
        self._held_until_s = 0.0

    def on_close(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def hold(self, seconds: float) -> None:
        assert self.may_be_held, f"a client of the simulation is held for {seconds} s"
        self.holds += 1
        self._held_until_s = max(self._held_until_s, asyncio.get_running_loop().time() + seconds)

    def held_s(self) -> float:
        """For how long the server reads nothing more from this connection."""
        return self._held_until_s - asyncio.get_running_loop().time() if self.holds else 0.0


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its response."""

    frame: bytes
    may_be_late: bool
    answer: asyncio.Future[bytes]
    data: bytes | None = None


class SimChannel:
    """One connection: the server handles requests in order and answers in the same order.

    One message travels at a time in each direction, the others queue behind it. Each hop is a timer in the context of
    the connecting side and dies with it, as the packets of a dead host do.
    """

    def __init__(self, fabric: Fabric, source: str, listener: Listener) -> None:
        self.source = source
        self.target = listener.node
        self._fabric = fabric
        self._listener = listener
        self._peer = SimPeer(source, listener.name)
        if fabric.unlimited is not None:
            self._peer.host = ADDRESS  # an IP address, which forwarded requests carry to the controller
            self._peer.may_be_held = source not in fabric.unlimited
        self._closed = False
        self._correlation_id = 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._context = contextvars.copy_context()
        self._there: deque[Exchange] = deque()  # on their way, or queued until the server reads them
        self._busy = False  # the server works on a request that must be answered before it reads the next
        self._served: deque[Exchange] = deque()  # in order; the first travels back once it has data
        self._pending: set[asyncio.Future[Any]] = set()
        self._going = self._returning = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """The kernel still sends what is in its buffers. Not for clients: where EndTxn leaves the producer epoch as it
        is, a late request may end, or write to, the next transaction."""
        late_s = 0.0
        if self._fabric.given_up_arrives and self._there and not self._closed and self._fabric.is_node(self.source):
            late_s = self._fabric.late_s() if all(each.may_be_late for each in self._there) else 0.0
        if late_s:
            self.leave_behind(late_s)
        else:
            self.break_off()

    def break_off(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self in self._fabric.channels:
            self._fabric.channels.remove(self)
        for exchange in (*self._there, *self._served):
            if not exchange.answer.done():
                exchange.answer.set_exception(ConnectionResetError(f"connection to {self.target} broke"))
        self._there.clear()
        self._served.clear()
        if self._listener in self._fabric.listeners.values():  # else its process is dead and runs nothing
            for callback in self._peer.callbacks:
                self._loop.call_soon(callback, context=self._listener.context.copy())
            for future in self._pending:
                self._loop.call_soon(future.cancel, context=self._listener.context.copy())

    def leave_behind(self, late_s: float) -> None:
        """The connecting side died or hung up. What it had sent arrives later, and only then does the server notice
        the disconnect."""
        sent = [exchange.frame for exchange in self._there]
        broken, self._peer.callbacks = self._peer.callbacks, []
        self.break_off()
        self._peer.callbacks = broken
        nobodys = contextvars.Context()
        self._loop.call_later(late_s, self._arrive_late, sent, context=nobodys)

    def _arrive_late(self, sent: list[bytes]) -> None:
        if self._listener not in self._fabric.listeners.values():
            return
        if not self._fabric.hears(self.source, self.target):
            self._loop.call_later(RESEND_S, self._arrive_late, sent)
            return
        if self._waits_for_listener(self._arrive_late, sent):
            return
        unwanted = []
        for frame in sent:
            reply = self._hand_over(frame)
            if isinstance(reply, Pending):
                unwanted += [reply.future] if reply.for_this_client_only else []
                if not reply.pipelined:
                    break
        for future in unwanted:
            self._loop.call_soon(future.cancel, context=self._listener.context.copy())
        for callback in self._peer.callbacks:
            self._loop.call_soon(callback, context=self._listener.context.copy())

    def _waits_for_listener(self, arrive: Callable[..., None], *arguments: Any) -> bool:
        """Whether the process is stalled; if so, it reads this when it resumes."""
        stalled = self._loop.is_stalled(self._listener.context.get(NODE, ""))
        if stalled:
            self._loop.call_soon(arrive, *arguments, context=self._listener.context.copy())
        return stalled

    def _hand_over(self, frame: bytes) -> Any:
        return self._listener.context.copy().run(self._listener.dispatch, self._peer, memoryview(bytearray(frame))[4:])

    async def call(self, request: Any, version: int) -> Any:
        if self._closed:
            raise ConnectionResetError(f"connection to {self.target} is closed")
        name = type(request).__name__
        flexible = is_flexible(name, version)
        self._correlation_id += 1
        body = request.encode(version=version)
        frame = frame_request(request.API_KEY, version, self._correlation_id, self.source, body, flexible=flexible)
        exchange = Exchange(frame, _may_be_late(request), self._loop.create_future())
        self._there.append(exchange)
        if not self._going and not self._busy:
            self._going = True
            self._travel(self.source, self.target, self._arrive)
        data = await exchange.answer
        tagged = flexible and request.API_KEY != API_VERSIONS_KEY
        # As with real sockets, a request may bring its own decoder for the response.
        decode = getattr(request, "decode_response", None) or message(name.removesuffix("Request") + "Response").decode
        return decode(memoryview(data)[9 if tagged else 8 :], version=version)

    def _travel(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        self._fabric.messages += 1
        self._loop.call_later(self._fabric.delay(source, target), arrive, context=self._context)

    def _arrive(self) -> None:
        if self._closed:
            return
        if not self._fabric.hears(self.source, self.target):  # packets are resent until a side gives up
            self._loop.call_later(RESEND_S, self._arrive, context=self._context)
            return
        if not self._listener.accepting.is_set():
            self._loop.call_later(ACCEPT_S, self._arrive, context=self._context)
            return
        if self._waits_for_listener(self._arrive):
            return
        if (held_s := self._peer.held_s()) > 0:
            self._loop.call_later(held_s, self._arrive, context=self._context)
            return
        exchange = self._there.popleft()
        self._going = False
        try:
            reply = self._hand_over(exchange.frame)
        except BaseException:  # a frame that it cannot parse, or its disk has just crashed it
            self._lose(exchange)
            return
        if isinstance(reply, Pending):
            self._await(exchange, reply)
        else:
            self._answered(exchange, reply)
        self._next()

    def _await(self, exchange: Exchange, reply: Pending) -> None:
        future = reply.future
        self._busy = not reply.pipelined
        self._served.append(exchange)
        if reply.for_this_client_only:
            self._pending.add(future)

        def done(_: asyncio.Future[Any]) -> None:
            self._pending.discard(future)
            if self._closed:
                return
            if future.cancelled() or future.exception() is not None:
                self._lose(exchange)
                return
            self._busy = self._busy and reply.pipelined
            if future.result() is None:
                self._served.remove(exchange)
            elif not self._take(exchange, future.result()):
                return
            self._send_back()
            self._next()

        future.add_done_callback(done, context=self._context)

    def _answered(self, exchange: Exchange, reply: Any) -> None:
        if reply is None:
            return  # a request without a response, such as Produce with acks=0
        self._served.append(exchange)
        if self._take(exchange, reply):
            self._send_back()

    def _take(self, exchange: Exchange, reply: Any) -> bool:
        """Read the reply's bytes, some of which may still be on disk; if that fails, the connection breaks."""
        try:
            exchange.data = _bytes_of(reply)
        except (OSError, Crashed):
            self.break_off()
            return False
        return True

    def _next(self) -> None:
        if self._there and not self._going and not self._busy and not self._closed:
            self._going = True
            self._travel(self.source, self.target, self._arrive)

    def _send_back(self) -> None:
        if not self._returning and self._served and self._served[0].data is not None:
            self._returning = True
            self._travel(self.target, self.source, self._come_back)

    def _come_back(self) -> None:
        if self._closed:
            return
        if not self._fabric.hears(self.target, self.source):
            self._loop.call_later(RESEND_S, self._come_back, context=self._context)
            return
        exchange = self._served.popleft()
        self._returning = False
        if not exchange.answer.done():
            assert exchange.data is not None
            exchange.answer.set_result(exchange.data)
        self._send_back()

    def _lose(self, exchange: Exchange) -> None:
        """The server hangs up without a response."""
        if not exchange.answer.done():
            exchange.answer.set_exception(ConnectionResetError(f"connection to {self.target} broke"))
        self.break_off()


def _may_be_late(request: Any) -> bool:
    """Before transaction.version 2, EndTxn leaves the producer epoch as it is: nobody can tell a late marker from one
    of the next transaction, nor can Apache Kafka."""
    ends = request.markers if request.API_KEY == WRITE_MARKERS_KEY else ()
    return all(each.transaction_version >= BUMPS_EPOCH for each in ends)


def _bytes_of(parts: bytes | list[Any]) -> bytes:
    if isinstance(parts, bytes):
        return parts
    out = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            out += part
            continue
        assert part.file is not None
        out += part.file.pread(part.size, part.position)
        part.release()
    return bytes(out)
