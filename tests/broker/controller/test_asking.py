"""Asking the active controller costs no more time than was given, wherever it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ballast_broker.controller.client import ControllerClient
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


@pytest.mark.spec("CLU-05")
async def test_a_controller_in_this_process_that_cannot_commit_is_not_waited_for() -> None:
    """As when the other voters were stopped first: a broker that leaves must not hang on its own controller."""

    class Stuck:
        async def handle(self, api_key: int, version: int, request: Any, context: Any = None) -> Any:
            await asyncio.get_running_loop().create_future()

    loop = asyncio.get_running_loop()
    client = ControllerClient(
        node_id=1,
        leader=SimpleNamespace(leader_id=1),
        local=Stuck(),
        endpoints={},
        network=SimpleNamespace(),  # type: ignore[arg-type]
        clock=SimpleNamespace(monotonic=loop.time, wall_ms=lambda: 0),
        call_timeout_s=0.05,
    )
    with pytest.raises(ApiError) as refused:
        await client.call(message("BrokerHeartbeatRequest")(broker_id=1, broker_epoch=1), 1)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    client.close()
