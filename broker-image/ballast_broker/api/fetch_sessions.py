"""Fetch sessions (KIP-227): the broker remembers what a client follows, so only changes travel. Loop thread only.

A follower's session ends with its connection; over the next one it starts a new one. The number of sessions is bounded
by `max.incremental.fetch.session.cache.slots`. If all slots are taken, a session idle for `EVICTION_S` is evicted (a
follower may also evict a consumer's); otherwise the client gets no session and sends full requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from ballast_broker.net_reply import Peer
from ballast_broker.replication.watching import Watch, Watched
from ballast_broker.seams import Random
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.fetch import FetchRequest

EVICTION_S: Final = 120.0
NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1

Key = tuple[str | UUID, int]


class FetchParameters(NamedTuple):
    """The request parameters that apply to all partitions of a session."""

    replica_id: int
    replica_epoch: int
    isolation: int
    rack: str


def asker_of(request: FetchRequest) -> FetchParameters:
    return FetchParameters(request.replica_id, request.replica_epoch, request.isolation, request.rack)


@dataclass(slots=True, eq=False)
class Followed(Watched):
    """One partition, as the client names it."""

    key: Key = ("", -1)
    refusal: ErrorCode | None = None  # unknown topic, or not authorized; rechecked with every request while set


@dataclass(slots=True)
class Session:
    session_id: int
    asker: FetchParameters
    uses_topic_ids: bool
    epoch: int
    last_used: float
    followed: dict[Key, Followed] = field(default_factory=dict)
    refused: dict[Key, Followed] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    closed: bool = False
    checked_for: Hashable = None  # the requester and permissions `refused` was computed for

    @property
    def of_follower(self) -> bool:
        return self.asker.replica_id >= 0

    def update(self, new: Iterable[Followed], forgotten: Iterable[Key]) -> None:
        for followed in new:
            standing = self.followed.get(followed.key)
            if standing is None:
                standing = self.followed[followed.key] = followed
                standing.watch = self.watch
            else:
                standing.ask(followed)
                standing.refusal = followed.refusal
            self.settle(standing)
        for key in forgotten:
            gone = self.followed.pop(key, None)
            if gone is not None:
                gone.leave()
                self.refused.pop(key, None)

    def settle(self, followed: Followed) -> None:
        """Put the partition where it belongs: to be read, or refused."""
        if followed.refusal is None:
            self.refused.pop(followed.key, None)
            self.watch.mark(followed)
        else:
            followed.leave()
            self.refused[followed.key] = followed

    def asked_by(self, asker: FetchParameters) -> None:
        if asker != self.asker:
            self.asker = asker
            for followed in self.followed.values():
                self.settle(followed)

    def close(self) -> None:
        self.closed = True
        for followed in self.followed.values():
            followed.leave()


class FetchSessions:
    def __init__(self, slots: int, random: Random, now: Callable[[], float]) -> None:
        self._slots = slots
        self._random = random
        self._now = now
        self._sessions: dict[int, Session] = {}
        self._of_followers: dict[Peer, Session] = {}  # the latest of each connection

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, followed: list[Followed], asker: FetchParameters, *, uses_topic_ids: bool) -> Session | None:
        """A new session, or None if there is no room: the client then fetches without one."""
        if not self._make_room(for_follower=asker.replica_id >= 0):
            return None
        session_id = 1 + self._random.randrange(2**31 - 2)
        while session_id in self._sessions:
            session_id = 1 + self._random.randrange(2**31 - 2)
        session = Session(session_id, asker, uses_topic_ids, 1, self._now())
        session.update(followed, ())
        self._sessions[session_id] = session
        return session

    def take(self, request: FetchRequest, uses_topic_ids: bool) -> Session:
        """The session that an incremental request continues; raises Kafka's error if there is none."""
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used = self._now()
        return session

    def drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def ends_with(self, peer: Peer, session: Session) -> None:
        """Bind a follower's session to its connection, which has at most one: a new session ends the previous one."""
        before = self._of_followers.get(peer)
        self._of_followers[peer] = session
        if before is None:
            peer.on_close(partial(self._hung_up, peer))
        else:
            self._end(before)

    def _hung_up(self, peer: Peer) -> None:
        self._end(self._of_followers.pop(peer))

    def _end(self, session: Session) -> None:
        if self._sessions.get(session.session_id) is session:
            self.drop(session.session_id)

    def _make_room(self, *, for_follower: bool) -> bool:
        if len(self._sessions) < self._slots:
            return True
        stale = self._now() - EVICTION_S
        candidates = [s for s in self._sessions.values() if s.last_used < stale or (for_follower and not s.of_follower)]
        if not candidates:
            return False
        self.drop(min(candidates, key=lambda s: s.last_used).session_id)
        return True
