"""Hands out producer ids from blocks that the controller allocates to this broker. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.controller.client import ControllerClient
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

VERSION = 0
TIMEOUT_S = 10.0


class ProducerIds:
    def __init__(self, node_id: int, broker_epoch: Callable[[], int], controller: ControllerClient) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._next = 0
        self._end = 0
        self._asking = asyncio.Lock()

    async def next(self) -> int:
        async with self._asking:
            if self._next >= self._end:
                await self._ask()
            self._next += 1
            return self._next - 1

    async def _ask(self) -> None:
        request = message("AllocateProducerIdsRequest")(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._controller.call(request, VERSION, timeout_s=TIMEOUT_S)
        except ApiError as late:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from late
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
