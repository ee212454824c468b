"""Controls how long turns of the event loop may be, and counts the turns that others get while some work runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import pytest

from ballast_broker import turns

T = TypeVar("T")


def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is over as soon as it begins, however fast the machine is."""
    monkeypatch.setattr(turns, "LONGEST_TURN_S", -1.0)


def never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn is ever too long, however slow the machine is: work that awaits nothing runs in one go."""
    monkeypatch.setattr(turns, "LONGEST_TURN_S", float("inf"))


def at_one_go(steps: Iterable[None] | None) -> None:
    for _ in steps or ():
        pass


async def beside(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """The result of `work`, and how many turns others had until then."""
    task, had = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        had += 1
    return await task, had
