"""Runs libkrb5 in threads: it reads files, looks up names and waits for the KDC, and must not block the loop.

Bounds: `AT_ONCE` threads, and `MOST_WAITING` queued calls. The threads are daemons: a node that stops does not wait for
a KDC that does not answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

AT_ONCE = 4
MOST_WAITING = 1_000

T = TypeVar("T")


class TooBusy(Exception):
    """Too many calls are queued, or no thread can be started."""


class KerberosThreads:
    """Loop thread only, except what runs in the threads."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """A future of the result or exception; raises TooBusy if too many calls are queued."""
        if len(self._waiting) >= MOST_WAITING:
            raise TooBusy(f"{MOST_WAITING} logins wait for Kerberos already")
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, ended))
        self._begin()
        return ended

    def _begin(self) -> None:
        while self._waiting and self._running < AT_ONCE:
            work, ended = self._waiting.popleft()
            if ended.done():  # nobody wants it any more
                continue
            self._running += 1
            thread = threading.Thread(target=self._work, args=(work, ended), name="ballast-kerberos", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads on this machine
                self._running -= 1
                ended.set_exception(TooBusy(str(error)))

    def _ended(self, ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running -= 1
        if not ended.done():
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)
        self._begin()

    # -- in the thread --------------------------------------------------------------------------------------------
    def _work(self, work: Callable[[], Any], ended: asyncio.Future[Any]) -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            ended.get_loop().call_soon_threadsafe(self._ended, ended, result, error)
