"""Tracks when each broker was last heard of and how much metadata it has applied. PURE; time comes in as a number.

Soft state of the active controller: a new one grants every unfenced broker a full session first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballast_broker.controller.commands.brokers import NEVER, Liveness
from ballast_broker.metadata.image import MetadataImage

NOT_YET = 2**62
"""The records of its shutdown are still being written: nobody can have applied all of them."""
COURTESY_S = 3.0


@dataclass(slots=True)
class Session:
    epoch: int
    heard_at: float
    metadata_offset: int = NEVER
    shutdown_offset: int = NEVER
    heard: bool = False
    """Whether this controller has heard from it; if not, the session was granted on activation."""
    connected: bool = True


class Sessions:
    def __init__(self, session_timeout_s: float) -> None:
        self._timeout_s = session_timeout_s
        self._sessions: dict[int, Session] = {}

    def begin(self, image: MetadataImage, now: float) -> None:
        """A new controller has heard from nobody yet: every unfenced broker gets a full session."""
        self._sessions = {broker.id: Session(broker.epoch, now) for broker in image.cluster.unfenced()}

    def heard(self, broker_id: int, epoch: int, now: float, metadata_offset: int) -> None:
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            session = self._sessions[broker_id] = Session(epoch, now)
        session.heard_at = now
        session.heard = session.connected = True
        session.metadata_offset = metadata_offset

    def shutting_down(self, broker_id: int, offset: int) -> None:
        """All brokers must have applied `offset` before it stops; NOT_YET until its last record is written."""
        session = self._sessions.get(broker_id)
        if session is not None and session.shutdown_offset in (NEVER, NOT_YET):
            session.shutdown_offset = offset

    def forget(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def is_valid(self, broker_id: int, now: float) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and now - session.heard_at < self._timeout_s

    def disconnected(self, broker_id: int) -> None:
        """Its connection closed; it may come back."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.connected = False

    def holds_id(self, broker_id: int, now: float, *, at_its_place: bool) -> bool:
        """Whether to reject another process with this id. `at_its_place`: it has the same listeners.

        Not if the connection closed, which is what a restart looks like. If this controller has not heard from the
        broker yet, only for COURTESY_S, and not if the newcomer has its listeners: two processes cannot share them.
        """
        session = self._sessions.get(broker_id)
        if session is None or not session.connected or not self.is_valid(broker_id, now):
            return False
        return session.heard or (now - session.heard_at < COURTESY_S and not at_its_place)

    def expired(self, image: MetadataImage, now: float) -> list[int]:
        return [broker.id for broker in image.cluster.unfenced() if not self.is_valid(broker.id, now)]

    def next_deadline(self, image: MetadataImage) -> float | None:
        """When the first unfenced broker's session ends, if it stays silent."""
        ends = [
            self._sessions[broker.id].heard_at + self._timeout_s
            for broker in image.cluster.unfenced()
            if broker.id in self._sessions
        ]
        return min(ends, default=None)

    def liveness(self, image: MetadataImage, broker_id: int) -> Liveness:
        offsets = [
            self._sessions[broker.id].metadata_offset
            for broker in image.cluster.unfenced()
            if broker.active and broker.id in self._sessions
        ]
        session = self._sessions.get(broker_id)
        # No other broker is live, so none has to know.
        lowest = min(offsets, default=NOT_YET - 1)
        return Liveness(lowest, session.shutdown_offset if session is not None else NEVER)
