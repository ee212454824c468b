"""Work on thousands of things, of which each is little: so much of it in a turn of the event loop, and no more.

Whoever goes through them so has others come between any two, and says where that must not be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

LONGEST_TURN_S = 0.005
T = TypeVar("T")


class InTurns(Generic[T]):
    """`async for`: each of them; when 5 ms are over, others have their turn before the next."""

    def __init__(self, things: Iterable[T]) -> None:
        self._things = iter(things)
        self._now = asyncio.get_running_loop().time
        self._until_s = self._now() + LONGEST_TURN_S

    def __aiter__(self) -> InTurns[T]:
        return self

    async def __anext__(self) -> T:
        if self._now() > self._until_s:
            await asyncio.sleep(0)
            self._until_s = self._now() + LONGEST_TURN_S
        try:
            return next(self._things)
        except StopIteration:
            raise StopAsyncIteration from None
