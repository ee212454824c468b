"""The operator where each request to the Kubernetes API takes long, and while its answers are errors."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.faults import FaultyApi, behind_faults
from tests.operator.world import World

from ballast_operator import main
from ballast_operator.apply.kubernetes import KubernetesApi, Object
from ballast_operator.kubeconfig import ApiAccess, find_access
from ballast_operator.logs import KopfOnce

MOVES = 10


@pytest.mark.spec("OPR-05", "OPR-33")
@pytest.mark.timeout(180)
def test_what_reassignments_have_to_be_told_does_not_wait_one_for_the_other(ballast_world: World) -> None:
    """Each needs a ConfigMap, a finalizer and three statuses: of many, the last began when all others had been told."""
    world, names = ballast_world, [f"slow-{index}" for index in range(MOVES)]
    for name in names:
        world.topic(name, replicaAssignment=[[0]])
    world.until_all_ready(names)
    for name in names:
        world.pause("KafkaTopic", name)
    with behind_faults(world) as faulty:
        faulty.slow = (0.3, 0.3)
        for name in names:
            world.reassign(name, partitions=[{"topic": name, "partition": 0, "replicas": [1]}])
        for name in names:
            world.until_phase(name, "Succeeded", seconds=90)
        assert min(faulty.most[kind] for kind in ("PATCH reassignments", "PATCH configmaps")) >= MOVES // 2
    for name in names:
        world.delete("Reassignment", name)
        world.delete("KafkaTopic", name)


class Asked(KubernetesApi):
    """Tells how often it is asked."""

    def __init__(self, access: ApiAccess) -> None:
        super().__init__(access)
        self.asked = asyncio.Semaphore(0)

    async def find(self, path: str) -> Object | None:
        self.asked.release()
        return await super().find(path)


@pytest.fixture
def signals() -> Iterator[None]:
    """Kopf takes them, and the operator takes them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.spec("OPR-04", "OPR-06")
@pytest.mark.usefixtures("signals")
@pytest.mark.timeout(120)
async def test_an_operator_outlives_an_api_server_that_answers_with_errors(
    ballast_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended after 50 s; who is restarted so again and again is away for minutes when the API server is well."""
    hasty = main.settings_of()
    hasty.networking.error_backoffs = (0.01,)
    monkeypatch.setattr(main, "settings_of", lambda: hasty)
    monkeypatch.setattr(main, "WATCH_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(main, "FAILURES_IN_A_ROW", 0)
    monkeypatch.setattr("ballast_operator.apply.kubernetes.FIRST_DELAY_SECONDS", 0.001)
    caplog.handler.addFilter(KopfOnce())
    faulty = FaultyApi(ballast_world.kubeconfig, seed=1)
    await faulty.start()
    api = Asked(await asyncio.to_thread(find_access, str(faulty.kubeconfig)))
    heard, begun, stop = asyncio.Event(), asyncio.Semaphore(0), asyncio.Event()
    runtime: Any = SimpleNamespace(
        leader=SimpleNamespace(identity="me"), api=api, begin_anew=begun.release, end_workers=lambda: None,
        heard=lambda *_: heard.set(), vanished=lambda *_: None, changed_below=lambda *_: None,
    )  # fmt: skip
    watching = asyncio.create_task(main._watch_all(runtime, api._access, ["default"], stop))
    try:
        async with asyncio.timeout(60):
            await heard.wait()
            faulty.answers = 503
            faulty.hang_up()
            await begun.acquire()
            for _ in range(2):  # it waits for the API before it watches
                await api.asked.acquire()
            assert begun.locked()
            assert not watching.done()
            heard.clear()
            faulty.answers = None
            await heard.wait()
            stop.set()
            await watching
    finally:
        watching.cancel()
        await api.close()
        await faulty.stop()
    kopfs = [line for line in caplog.records if line.name.startswith("kopf") and line.levelno >= logging.WARNING]
    assert len({line.getMessage() for line in kopfs}) == len(kopfs)
