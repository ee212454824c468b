"""Asking the active controller, wherever it is: in this process or behind a connection.

The answer is the controller's; NOT_CONTROLLER, a broken connection or an election in progress only cost time, up to
the deadline. A request may thus be executed twice if an answer got lost; all controller requests bear that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ballast_broker.controller.error_responses import error_response, is_not_controller
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import Endpoint
from ballast_broker.seams import Clock, Network
from ballast_wire.envelope import API_KEY as ENVELOPE_KEY
from ballast_wire.envelope import VERSION as ENVELOPE_VERSION
from ballast_wire.envelope import Asker, disclose_answer, enclose
from ballast_wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

RETRY_S = 0.02
RETRY_MAX_S = 0.25
LOOK_S = 0.25
"""How often one that waits for an answer looks whether the controller is another one by now."""
CALL_TIMEOUT_S = 30.0


class LocalController(Protocol):
    async def handle(
        self, api_key: int, version: int, request: Any, context: Any = None, asker: Asker | None = None
    ) -> Any: ...


class LeaderView(Protocol):
    """What the Raft driver knows of the quorum's leader; -1 for nobody."""

    @property
    def leader_id(self) -> int: ...


class ControllerClient:
    """One per purpose: heartbeats have their own connection, whose end tells the controller that this broker died."""

    def __init__(
        self,
        *,
        node_id: int,
        leader: LeaderView,
        local: LocalController | None,
        endpoints: Callable[[int], Endpoint | None],
        network: Network,
        clock: Clock,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._node_id = node_id
        self._leader = leader
        self._local = local
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._endpoints = endpoints
        self._network = network
        self._links: dict[int, tuple[Endpoint, PeerLink]] = {}
        self._closed = False

    async def call(
        self, request: Any, version: int, *, timeout_s: float | None = None, asker: Asker | None = None
    ) -> Any:
        """The response. ApiError REQUEST_TIMED_OUT where no controller answered in time.

        `asker`: for whom it is, where the controller has to know that; else it is this node's own, or as good as that.
        """
        deadline = self._clock.monotonic() + (self._call_timeout_s if timeout_s is None else timeout_s)
        wait = RETRY_S
        while True:
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._closed:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "No controller answered in time.")
            response = await self._try(request, version, left, asker)
            if response is not None and not is_not_controller(response):
                return response
            await asyncio.sleep(min(wait, max(0.0, deadline - self._clock.monotonic())))
            wait = min(wait * 2, RETRY_MAX_S)

    async def _try(self, request: Any, version: int, timeout_s: float, asker: Asker | None) -> Any | None:
        leader = self._leader.leader_id
        if leader == self._node_id and self._local is not None:
            return await self._ask_here(self._local, request, version, timeout_s, asker)
        link = self._link(leader)
        if link is None:
            return None
        asking = asyncio.get_running_loop().create_task(_ask_there(link, request, version, asker))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, even if nobody waits
        deadline = self._clock.monotonic() + timeout_s
        try:
            while not asking.done():
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._leader.leader_id != leader:
                    return None  # whoever was asked is frozen or cut off: the next one may be asked at once
                await asyncio.wait({asking}, timeout=min(LOOK_S, left))
            return asking.result()
        except (OSError, TimeoutError):
            return None
        finally:
            asking.cancel()

    def _link(self, leader: int) -> PeerLink | None:
        """None where nobody leads, or where nobody knows where the leader is."""
        endpoint = self._endpoints(leader) if leader >= 0 else None
        if endpoint is None:
            return None
        where, link = self._links.get(leader, (None, None))
        if link is None or where != endpoint:
            if link is not None:
                link.close()
            link = PeerLink(self._network, endpoint, self._call_timeout_s)
            self._links[leader] = endpoint, link
        return link

    @staticmethod
    async def _ask_here(
        local: LocalController, request: Any, version: int, timeout_s: float, asker: Asker | None
    ) -> Any | None:
        """An answer that waits for a commit comes late, or never where the other voters are gone."""
        try:
            async with asyncio.timeout(timeout_s):
                return await local.handle(request.API_KEY, version, request, asker=asker)
        except TimeoutError:
            return None

    def close(self) -> None:
        self._closed = True
        for _, link in self._links.values():
            link.close()


async def _ask_there(link: PeerLink, request: Any, version: int, asker: Asker | None) -> Any:
    if asker is None or not await link.knows(ENVELOPE_KEY):  # of a release before: it has no such quotas either
        return await link.call(request, version)
    answer = await link.call(enclose(request, version, asker), ENVELOPE_VERSION)
    request_name = type(request).__name__
    if answer.error_code == ErrorCode.NONE:
        return disclose_answer(answer, request_name, version)
    code = ErrorCode(answer.error_code)
    if code is not ErrorCode.NOT_CONTROLLER:  # the client has done nothing that this could tell it of
        logger.warning("a controller does not take %s for others: %s", request_name, code.name)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    request._version = version
    return error_response(request_name.removesuffix("Request"), request, ApiError(code))
