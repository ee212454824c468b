"""Awaits work in a thread to its end, even if the caller is cancelled: the thread cannot be cancelled, and keeps using
what it was given (open files, a temporary name). Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ballast_broker.seams import Threads

T = TypeVar("T")


async def to_its_end(threads: Threads, work: Callable[[], T]) -> T:
    """Run `work`. A CancelledError is raised only when the thread is done, whatever its result."""
    working = asyncio.ensure_future(threads.run(work))
    cancelled = await outlast(working)
    if cancelled is not None:
        working.cancelled() or working.exception()  # mark as retrieved
        raise cancelled
    return working.result()


async def outlast(working: asyncio.Future[T]) -> asyncio.CancelledError | None:
    """Wait until it is done. Returns the CancelledError that came meanwhile, if any, for the caller to raise."""
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
