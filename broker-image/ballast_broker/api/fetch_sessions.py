"""Fetch sessions (KIP-227): the broker remembers what a client follows, and only changes travel. Loop thread only.

Bounded: `max.incremental.fetch.session.cache.slots`. Where all are taken, a session that was idle for
`EVICTION_S` gives way (a follower's only to a follower); else the client gets no session and sends everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ballast_broker.replication.reading import FetchEntry, FetchResult
from ballast_broker.seams import Random
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.fetch import FetchRequest

EVICTION_S = 120.0
NO_SESSION = 0
FIRST_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1

Key = tuple[str | UUID, int]


@dataclass(slots=True)
class Followed:
    """One partition of a session: what is asked, and what was last told of it."""

    key: Key
    entry: FetchEntry
    refusal: ErrorCode | None = None  # an unknown topic, or one that may not be read; looked up again while it is so
    high_watermark: int = -2
    log_start_offset: int = -2

    def is_news(self, result: FetchResult) -> bool:
        """Must this be told? Data, errors and moved offsets are; silence means: as before."""
        return (
            result.error is not ErrorCode.NONE
            or (result.slice is not None and result.slice.size > 0)
            or result.diverging_epoch is not None
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        )

    def told(self, result: FetchResult) -> None:
        failed = result.error is not ErrorCode.NONE  # told again next time, whatever the offsets are then
        self.high_watermark = -2 if failed else result.high_watermark
        self.log_start_offset = -2 if failed else result.log_start_offset


@dataclass(slots=True)
class Session:
    session_id: int
    privileged: bool  # of a follower
    uses_topic_ids: bool
    epoch: int
    last_used: float
    followed: dict[Key, Followed] = field(default_factory=dict)

    def update(self, new: Iterable[Followed], forgotten: Iterable[Key]) -> None:
        for followed in new:
            standing = self.followed.get(followed.key)
            if standing is None:
                self.followed[followed.key] = followed
            else:
                standing.entry, standing.refusal = followed.entry, followed.refusal
        for key in forgotten:
            self.followed.pop(key, None)

    def to_the_end(self, key: Key) -> None:
        """Who got data is read last the next time: fairness where not all fits into one answer."""
        followed = self.followed.pop(key, None)
        if followed is not None:
            self.followed[key] = followed


class FetchSessions:
    def __init__(self, slots: int, random: Random, now: Callable[[], float]) -> None:
        self._slots = slots
        self._random = random
        self._now = now
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, followed: list[Followed], *, privileged: bool, uses_topic_ids: bool) -> Session | None:
        """A new session, or None where there is no room: the client then fetches without."""
        if not followed or not self._make_room(privileged):
            return None
        session_id = 1 + self._random.randrange(2**31 - 2)
        while session_id in self._sessions:
            session_id = 1 + self._random.randrange(2**31 - 2)
        session = Session(session_id, privileged, uses_topic_ids, 1, self._now(), {f.key: f for f in followed})
        self._sessions[session_id] = session
        return session

    def take(self, request: FetchRequest, uses_topic_ids: bool) -> Session:
        """The session that an incremental request continues; raises what Kafka answers where it does not."""
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
        self._sessions.pop(session_id, None)

    def _make_room(self, privileged: bool) -> bool:
        if len(self._sessions) < self._slots:
            return True
        stale = self._now() - EVICTION_S
        candidates = [s for s in self._sessions.values() if s.last_used < stale or (privileged and not s.privileged)]
        if not candidates:
            return False
        self.drop(min(candidates, key=lambda s: s.last_used).session_id)
        return True
