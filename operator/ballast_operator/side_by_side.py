"""Many small requests of one look, a few at a time: one after the other they take as long as the API server is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
# Fewer than the API is asked at the same time: what the next batch, or another cluster, needs does not wait behind
# all of these. Of an API server that takes 150 ms for each request it makes 200 a second.
AT_ONCE = 32


async def side_by_side(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> list[R]:
    """What `do` returns for each, in their order. After a failure nothing more begins; it is raised when all that was
    begun has ended."""
    turn = asyncio.Semaphore(AT_ONCE)
    failed: list[Exception] = []
    results: dict[int, R] = {}

    async def one(index: int, item: T) -> None:
        async with turn:
            if failed:
                return
            try:
                results[index] = await do(item)
            except Exception as error:
                failed.append(error)

    await asyncio.gather(*(one(*each) for each in enumerate(items)))
    if failed:
        raise failed[0]
    return [results[index] for index in sorted(results)]
