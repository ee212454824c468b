"""Kopf is begun anew when its watches fail, also where it does not come to its end; a signal ends it for good."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from ballast_operator import main

pytestmark = [pytest.mark.spec("OPR-04"), pytest.mark.timeout(30)]


class World:
    """Stands for the runtime; what Kopf is called with is kept."""

    def __init__(self) -> None:
        self.leader = SimpleNamespace(identity="me")
        self.begun_anew = 0
        self.swallowed = 0
        self.calls: list[dict[str, Any]] = []

    def begin_anew(self) -> None:
        self.begun_anew += 1


async def watch(world: World, stop: asyncio.Event) -> None:
    await main._watch_all(world, SimpleNamespace(), ["default"], stop, None)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    async def operator(**given: Any) -> None:
        world.calls.append(given)
        if len(world.calls) == 1:
            given["stop_flag"].set()  # as its cleanup does
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                world.swallowed += 1
                await asyncio.Event().wait()  # until the test's loop ends

    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(main, "WAY_OUT_SECONDS", 0.05)
    monkeypatch.setattr(main, "_left_alone", [])
    return world


async def test_a_kopf_that_does_not_end_is_left_alone_and_another_one_watches(world: World) -> None:
    await watch(world, asyncio.Event())
    assert (len(world.calls), world.begun_anew) == (2, 1)
    assert world.swallowed == 1, "it was cancelled, and went on"


async def test_after_a_signal_it_is_not_begun_anew(world: World) -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(main.KopfStuckError):
        await watch(world, stop)
    assert (len(world.calls), world.begun_anew) == (1, 0)
