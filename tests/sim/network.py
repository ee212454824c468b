"""Connections between simulated nodes: every message travels as bytes, late, in order per connection, or not at all.

The other end is a node's real dispatcher: frames are parsed, answered and framed as in production; only the sockets
are missing. A node that is down refuses; one that is cut off is silent. Delays and cuts come from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ballast_broker.net_reply import Dispatch, Pending, Reply
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.headers import API_VERSIONS_KEY, frame_request, is_flexible
from ballast_wire.messages import message

LOOPBACK_DELAY_S = 0.00005
RESEND_S = 0.2


class Listener(NamedTuple):
    node: str
    name: str
    dispatch: Dispatch
    context: contextvars.Context  # of the process that listens: what it does on a request is its own doing
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
    channels: list[SimChannel] = field(default_factory=list)
    messages: int = 0

    def silence(self, node: str) -> None:
        """The node's process is gone: its listeners refuse, its connections break."""
        self.listeners = {where: who for where, who in self.listeners.items() if who.node != node}
        for channel in [c for c in self.channels if node in (c.source, c.target)]:
            channel.break_off()

    def partition(self, one: set[str], other: set[str], *, both_ways: bool = True) -> None:
        self.cut |= {(a, b) for a in one for b in other}
        if both_ways:
            self.cut |= {(b, a) for a in one for b in other}

    def heal(self) -> None:
        self.cut.clear()

    def hears(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def delay(self, source: str, target: str) -> float:
        if source == target:
            return LOOPBACK_DELAY_S
        if self.rng.random() < self.slow_chance:
            return self.rng.uniform(self.max_delay_s, self.slow_delay_s)
        return self.rng.uniform(self.min_delay_s, self.max_delay_s)


class SimListening:
    """`world.Listening` of one node: host names are node names."""

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
        self.callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class SimChannel:
    """One connection: requests are handled in order at the other end, answers come in the same order."""

    def __init__(self, fabric: Fabric, source: str, listener: Listener) -> None:
        self.source = source
        self.target = listener.node
        self._fabric = fabric
        self._listener = listener
        self._peer = SimPeer(source, listener.name)
        self._closed = False
        self._correlation_id = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._there = asyncio.Lock()
        self._back = asyncio.Lock()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self in self._fabric.channels:
            self._fabric.channels.remove(self)
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(ConnectionResetError(f"connection to {self.target} broke"))
        loop = asyncio.get_running_loop()
        if self._listener in self._fabric.listeners.values():  # else its process is dead, and nothing of it runs
            for callback in self._peer.callbacks:
                loop.call_soon(callback, context=self._listener.context.copy())

    async def call(self, request: Any, version: int) -> Any:
        if self._closed:
            raise ConnectionResetError(f"connection to {self.target} is closed")
        name = type(request).__name__
        flexible = is_flexible(name, version)
        self._correlation_id += 1
        body = request.encode(version=version)
        frame = frame_request(request.API_KEY, version, self._correlation_id, self.source, body, flexible=flexible)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        task = asyncio.get_running_loop().create_task(self._serve(frame, answer))
        self._serving.add(task)
        task.add_done_callback(self._served)
        try:
            data = await answer
        finally:
            self._waiting.discard(answer)
        kind = message(name.removesuffix("Request") + "Response")
        tagged = flexible and request.API_KEY != API_VERSIONS_KEY
        return kind.decode(data[9 if tagged else 8 :], version=version)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.break_off()

    async def _travel(self, source: str, target: str) -> None:
        self._fabric.messages += 1
        await asyncio.sleep(self._fabric.delay(source, target))
        while not self._fabric.hears(source, target):  # packets are sent again until a side gives up
            await asyncio.sleep(RESEND_S)
            if self._closed:
                raise ConnectionResetError("gone")

    async def _serve(self, frame: bytes, answer: asyncio.Future[bytes]) -> None:
        async with self._there:
            await self._travel(self.source, self.target)
            await self._listener.accepting.wait()
            if self._closed:
                return
            try:
                listener, view = self._listener, memoryview(bytearray(frame))[4:]
                reply = listener.context.copy().run(listener.dispatch, self._peer, view)
            except MalformedRequest:
                self.break_off()
                return
        data = await _bytes_of(reply)
        if data is None:
            return
        async with self._back:
            await self._travel(self.target, self.source)
        if not answer.done() and not self._closed:
            answer.set_result(data)


async def _bytes_of(reply: Reply) -> bytes | None:
    parts = await reply.future if isinstance(reply, Pending) else reply
    if parts is None:
        return None
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
