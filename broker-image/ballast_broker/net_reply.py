"""The interface between `net` and `api`, which do not know each other: replies, principals, peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ballast_broker.seams import File, Threads


class FileData(Protocol):
    """A file range sent without being read here; `release` is called once it is sent or given up."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def file(self) -> File | None: ...
    @property
    def threads(self) -> Threads:
        """The threads that read it if it is not in the page cache."""

    def failed(self, error: OSError) -> None:
        """Called on the loop, outside of any other call, if it cannot be read."""

    def release(self) -> None: ...


Part = bytes | memoryview | FileData
Parts = Sequence[Part]


class Pending(NamedTuple):
    """A deferred reply. `pipelined`: the next request may start now or, if `begun` is set, when that is done."""

    future: asyncio.Future[Any]  # of Parts, or of None if there is no response
    pipelined: bool
    for_this_client_only: bool = False  # has no effects: cancelled when the client disconnects
    begun: asyncio.Future[None] | None = None


Reply = bytes | list[Any] | Pending | None


class Principal(NamedTuple):
    """The sender of a request. Without authentication everybody is `User:ANONYMOUS`."""

    kind: str = "User"
    name: str = "ANONYMOUS"
    by_token: bool = False  # authenticated by a delegation token, which cannot obtain other tokens


ANONYMOUS: Final = Principal()


class Time(Protocol):
    """Measures what a connection's requests take of the loop's thread."""

    def begins(self) -> None: ...
    def ends(self) -> None: ...


class Peer(Protocol):
    """A connection, as far as a dispatcher knows it."""

    time: Time | None
    """Set by the dispatcher if there is a request time quota."""

    @property
    def principal(self) -> Principal: ...
    @property
    def is_known(self) -> bool:
        """False until it has logged in, where its listener asks for that."""

    @property
    def host(self) -> str:
        """As Kafka prints it: "/127.0.0.1"."""

    @property
    def listener(self) -> str: ...
    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback for when the connection has closed; called once."""

    def hold(self, seconds: float) -> None:
        """Do not read for this long, or for a longer time set before; responses are still sent."""


Dispatch = Callable[[Peer, memoryview], Reply]
