"""What a dispatcher gives a connection: the seam between `net` and `api`, which do not know each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ballast_broker.seams import File, Threads


class FileData(Protocol):
    """A stretch of a file that a reply sends without touching it; `release` is called once it is sent or given up."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def file(self) -> File | None: ...
    @property
    def threads(self) -> Threads:
        """In which it is read where it is not in memory."""

    def failed(self, error: OSError) -> None:
        """It cannot be read. On the loop, and not in the middle of anything."""

    def release(self) -> None: ...


Part = bytes | memoryview | FileData
Parts = Sequence[Part]


class Pending(NamedTuple):
    """A reply that comes later. `pipelined`: the next request may begin meanwhile, or when `begun` is done."""

    future: asyncio.Future[Any]  # of Parts, or of None where there is nothing to answer
    pipelined: bool
    for_this_client_only: bool = False  # it changes nothing: cancelled when the client is gone
    begun: asyncio.Future[None] | None = None


Reply = bytes | list[Any] | Pending | None


class Principal(NamedTuple):
    """Who sends a request. Without authentication everybody is `User:ANONYMOUS`."""

    kind: str = "User"
    name: str = "ANONYMOUS"
    by_token: bool = False  # by a delegation token, with which no other token is to be had


ANONYMOUS: Final = Principal()


class Time(Protocol):
    """Told of what the requests of a connection take of the loop's thread."""

    def begins(self) -> None: ...
    def ends(self) -> None: ...


class Peer(Protocol):
    """Who sends: a connection, as far as a dispatcher may know it."""

    time: Time | None
    """Whoever dispatches sets it, where there is a quota of it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def host(self) -> str:
        """As Kafka writes it: "/127.0.0.1"."""

    @property
    def listener(self) -> str: ...
    def on_close(self, callback: Callable[[], None]) -> None:
        """Called once, when the connection has ended."""

    def hold(self, seconds: float) -> None:
        """Read nothing more for so long, or for as long as was said before; answers are still sent."""


Dispatch = Callable[[Peer, memoryview], Reply]
