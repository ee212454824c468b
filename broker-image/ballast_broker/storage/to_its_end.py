"""Work in a thread that whoever is cancelled waits for: a thread does not hear of it, and goes on with what it was
given (open files, a temporary name). Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ballast_broker.seams import Threads

T = TypeVar("T")


async def to_its_end(threads: Threads, work: Callable[[], T]) -> T:
    """CancelledError, where it came meanwhile, is raised when the thread is done, however that ended."""
    working = asyncio.ensure_future(threads.run(work))
    cancelled = await outlast(working)
    if cancelled is not None:
        working.cancelled() or working.exception()  # nobody else asks how it went
        raise cancelled
    return working.result()


async def outlast(working: asyncio.Future[T]) -> asyncio.CancelledError | None:
    """Returns when it is done, and what cancelled the caller meanwhile: that is the caller's to raise."""
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
