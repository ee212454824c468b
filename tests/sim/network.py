"""Connections between simulated nodes: every message travels as bytes, late, in order per connection, or not at all.

A node that is down refuses; one that is cut off is silent. Delay, loss of a connection, and partitions (also one way)
are drawn from the seed or set by a schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ballast_wire.messages import message

Handler = Callable[[int, int, Any], Awaitable[Any]]  # (api key, version, request) → response message
LOOPBACK_DELAY_S = 0.00005


@dataclass
class Fabric:
    """Who listens where, who can hear whom, and how long a message takes."""

    rng: random.Random
    min_delay_s: float = 0.0002
    max_delay_s: float = 0.003
    slow_chance: float = 0.01
    slow_delay_s: float = 0.3
    listeners: dict[tuple[str, int], tuple[str, Handler]] = field(default_factory=dict)
    cut: set[tuple[str, str]] = field(default_factory=set)  # (from, to): nothing gets through
    channels: list[SimChannel] = field(default_factory=list)
    messages: int = 0

    def listen(self, node: str, host: str, port: int, handler: Handler) -> None:
        self.listeners[(host, port)] = (node, handler)

    def silence(self, node: str) -> None:
        """The node's process is gone: its listeners refuse, its connections break."""
        self.listeners = {where: who for where, who in self.listeners.items() if who[0] != node}
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


class SimNetwork:
    """`seams.Network` of one node."""

    def __init__(self, fabric: Fabric, node: str) -> None:
        self._fabric = fabric
        self._node = node

    async def connect(self, host: str, port: int, *, timeout_s: float) -> SimChannel:
        listener = self._fabric.listeners.get((host, port))
        target = listener[0] if listener else f"{host}:{port}"
        reachable = self._fabric.hears(self._node, target) and self._fabric.hears(target, self._node)
        if not reachable:
            await asyncio.sleep(timeout_s)
            raise TimeoutError(f"{host}:{port} does not answer")
        await asyncio.sleep(self._fabric.delay(self._node, target))
        if listener is None:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        channel = SimChannel(self._fabric, self._node, target, listener[1])
        self._fabric.channels.append(channel)
        return channel


class SimChannel:
    """One connection: requests are handled in order at the other end, answers come in the same order."""

    def __init__(self, fabric: Fabric, source: str, target: str, handler: Handler) -> None:
        self.source = source
        self.target = target
        self._fabric = fabric
        self._handler = handler
        self._closed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._turn = asyncio.Lock()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        self._closed = True
        if self in self._fabric.channels:
            self._fabric.channels.remove(self)
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(ConnectionResetError(f"connection to {self.target} broke"))

    async def call(self, request: Any, version: int) -> Any:
        if self._closed:
            raise ConnectionResetError(f"connection to {self.target} is closed")
        name = type(request).__name__
        frame = bytes(request.encode(version=version))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        try:
            await self._travel(self.source, self.target)
            asyncio.get_running_loop().call_soon(self._serve, name, version, frame, answer)
            return await answer
        finally:
            self._waiting.discard(answer)

    async def _travel(self, source: str, target: str) -> None:
        self._fabric.messages += 1
        await asyncio.sleep(self._fabric.delay(source, target))
        while not self._fabric.hears(source, target):  # packets wait and are sent again; a closed end gives up
            if self._closed:
                raise ConnectionResetError(f"connection to {target} broke")
            await asyncio.sleep(0.2)

    def _serve(self, name: str, version: int, frame: bytes, answer: asyncio.Future[Any]) -> None:
        if self._closed or answer.done():
            return
        task = asyncio.get_running_loop().create_task(self._answer(name, version, frame, answer))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _answer(self, name: str, version: int, frame: bytes, answer: asyncio.Future[Any]) -> None:
        async with self._turn:
            if self._closed:
                return
            kind = message(name)
            response = await self._handler(kind.API_KEY, version, kind.decode(frame, version=version))
        if response is None:
            return
        data = bytes(response.encode(version=version))
        await self._travel(self.target, self.source)
        if not answer.done() and not self._closed:
            answer.set_result(message(name.removesuffix("Request") + "Response").decode(data, version=version))
