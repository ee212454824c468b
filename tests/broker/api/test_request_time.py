"""How a client's request time is measured, and the throttle time for one that has used too much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.seams import TurnedClock

from ballast_broker.api.client_quotas import REQUESTS, ClientQuotas
from ballast_broker.api.request_time import RequestTime, Timed, is_between_brokers
from ballast_broker.metadata.image import ClientQuotasImage

APP = (("client-id", "app"),)


class Scene:
    """One client with a request percentage quota."""

    def __init__(self, percentage: float = 10.0) -> None:
        self.clock = TurnedClock()
        self.quotas = ClientQuotas(self.clock)
        image: Any = SimpleNamespace(client_quotas=ClientQuotasImage({APP: {REQUESTS: percentage}}))
        self.publish(image)
        self.held: list[float] = []
        rate = self.quotas.requests.rate_of("ann", "app")
        assert rate is not None
        self.rate = rate
        self.peer: Any = SimpleNamespace(hold=self.held.append, time=None)
        self.time = self.peer.time = RequestTime(self.quotas.requests, rate, self.clock.monotonic, self.peer)

    def publish(self, image: Any) -> None:
        delta: Any = None
        self.quotas.publish(delta, image)

    def work(self, seconds: float) -> None:
        self.clock.now += seconds

    @property
    def taken_s(self) -> float:
        return sum(amount for _, amount in self.rate._windows)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.spec("CLI-11")
def test_legs_count_and_what_lies_between_them_does_not(scene: Scene) -> None:
    scene.time.begins()
    scene.work(0.2)
    scene.time.begins()  # of the same turn
    scene.work(0.1)
    scene.time.ends()
    scene.time.ends()
    scene.work(5.0)
    scene.time.ends()
    assert scene.taken_s == pytest.approx(0.3)


@pytest.mark.spec("CLI-11")
def test_who_is_over_is_told_and_not_read_from_for_as_long(scene: Scene) -> None:
    scene.time.begins()
    scene.work(0.9)
    assert scene.time.tell_ms() == 0
    scene.work(0.2)  # 1.1 s may be taken in 11 s: ten windows and the present one, which has lasted 0.2 s
    assert scene.time.tell_ms() == 800
    assert scene.held == [0.8]
    assert (scene.quotas.requests.throttles, scene.quotas.requests.throttled_ms) == (1, 800)
    scene.time.ends()
    scene.work(0.79)
    assert scene.time.tell_ms() == 10
    scene.work(11.0)
    assert scene.time.tell_ms() == 0


@pytest.mark.spec("CLI-11")
def test_nobody_is_told_more_than_one_window(scene: Scene) -> None:
    scene.time.begins()
    scene.work(60.0)
    assert scene.time.tell_ms() == 1000


def test_once_there_is_no_quota_nothing_is_measured(scene: Scene) -> None:
    scene.time.begins()
    scene.publish(SimpleNamespace(client_quotas=ClientQuotasImage({})))
    scene.time.ends()
    assert scene.peer.time is None


def test_what_is_exempt_counts_for_nobody(scene: Scene) -> None:
    scene.time.begins()
    scene.work(3.0)
    scene.time.exempt()
    scene.time.ends()
    assert scene.taken_s == 0


@pytest.mark.spec("CLI-11")
async def test_of_a_handler_its_steps_count_and_not_its_waiting(scene: Scene) -> None:
    waits: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def handle() -> int:
        scene.work(0.2)
        found = await waits
        scene.work(0.1)
        await asyncio.sleep(0)
        scene.work(0.1)
        return found

    task: asyncio.Task[int] = asyncio.get_running_loop().create_task(Timed(handle(), scene.time))
    await asyncio.sleep(0)
    scene.work(5.0)  # others have their turn
    waits.set_result(7)
    assert await task == 7
    assert scene.taken_s == pytest.approx(0.4)


async def test_of_one_that_is_awaited_as_well(scene: Scene) -> None:
    async def handle() -> str:
        scene.work(0.2)
        await asyncio.sleep(0)
        scene.work(0.2)
        return "done"

    async def outer() -> str:
        scene.work(1.0)
        return await Timed(handle(), scene.time)

    assert await asyncio.get_running_loop().create_task(outer()) == "done"
    assert scene.taken_s == pytest.approx(0.4)


@pytest.mark.parametrize("begun", [False, True])
async def test_one_that_is_cancelled_ends_as_any_other(scene: Scene, begun: bool) -> None:
    ends: list[str] = []

    async def handle() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            scene.work(0.1)
            ends.append("ended")

    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(Timed(handle(), scene.time))
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["ended"] * begun
    assert scene.taken_s == pytest.approx(0.1 * begun)


async def test_what_a_handler_raises_comes_through(scene: Scene) -> None:
    async def handle() -> None:
        await asyncio.sleep(0)
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await asyncio.get_running_loop().create_task(Timed(handle(), scene.time))


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("key", "version", "replica_id", "between"),
    [
        (27, 1, None, True),
        (24, 3, None, False),
        (24, 4, None, True),
        (2, 10, -1, False),
        (2, 10, 3, True),
        (23, 4, 3, True),
        (23, 4, -2, False),
        (3, 12, None, False),
    ],
)
def test_what_brokers_ask_each_other(key: int, version: int, replica_id: int | None, between: bool) -> None:
    assert is_between_brokers(key, version, SimpleNamespace(replica_id=replica_id)) is between


@pytest.mark.spec("CLI-11")
def test_a_percentage_of_nothing_and_one_of_all(scene: Scene) -> None:
    rates: Callable[[float], Any] = lambda percentage: Scene(percentage).rate.limit  # noqa: E731
    assert rates(100.0) == 1.0
    assert rates(1e-300) > 0
