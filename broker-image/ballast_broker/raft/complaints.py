"""Logs persistent problems with other nodes of the quorum, without repeating itself. Loop thread only."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ballast_broker.raft.messages import NOBODY
from ballast_broker.raft.peers import Peers
from ballast_broker.raft.terms import NEVER
from ballast_wire.errors import ErrorCode

logger = logging.getLogger(__name__)

TELL_AGAIN_S = 60.0
NEVER_HEARD = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "it is not of cluster {}, which is this node's by cluster.id or meta.properties",
    ErrorCode.INCONSISTENT_VOTER_SET: "by its controller.quorum.voters one of the two is no voter of cluster {}",
}
"""Permanent refusals: they last until the configuration changes."""


class Complaints:
    def __init__(self, cluster_id: str | None, peers: Peers, now: Callable[[], float]) -> None:
        self._cluster_id = cluster_id
        self._peers = peers
        self._now = now
        self._refused_by: set[int] = set()
        self._told_spoilt: tuple[tuple[int, str], float] = (NOBODY, ""), NEVER

    def answered(self, node_id: int, error: ErrorCode) -> None:
        """Log a permanent refusal only once: the node is asked again and again."""
        if error not in NEVER_HEARD:
            self._refused_by.discard(node_id)
        elif node_id not in self._refused_by:
            self._refused_by.add(node_id)
            found = self._peers.endpoint(node_id)
            where = f"node {node_id}" if found is None else f"{found.host}:{found.port}"
            logger.warning("%s refuses this node: %s", where, NEVER_HEARD[error].format(self._cluster_id))

    def came_spoilt(self, leader: int, what: str, error: Exception) -> None:
        """Log corrupt data once in a while: it is fetched again until it arrives intact."""
        now, subject = self._now(), (leader, what)
        told, at = self._told_spoilt
        if subject != told or now >= at + TELL_AGAIN_S:
            self._told_spoilt = subject, now
            logger.warning("%s came spoilt from node %d, and is asked for again: %s", what, leader, error)
