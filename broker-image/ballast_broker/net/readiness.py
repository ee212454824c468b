"""Which connections can be read from or written to, asked for all of them at once. Loop thread only.

The event loop waits for one descriptor, that of a selector which has the connections alone; what is ready then is
called from here. To be called by the event loop costs each request a handle and a context, and a second turn to answer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Protocol

EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Waiting(Protocol):
    """Who waits: closed when it raises anything."""

    events: int  # what it waits for; 0 at first, and kept by `Readiness`

    @property
    def fd(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def on_readable(self) -> None: ...
    def on_writable(self) -> None: ...
    def close(self, error: BaseException | None) -> None: ...


class Readiness:
    """`after_turn` is called each time that all who are ready have been called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after_turn: Callable[[], None]) -> None:
        self._loop = loop
        self._after_turn = after_turn
        self._selector = selectors.DefaultSelector()
        self.in_turn = False
        self.turn_began_s = loop.time()
        loop.add_reader(self._selector.fileno(), self._turn)

    def wait_for(self, waiting: Waiting, events: int) -> None:
        """To read, to write, both, or nothing: that before its descriptor is closed."""
        if events == waiting.events:
            return
        if not waiting.events:
            self._selector.register(waiting.fd, events, waiting)
        elif events:
            self._selector.modify(waiting.fd, events, waiting)
        else:
            self._selector.unregister(waiting.fd)
        waiting.events = events

    def _turn(self) -> None:
        self.in_turn = True
        self.turn_began_s = self._loop.time()
        try:
            for key, events in self._selector.select(0):
                waiting: Waiting = key.data
                try:
                    if events & EVENT_READ and not waiting.closed:
                        waiting.on_readable()
                    if events & EVENT_WRITE and not waiting.closed:
                        waiting.on_writable()
                except Exception as error:
                    waiting.close(error)
        finally:
            self.in_turn = False
            self._after_turn()

    def close(self) -> None:
        self._loop.remove_reader(self._selector.fileno())
        self._selector.close()
