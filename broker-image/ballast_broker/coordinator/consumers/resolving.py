"""Which topics a pattern stands for, a few names at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.coordinator.consumers.group import Resolved
from ballast_broker.coordinator.consumers.patterns import BadPattern, compiled
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.turns import LONGEST_TURN_S

NAMES_PER_TURN = 500  # a millisecond or two, then others have their turn
RESTS = 4  # others have so much of the time of a pattern that makes much work of each name


MayDescribe = Callable[[str], bool]


async def resolve(text: str, image: MetadataImage, wall_ms: int, may_describe: MayDescribe | None = None) -> Resolved:
    topics: list[str] = []
    try:
        pattern = compiled(text)
    except BadPattern:  # of a group that comes from elsewhere, where more is understood
        return Resolved(frozenset(), image.offset, wall_ms)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number, name in enumerate(image.topics.sorted_names, 1):
        if pattern.matches(name) and (may_describe is None or may_describe(name)):
            topics.append(name)
        took_s = loop.time() - began
        if number % NAMES_PER_TURN == 0 or took_s > LONGEST_TURN_S:
            await asyncio.sleep(rest_s(took_s))
            began = loop.time()
    return Resolved(frozenset(topics), image.offset, wall_ms)


def rest_s(took_s: float) -> float:
    """For how long others have the loop to themselves."""
    return RESTS * took_s if took_s > LONGEST_TURN_S else 0.0
