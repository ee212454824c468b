"""An in-memory log, disk and network, for tests of the Raft driver and the controller without files and sockets.

The log does what Raft needs of the storage engine's: it stamps offsets and epochs, reads whole batches and truncates.
It knows what is not flushed, so that a crash can lose it. Messages are encoded, so that the wire format is exercised.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.disk import SimDisk, Store

from ballast_broker.raft.voters import STATIC, Voter, VoterSet, voter_set
from ballast_wire.messages import message
from ballast_wire.records import BatchView, iterate_batches


def static_voters(ids: Iterable[int]) -> VoterSet:
    return voter_set(STATIC, map(Voter, ids))


@dataclass
class AppendInfo:
    first_offset: int
    last_offset: int


class MemorySlice:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data

    def release(self) -> None:
        pass


class MemoryLog:
    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start_offset = 0
        self.flushed = 0
        self.high_watermark = 0
        self.flush_count = 0

    @property
    def log_end_offset(self) -> int:
        return _view(self.batches[-1]).last_offset + 1 if self.batches else self.log_start_offset

    def append_as_leader(self, batches: bytearray, leader_epoch: int, *, now_ms: int, origin: str) -> AppendInfo:
        assert origin == "raft"
        first = self.log_end_offset
        for view in iterate_batches(memoryview(batches)):
            view.stamp(self.log_end_offset, leader_epoch)
            self.batches.append(bytes(view.bytes_view))
        return AppendInfo(first, self.log_end_offset - 1)

    def append_as_follower(self, batches: memoryview) -> AppendInfo:
        first = self.log_end_offset
        for view in iterate_batches(batches):
            assert view.crc_is_right()
            assert view.base_offset == self.log_end_offset, (view.base_offset, self.log_end_offset)
            self.batches.append(bytes(view.bytes_view))
        return AppendInfo(first, self.log_end_offset - 1)

    def read(self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool = True) -> MemorySlice:
        assert self.log_start_offset <= offset <= self.log_end_offset
        out = bytearray()
        for batch in self.batches:
            view = _view(batch)
            if view.last_offset < offset:
                continue
            if view.last_offset >= upper_offset or (out and len(out) + len(batch) > max_bytes):
                break
            out += batch
        return MemorySlice(bytes(out))

    @property
    def epochs(self) -> MemoryLog:
        return self

    @property
    def entries(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for batch in self.batches:
            view = _view(batch)
            if not found or view.header.leader_epoch > found[-1][0]:
                found.append((view.header.leader_epoch, view.base_offset))
        return found

    def update_high_watermark(self, offset: int) -> None:
        assert self.high_watermark <= offset <= self.log_end_offset
        self.high_watermark = offset

    def truncate_to(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if _view(batch).last_offset < offset]
        self.flushed = min(self.flushed, self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.batches = []
        self.log_start_offset = self.flushed = self.high_watermark = offset

    def advance_log_start_offset(self, offset: int) -> None:
        assert offset <= self.high_watermark
        self.log_start_offset = max(self.log_start_offset, offset)
        self.batches = [batch for batch in self.batches if _view(batch).last_offset >= offset]

    def delete_old_segments(self, now_ms: int) -> int:
        return 0

    def flush(self, up_to: int | None = None) -> None:
        self.flush_count += 1
        self.flushed = self.log_end_offset

    def crash(self) -> None:
        """The machine crashes: unflushed batches and the high watermark are lost."""
        self.high_watermark = 0
        self.truncate_to(self.flushed)


def _view(batch: bytes) -> BatchView:
    return BatchView(memoryview(batch))


class MemoryDisk(SimDisk):
    """A disk with the folder of a node's metadata log."""

    def __init__(self) -> None:
        self.store = Store(random.Random(0), lambda: 0)
        super().__init__(self.store)
        self.make_directory("/meta")

    @property
    def files(self) -> dict[str, bytes]:
        return {f"/meta/{name}": self.read_bytes(f"/meta/{name}") for name in self.list("/meta")}


class LoopClock:
    def wall_ms(self) -> int:
        return round(time.time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class InlineThreads:
    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()


Handler = Callable[[int, int, Any, Any], Awaitable[Any]]


@dataclass
class Connection:
    """The server's end of a connection, as handlers see it."""

    close_callbacks: list[Callable[[], None]] = field(default_factory=list)

    def on_close(self, callback: Callable[[], None]) -> None:
        self.close_callbacks.append(callback)


@dataclass
class Origin:
    connection: Connection


class LocalNetwork:
    """Connects to handlers by address; an address without a handler refuses connections."""

    def __init__(self) -> None:
        self.listeners: dict[tuple[str, int], Handler] = {}
        self.channels: list[LocalChannel] = []
        self.calls: list[str] = []
        self.on_message: Callable[[], None] = lambda: None

    def listen(self, host: str, port: int, handler: Handler) -> None:
        self.listeners[host, port] = handler

    def stop_listening(self, host: str, port: int) -> None:
        """As if the process died: the port refuses connections, existing ones end."""
        self.listeners.pop((host, port), None)
        for channel in self.channels:
            if channel.address == (host, port):
                channel.close()

    async def connect(self, host: str, port: int, *, timeout_s: float) -> LocalChannel:
        await asyncio.sleep(0)
        if (host, port) not in self.listeners:
            raise ConnectionRefusedError(f"{host}:{port}")
        channel = LocalChannel(self, (host, port))
        self.channels.append(channel)
        return channel


class LocalChannel:
    def __init__(self, network: LocalNetwork, address: tuple[str, int]) -> None:
        self._network = network
        self.address = address
        self.closed = False
        self._connection = Connection()
        self._waiting: set[asyncio.Task[Any]] = set()

    async def call(self, request: Any, version: int) -> Any:
        handler = self._network.listeners.get(self.address)
        if self.closed or handler is None:
            raise ConnectionResetError
        name = type(request).__name__.removesuffix("Request")
        self._network.calls.append(name)
        self._network.on_message()
        if self.closed:
            raise ConnectionResetError
        received = message(f"{name}Request").decode(bytes(request.encode(version)), version=version)
        task = asyncio.ensure_future(handler(request.API_KEY, version, received, Origin(self._connection)))
        self._waiting.add(task)
        try:
            response = await task
        except asyncio.CancelledError:
            if self.closed:
                raise ConnectionResetError from None
            raise
        finally:
            self._waiting.discard(task)
        self._network.on_message()
        if self.closed:
            raise ConnectionResetError
        return message(f"{name}Response").decode(bytes(response.encode(version)), version=version)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for task in list(self._waiting):
            task.cancel()
        callbacks, self._connection.close_callbacks = self._connection.close_callbacks, []
        for callback in callbacks:
            asyncio.get_event_loop().call_soon(callback)
