"""Implements the broker's event loop: asyncio's, but its selector calls ready connections directly. Loop thread only.

A callback through asyncio costs each request a handle, a context and a second turn to answer. So connections are
registered with the loop's own selector, which calls them itself, turn after turn, and returns to asyncio only if that
has something to do. If thousands are ready, as many as fit into `LONGEST_TURN_S` are called, then timers and tasks have
their turn, then the others.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Final, Protocol, TypeVarTuple

from ballast_broker.net import processors
from ballast_broker.turns import LONGEST_TURN_S

EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Ready = list[tuple[selectors.SelectorKey, int]]
_Ts = TypeVarTuple("_Ts")
EPOLL = hasattr(select, "epoll")
EPOLLIN, EPOLLOUT = (select.EPOLLIN, select.EPOLLOUT) if EPOLL else (EVENT_READ, EVENT_WRITE)

# Sleeping and waking up takes longer than a client needs to send its next request after a response. After STEADY short
# waits in a row the next wait starts with busy polling.
SHORT_S: Final = 100e-6
AWAKE_S: Final = 50e-6
STEADY: Final = 16


class Waiting(Protocol):
    """What the loop can call; it is closed if it raises anything."""

    events: int  # what it waits for; 0 at first, and kept by `wait_for`

    @property
    def fd(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def on_readable(self) -> None: ...
    def on_writable(self) -> None: ...
    def close(self, error: BaseException | None) -> None: ...


class Lag(Protocol):
    """Called at the ends of every turn: the time between the end of one wait and the beginning of the next."""

    def turn_begins(self) -> None: ...
    def turn_ends(self) -> None: ...


class EventLoop(asyncio.SelectorEventLoop):
    def __init__(self, lag: Lag | None = None) -> None:
        self.turn_began_s = monotonic()  # when the connections called now were found ready
        self._connections = _Connections(self, lag)
        super().__init__(self._connections)

    def wait_for(self, waiting: Waiting, events: int) -> None:
        """Wait for reading, writing, both, or nothing: the latter before its descriptor is closed."""
        if events == waiting.events:
            return
        if not waiting.events:
            self._connections.register(waiting.fd, events, waiting)
        elif events:
            self._connections.modify(waiting.fd, events, waiting)
        else:
            self._connections.unregister(waiting.fd)
        waiting.events = events

    def after_turn(self, callback: Callable[[], None]) -> None:
        """Call once all ready connections have been called; outside of a turn, soon."""
        if self._connections.in_turn:
            self._connections.afterwards.append(callback)
        else:
            self.call_soon(callback)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._connections.timer_made = True
        return super().call_at(when, callback, *args, context=context)

    @property
    def has_work(self) -> bool:
        """Whether callbacks are ready to run, or the loop is to stop."""
        return bool(self._ready) or self._stopping  # type: ignore[attr-defined]


def running() -> EventLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EventLoop):
        raise TypeError(f"connections need an EventLoop, and this is a {type(loop).__name__}")
    return loop


class _Connections(selectors.DefaultSelector):
    def __init__(self, loop: EventLoop, lag: Lag | None) -> None:
        super().__init__()
        self._loop = loop
        self._lag = lag
        # With a single CPU, polling would keep it from those we wait for; with a limit, it would use that up.
        self._may_stay_awake = processors.usable() >= 2
        self._short_waits = 0  # in a row
        self.in_turn = False
        self.afterwards: list[Callable[[], None]] = []
        self._places: dict[int, int] = {}  # descriptor → position in the next turn, if one ended before all were called
        self.timer_made = False  # during a turn; it may be due before `select` would return

    def select(self, timeout: float | None = None) -> Ready:
        until_s = None if timeout is None else monotonic() + timeout
        self.timer_made = False
        while True:
            if self._lag is None:
                ready = self._wait(timeout)
            else:
                self._lag.turn_ends()
                ready = self._wait(timeout)
                self._lag.turn_begins()
            if not ready:
                return ready
            others = self._call(ready)
            if others or self.timer_made or self._loop.has_work:
                return others
            if until_s is not None:
                timeout = until_s - monotonic()
                if timeout <= 0:
                    return others

    def _poll(self, timeout: float | None) -> Ready:
        """Like the base class, which is not compiled: a good part of the cost of a small request."""
        if not EPOLL:
            return super().select(timeout)
        keys: dict[int, selectors.SelectorKey] = self._fd_to_key  # type: ignore[attr-defined]
        ready: Ready = []
        for descriptor, mask in self._selector.poll(timeout, len(keys) or 1):  # type: ignore[attr-defined]
            key = keys.get(descriptor)
            if key is not None:
                # A broken connection finds out by its next read or write.
                found = (EVENT_READ if mask & ~EPOLLOUT else 0) | (EVENT_WRITE if mask & ~EPOLLIN else 0)
                ready.append((key, found & key.events))
        return ready

    def _wait(self, timeout: float | None) -> Ready:
        if timeout is not None and timeout < AWAKE_S:
            return self._poll(timeout)
        began_s = monotonic()
        if self._short_waits >= STEADY and self._may_stay_awake:
            while monotonic() - began_s < AWAKE_S:
                if ready := self._poll(0):
                    return ready
            timeout = None if timeout is None else max(0.0, timeout - (monotonic() - began_s))
        ready = self._poll(timeout)
        self._short_waits = self._short_waits + 1 if monotonic() - began_s < SHORT_S else 0
        return ready

    def _call(self, ready: Ready) -> Ready:
        """Call the connections; returns asyncio's own entries."""
        others: Ready = []
        self.in_turn = True
        if self._places:
            last = len(self._places)
            ready.sort(key=lambda each: self._places.get(each[0].fd, last))
        self._loop.turn_began_s = monotonic()
        until_s = self._loop.turn_began_s + LONGEST_TURN_S
        left = iter(ready)
        for each in left:
            waiting, events = each[0].data, each[1]
            if type(waiting) is tuple:  # asyncio's own: a pair of handles
                others.append(each)
                continue
            try:
                if events & EVENT_READ and not waiting.closed:
                    waiting.on_readable()
                if events & EVENT_WRITE and not waiting.closed:
                    waiting.on_writable()
            except Exception as error:
                self._guarded(waiting.close, error)
            if monotonic() > until_s:
                break
        rest = list(left)
        others += [each for each in rest if type(each[0].data) is tuple]
        if rest or self._places:
            in_turn = [*rest, *ready[: -len(rest)]] if rest else []
            self._places = {each[0].fd: place for place, each in enumerate(in_turn)}
        self.in_turn = False
        if self.afterwards:
            afterwards, self.afterwards = self.afterwards, []
            for callback in afterwards:
                self._guarded(callback)
        # A connection may have unregistered or replaced some of them, so those are not known to be ready any more.
        if not others:
            return others
        registered = self.get_map()
        return [each for each in others if registered.get(each[0].fileobj) is each[0]]

    def _guarded(self, callback: Callable[..., None], *arguments: BaseException) -> None:
        """Report an exception the way asyncio does; it must not end the loop."""
        try:
            callback(*arguments)
        except Exception as error:
            self._loop.call_exception_handler({"message": f"{callback!r} failed", "exception": error})
