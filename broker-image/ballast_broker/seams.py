"""The outside world as protocols: the simulation replaces these and nothing else.

All access to time, randomness, disk and network goes through here. Code on the event loop uses asyncio (the simulation
brings its own loop with virtual time) and never calls `time`, `random`, `os` or `socket` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic(self) -> float:
        """Seconds; never goes back. The event loop's own time."""


class NotInMemory(Exception):
    """Reading these bytes would block: a thread has to load them first, then the caller retries."""

    def __init__(self, path: str, position: int, size: int) -> None:
        super().__init__(f"{size} bytes at {position} of {path}")
        self.path = path
        self.position = position
        self.size = size


class Random(Protocol):
    def random(self) -> float: ...
    def randrange(self, stop: int) -> int: ...
    def bytes_of(self, count: int) -> bytes: ...


class File(Protocol):
    """An open file. Every call may raise OSError; a short write is an error, never silent."""

    def pread(self, size: int, position: int) -> bytes: ...
    def pwrite(self, data: Bytes, position: int) -> None: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def descriptor(self) -> int | None:
        """For sendfile; None if there is no kernel behind the file (simulation)."""

    def close(self) -> None: ...


class DiskUsage(Protocol):
    @property
    def total_bytes(self) -> int: ...
    @property
    def usable_bytes(self) -> int: ...


class Disk(Protocol):
    """The file system. Paths are absolute strings. All calls are synchronous; slow ones are run by `Threads`."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File: ...
    def empty_file(self, path: str) -> File:
        """Create an empty file to write to, replacing any file of this name."""

    def exists(self, path: str) -> bool: ...
    def is_directory(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...
    def make_directory(self, path: str) -> bool:
        """Create it with its parents; False if it exists."""

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def write_back(self, path: str) -> None:
        """Write all dirty pages of the file system to disk: later syncs are quick, and report failures."""

    def read_bytes(self, path: str) -> bytes: ...
    def write_atomically(self, path: str, data: bytes) -> None:
        """Write a sibling, sync it, rename it over `path`, sync the directory."""

    def copy_range(self, source: File, source_position: int, target: File, target_position: int, size: int) -> int: ...
    def not_waiting(self) -> AbstractContextManager[None]:
        """Within this context, reads of the calling thread raise `NotInMemory` instead of blocking. Where the kernel
        cannot tell, everything counts as in memory.
        """

    def usage(self, path: str) -> DiskUsage: ...
    def waits(self) -> int:
        """A counter that grows whenever the calling thread blocks, but not while it waits for a processor."""

    def processor_time(self) -> Callable[[], float]:
        """A function that other threads may call for the calling thread's CPU time. It stands still while the thread
        blocks in one call; where that cannot be measured, it never does.
        """

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock on a file; return its release function. BlockingIOError if another process has it."""


class Threads(Protocol):
    """Runs blocking work. The simulation runs it at once, at a virtual cost."""

    async def run(self, work: Callable[[], T]) -> T: ...


class Channel(Protocol):
    """One connection to another broker or controller: requests in order, responses as they come."""

    async def call(self, request: Any, version: int) -> Any:
        """Send a request message, await its response. ConnectionError if the peer is gone."""

    def close(self) -> None: ...

    @property
    def closed(self) -> bool: ...


class Network(Protocol):
    async def connect(self, host: str, port: int, *, timeout_s: float) -> Channel:
        """ConnectionRefusedError if nobody listens; TimeoutError if nobody responds."""
