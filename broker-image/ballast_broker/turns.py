"""Splits work on thousands of small things into event loop turns of 5 ms, between which other tasks run.

Other code may run between any two things: users say how they cope with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

LONGEST_TURN_S = 0.005
STEPS = 64  # steps between two looks at the clock, each less than one thing
T = TypeVar("T")


class Turn:
    """Tracks the current turn; `ends_if_long` ends it after 5 ms and begins the next."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._until_s = self._now() + LONGEST_TURN_S

    async def ends_if_long(self) -> bool:
        """Yield to other tasks if the turn was long; return whether it did."""
        if self._now() <= self._until_s:
            return False
        await asyncio.sleep(0)
        self._until_s = self._now() + LONGEST_TURN_S
        return True


class InTurns(Generic[T]):
    """`async for` over things, yielding to other tasks after each 5 ms; if it ever did, it also yields after the last,
    as what follows (encoding a response, say) takes time, too.
    """

    def __init__(self, things: Iterable[T]) -> None:
        self._things = iter(things)
        self._turn = Turn()
        self._several = False

    def __aiter__(self) -> InTurns[T]:
        return self

    async def __anext__(self) -> T:
        if await self._turn.ends_if_long():
            self._several = True
        for each in self._things:
            return each
        if self._several:
            await asyncio.sleep(0)
        raise StopAsyncIteration


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run a generator's steps in turns; return its result. Many small steps run between looks at the clock."""
    turn, several = Turn(), False
    while True:
        try:
            for _ in range(STEPS):
                next(steps)
        except StopIteration as end:
            if several:
                await asyncio.sleep(0)
            found: T = end.value
            return found
        several = await turn.ends_if_long() or several
