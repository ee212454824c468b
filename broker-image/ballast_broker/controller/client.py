"""Sends requests to the active controller, whether it is in this process or behind a connection.

The caller gets the controller's response; NOT_CONTROLLER, a broken connection or an election in progress only cost
time, up to the deadline. A request may be executed twice if a response is lost; all controller requests tolerate that.
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
from ballast_broker.seldom import Seldom
from ballast_wire.envelope import API_KEY as ENVELOPE_KEY
from ballast_wire.envelope import VERSION as ENVELOPE_VERSION
from ballast_wire.envelope import Requester, disclose_answer, enclose
from ballast_wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

RETRY_S = 0.02
RETRY_MAX_S = 0.25
LOOK_S = 0.25
"""How often a waiting call checks whether another node has become the controller."""
CALL_TIMEOUT_S = 30.0


class LocalController(Protocol):
    async def handle(
        self, api_key: int, version: int, request: Any, context: Any = None, asker: Requester | None = None
    ) -> Any: ...


class LeaderView(Protocol):
    """What the Raft driver knows of the quorum's leader; -1 for nobody."""

    @property
    def leader_id(self) -> int: ...


class ControllerClient:
    """Use one per purpose: heartbeats have their own connection; its end tells the controller that this broker died."""

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
        self._refusals = Seldom()  # each request may be refused
        self._closed = False

    async def call(
        self, request: Any, version: int, *, timeout_s: float | None = None, asker: Requester | None = None
    ) -> Any:
        """Return the response; raise ApiError REQUEST_TIMED_OUT if no controller answered in time.

        `asker`: the requester, if the controller has to know it; None for this node's own requests, too.
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

    async def _try(self, request: Any, version: int, timeout_s: float, asker: Requester | None) -> Any | None:
        leader = self._leader.leader_id
        if leader == self._node_id and self._local is not None:
            return await self._ask_here(self._local, request, version, timeout_s, asker)
        link = self._link(leader)
        if link is None:
            return None
        asking = asyncio.get_running_loop().create_task(self._ask_there(link, request, version, asker))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved even if never awaited
        deadline = self._clock.monotonic() + timeout_s
        try:
            while not asking.done():
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._leader.leader_id != leader:
                    return None  # the node asked is no longer the leader (or hangs): let the caller try the next
                await asyncio.wait({asking}, timeout=min(LOOK_S, left))
            return asking.result()
        except (OSError, TimeoutError):
            return None
        finally:
            asking.cancel()

    def _link(self, leader: int) -> PeerLink | None:
        """None if there is no leader or its endpoint is unknown."""
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

    async def _ask_there(self, link: PeerLink, request: Any, version: int, asker: Requester | None) -> Any:
        if asker is None or not await link.knows(ENVELOPE_KEY):  # older release: has no such quotas
            return await link.call(request, version)
        answer = await link.call(enclose(request, version, asker), ENVELOPE_VERSION)
        request_name = type(request).__name__
        if answer.error_code == ErrorCode.NONE:
            return disclose_answer(answer, request_name, version)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NOT_CONTROLLER:  # not the client's fault, so not reported to it
            if self._refusals.is_due((request_name, code)):
                logger.warning("the controller refuses %s forwarded by this broker: %s", request_name, code.name)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        request._version = version
        return error_response(request_name.removesuffix("Request"), request, ApiError(code))

    @staticmethod
    async def _ask_here(
        local: LocalController, request: Any, version: int, timeout_s: float, asker: Requester | None
    ) -> Any | None:
        """The timeout is needed: the response may wait for a commit that never comes if the other voters are gone."""
        try:
            async with asyncio.timeout(timeout_s):
                return await local.handle(request.API_KEY, version, request, asker=asker)
        except TimeoutError:
            return None

    def close(self) -> None:
        self._closed = True
        for _, link in self._links.values():
            link.close()
