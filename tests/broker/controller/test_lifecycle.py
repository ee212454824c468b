"""The broker's side of registration while controllers do not answer, and how a new controller handles a restart."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.controller.cluster import CLUSTER_ID

from ballast_broker.controller.lifecycle import (
    HEARTBEAT_TIMEOUT_S,
    BrokerIdentity,
    BrokerLifecycle,
    LifecycleState,
    RegistrationRefused,
)
from ballast_broker.controller.sessions import Sessions
from ballast_wire.errors import ApiError, ErrorCode


class Silent:
    """A closed controller client: it refuses everything at once."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def call(self, request: Any, version: int, *, timeout_s: float) -> Any:
        self.waited.append(timeout_s)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)


def lifecycle(client: Any) -> BrokerLifecycle:
    identity = BrokerIdentity(1, CLUSTER_ID, uuid.uuid4(), {})
    return BrokerLifecycle(
        identity=identity, client=client, directories=lambda: [uuid.uuid4()],
        metadata_offset=lambda: 0,
    )  # fmt: skip


async def _run_until(client: Silent, broker: BrokerLifecycle, calls: int) -> None:
    task = asyncio.ensure_future(broker.run())
    while len(client.waited) < calls:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.spec("CLU-01")
async def test_who_registers_in_vain_gives_others_their_turn_and_the_controller_more_time() -> None:
    client = Silent()
    await _run_until(client, lifecycle(client), 5)
    assert client.waited[:5] == [4.0, 8.0, 16.0, 32.0, 32.0]


@pytest.mark.spec("CLU-01")
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ErrorCode.UNSUPPORTED_VERSION, "a feature of the cluster has a level that this release does not know"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "INCONSISTENT_CLUSTER_ID"),
    ],
    ids=["older", "of another cluster"],
)
async def test_who_can_never_join_is_told_why(code: ErrorCode, why: str) -> None:
    class Refusing:
        async def call(self, request: Any, version: int, *, timeout_s: float) -> Any:
            return SimpleNamespace(error_code=int(code))

    with pytest.raises(RegistrationRefused, match=why):
        await lifecycle(Refusing()).run()


@pytest.mark.spec("CLU-01")
async def test_a_heartbeat_that_nobody_answered_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Silent()
    broker = lifecycle(client)

    async def registered() -> None:
        broker.state = LifecycleState.RUNNING

    monkeypatch.setattr(broker, "_register", registered)
    async with asyncio.timeout(1.9):  # the interval is 2 s
        await _run_until(client, broker, 3)
    assert set(client.waited) == {HEARTBEAT_TIMEOUT_S}


@pytest.mark.spec("CLU-01")
def test_a_new_controller_takes_a_process_at_the_same_place_for_a_restart() -> None:
    sessions = Sessions(9.0)
    broker = SimpleNamespace(id=1, epoch=5)
    image: Any = SimpleNamespace(cluster=SimpleNamespace(unfenced=lambda: [broker]))
    sessions.begin(image, now=100.0)
    assert sessions.holds_id(1, 100.5, at_its_place=False), "it may still be there, and has had no time to say so"
    assert not sessions.holds_id(1, 100.5, at_its_place=True)
    sessions.heard(1, 5, 101.0, 0)
    assert sessions.holds_id(1, 101.5, at_its_place=True), "it lives"
