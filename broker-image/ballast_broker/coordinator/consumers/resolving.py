"""Resolves a pattern to the topics it matches, a few names at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.coordinator.consumers.group import Resolved
from ballast_broker.coordinator.consumers.patterns import BadPattern, compiled
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.turns import LONGEST_TURN_S

NAMES_PER_TURN = 500  # a millisecond or two, then other tasks run
RESTS = 4  # an expensive pattern leaves the loop to others this many times as long as it ran


MayDescribe = Callable[[str], bool]


async def resolve(text: str, image: MetadataImage, wall_ms: int, may_describe: MayDescribe | None = None) -> Resolved:
    topics: list[str] = []
    try:
        pattern = compiled(text)
    except BadPattern:  # loaded from a group of another implementation, which understands more
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
    """How long to leave the loop to others."""
    return RESTS * took_s if took_s > LONGEST_TURN_S else 0.0
