"""Kopf is begun anew when its watches fail, also where it does not come to its end; a signal ends it for good."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import kopf
import pytest
from kopf._cogs.clients import api, watching
from kopf._cogs.clients.errors import APIError

from ballast_operator import main
from ballast_operator.kubeconfig import ApiAccess

pytestmark = [pytest.mark.spec("OPR-04"), pytest.mark.timeout(30)]


class World:
    """Stands for the runtime; what Kopf is called with is kept."""

    def __init__(self) -> None:
        self.leader = SimpleNamespace(identity="me")
        self.api = self
        self.begun_anew = 0
        self.swallowed = 0
        self.calls: list[dict[str, Any]] = []
        self.told: asyncio.Event | None = None

    async def find(self, _: str) -> dict[str, Any]:
        return {"resources": [{"name": plural} for plural in main.KINDS]}

    def begin_anew(self) -> None:
        self.begun_anew += 1


async def watch(world: World, stop: asyncio.Event) -> None:
    runtime: Any = world
    await main._watch_all(runtime, ApiAccess(server="http://127.0.0.1:1"), ["default"], stop)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    async def operator(**given: Any) -> None:
        world.calls.append(given)
        if len(world.calls) == 1:
            if world.told is not None:
                world.told.set()
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
    stop = world.told = asyncio.Event()
    with pytest.raises(main.KopfStuckError):
        await watch(world, stop)
    assert (len(world.calls), world.begun_anew) == (1, 0)


async def test_after_a_signal_that_came_before_it_is_not_begun_at_all(world: World) -> None:
    stop = asyncio.Event()
    stop.set()
    await watch(world, stop)
    assert world.calls == []


@pytest.mark.parametrize(("status", "outlived"), [(503, True), (403, False)])
async def test_an_api_server_that_fails_is_outlived_however_often(
    status: int, outlived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage with 503 for an answer ended the operator after 50 s; who is restarted so again and again is away for
    minutes when the API server is well."""
    world, stop = World(), asyncio.Event()

    async def operator(**given: Any) -> None:
        world.calls.append(given)
        if len(world.calls) == 3 * main.FAILURES_IN_A_ROW:
            stop.set()
            return
        raise APIError("not now", status=status, headers={})

    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(main, "WATCH_AGAIN_SECONDS", 0.001)
    if outlived:
        await watch(world, stop)
    else:
        with pytest.raises(APIError):
            await watch(world, stop)
    assert stop.is_set() is outlived
    assert len(world.calls) == (3 * main.FAILURES_IN_A_ROW if outlived else main.FAILURES_IN_A_ROW + 1)


async def test_signals_come_to_the_operator_whatever_kopf_does() -> None:
    """Kopf took them after the operator had. It ended by itself then; but where it did not come to its end, it was
    begun anew after a SIGTERM, and a second one was an InvalidStateError in the log."""
    stop, ready, faults = asyncio.Event(), asyncio.Event(), list[Any]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    runtime: Any = SimpleNamespace(leader=SimpleNamespace(identity="me"), end_workers=lambda: None)
    nobody = ApiAccess(server="http://127.0.0.1:1")
    watching = asyncio.create_task(main._watch_all(runtime, nobody, ["default"], stop, ready))
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            await stop.wait()
            await watching
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):  # turns of the loop, in which they are handled
            await asyncio.sleep(0)
        assert faults == []
    finally:
        watching.cancel()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def test_a_watch_that_stays_silent_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server says something once a minute. Where nothing comes through any more, nobody closes the stream."""

    async def silent(url: str, **_: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr(api, "stream", silent)
    settings = main.settings_of()
    assert 60 < settings.watching.inactivity_timeout <= 120
    settings.watching.inactivity_timeout = 0.01
    resource: Any = SimpleNamespace(get_url=lambda **_: "/watch")
    waiter, everywhere = asyncio.get_running_loop().create_future(), None
    heard = watching.watch_objs(
        settings=settings, resource=resource, namespace=everywhere, since="7", operator_pause_waiter=waiter
    )
    assert [event async for event in heard] == []
