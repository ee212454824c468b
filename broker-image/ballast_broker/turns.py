"""Work on thousands of small things, for 5 ms in a turn of the event loop; then others have their turn.

Other code may run between any two of the things: what uses this says how it bears that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

LONGEST_TURN_S = 0.005
STEPS = 64  # without a look at the clock, of those that are but a part of a thing
T = TypeVar("T")


class Turn:
    """How long the present turn has been; `ends_if_long` ends it after 5 ms and begins the next."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._until_s = self._now() + LONGEST_TURN_S

    async def ends_if_long(self) -> bool:
        """Whether others had their turn meanwhile."""
        if self._now() <= self._until_s:
            return False
        await asyncio.sleep(0)
        self._until_s = self._now() + LONGEST_TURN_S
        return True


class InTurns(Generic[T]):
    """`async for` through all of them. When 5 ms are over, others have their turn before the next one; where that
    happened, they have another after the last, as what follows (encoding an answer, say) takes its time as well."""

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
    """What they come to; each of the steps takes so little that many are taken before the clock is looked at."""
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
