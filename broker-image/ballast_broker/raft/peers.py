"""Knows the addresses of the other nodes of the quorum, and keeps the connections to them. Loop thread only.

Voters have the addresses in the newest voter set. A leader tells its own address, which takes precedence: it may have
restarted elsewhere, or not be a voter in our log. Bootstrap servers have numbers below -1 instead of ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import DYNAMIC, Endpoint, VoterSet
from ballast_broker.raft.wire import Quorum
from ballast_broker.seams import Network

FIRST_BOOTSTRAP = -2


@dataclass(slots=True)
class _Links:
    endpoint: Endpoint
    by_purpose: dict[str, PeerLink] = field(default_factory=dict)


class Peers:
    def __init__(
        self, me: int, quorum: Quorum, voters: Callable[[], VoterSet], network: Network, timeout_s: float
    ) -> None:
        self._me = me
        self._quorum = quorum
        self._voters = voters
        self._network = network
        self._timeout_s = timeout_s
        self._bootstrap = {FIRST_BOOTSTRAP - number: each for number, each in enumerate(quorum.bootstrap)}
        self._learned: dict[int, Endpoint] = {}
        self._links: dict[int, _Links] = {}

    @property
    def bootstrap_ids(self) -> tuple[int, ...]:
        return tuple(self._bootstrap)

    def learn(self, node_id: int, endpoint: Endpoint) -> None:
        """A leader told its address; ignored if the configuration has the voters' addresses."""
        if node_id != self._me and self._configured(node_id) is None:
            self._learned[node_id] = endpoint

    def forget(self, node_id: int) -> None:
        """The learned address is no longer valid."""
        self._learned.pop(node_id, None)

    def _configured(self, node_id: int) -> Endpoint | None:
        """The address of a static quorum's voter; port 0 is none: a quorum of one need not configure its address."""
        found = self._quorum.endpoints.get(node_id) if self._voters().version < DYNAMIC else None
        return found if found is not None and found.port else None

    def endpoint(self, node_id: int) -> Endpoint | None:
        configured = self._configured(node_id)
        if configured is not None:
            return configured
        name = self._quorum.listener_name
        if node_id == self._me and (own := self._quorum.own_endpoints().get(name)):
            return own
        found = self._learned.get(node_id) or self._bootstrap.get(node_id)
        if found is None:
            voter = self._voters().find(node_id)
            found = None if voter is None else voter.endpoints.get(name)
        return found or self._quorum.endpoints.get(node_id)

    def link(self, node_id: int, purpose: str) -> PeerLink:
        """One connection per purpose: a waiting response holds up those behind it."""
        endpoint = self.endpoint(node_id)
        if endpoint is None:
            raise OSError(f"nobody knows where node {node_id} is")
        links = self._links.get(node_id)
        if links is None or links.endpoint != endpoint:
            if links is not None:
                self._close(links)
            links = self._links[node_id] = _Links(endpoint)
        link = links.by_purpose.get(purpose)
        if link is None:
            link = links.by_purpose[purpose] = PeerLink(self._network, endpoint, self._timeout_s)
        return link

    @staticmethod
    def _close(links: _Links) -> None:
        for link in links.by_purpose.values():
            link.close()

    def close(self) -> None:
        for links in self._links.values():
            self._close(links)
