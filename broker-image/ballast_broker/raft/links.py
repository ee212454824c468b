"""Connects to the other nodes of the quorum on demand, with a connection per purpose.

A fetch waits at the leader for up to half a second, and a connection is answered in order: so votes and the like use
a connection of their own. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ballast_broker.raft.voters import Endpoint
from ballast_broker.seams import Channel, Network
from ballast_wire.messages import message

CONNECT_TIMEOUT_S = 2.0
"""An unreachable peer is retried this often: the kernel's own SYN retries back off exponentially."""
API_VERSIONS_VERSION = 3  # controllers of earlier releases answer no lower one
SOFTWARE = {"client_software_name": "ballast", "client_software_version": "node"}


class PeerLink:
    """One connection to one peer, reopened when it is closed."""

    def __init__(self, network: Network, endpoint: Endpoint, timeout_s: float) -> None:
        self._network = network
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._asking = 0
        self._known: tuple[Channel, dict[int, int]] | None = None

    async def knows(self, api_key: int) -> bool:
        """Whether the peer supports this API: an older release may close the connection instead. Fails like `call`."""
        return await self.highest(api_key) >= 0

    async def highest(self, api_key: int) -> int:
        """The highest version of this API that the peer supports, -1 if none is known. Fails like `call`.

        Asked once per connection, since the next one may reach another release.
        """
        known = self._known
        if known is None or known[0] is not self._channel or known[0].closed:
            channel, answer = await self._call(message("ApiVersionsRequest")(**SOFTWARE), API_VERSIONS_VERSION, 1.0)
            if answer.error_code:  # not cached: ask again next time
                return -1
            known = self._known = channel, {each.api_key: each.max_version for each in answer.api_keys}
        return known[1].get(api_key, -1)

    async def call(self, request: Any, version: int, *, patience: float = 1.0) -> Any:
        """The response. After ConnectionRefusedError, OSError or TimeoutError the next call reconnects."""
        _, answer = await self._call(request, version, patience)
        return answer

    async def _call(self, request: Any, version: int, patience: float) -> tuple[Channel, Any]:
        """The response, and the connection by which it came."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            # The limit takes effect one turn of the loop late: after a stall of this process the time is up and the
            # response is there as well, and then the response counts.
            timer = loop.call_later(self._timeout_s * patience, lambda: limit.reschedule(loop.time()))
            self._asking += 1
            try:
                return await self._ask(request, version)
            except asyncio.CancelledError:
                # Close, so that the next request does not queue behind an unwanted response; unless others are waiting.
                if self._asking == 1 or limit.expired():
                    self.close()
                raise
            finally:
                self._asking -= 1
                timer.cancel()

    async def _ask(self, request: Any, version: int) -> tuple[Channel, Any]:
        channel = await self._open()
        try:
            return channel, await channel.call(request, version)
        except Exception:
            self.close()
            raise

    async def _open(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.closed:
                self._channel = await self._network.connect(
                    self._endpoint.host, self._endpoint.port, timeout_s=min(self._timeout_s, CONNECT_TIMEOUT_S)
                )
            return self._channel

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
