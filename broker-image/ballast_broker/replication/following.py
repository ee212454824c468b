"""Makes a follower's decisions: what to fetch next, where to truncate its log, how long to back off. PURE.

In a fetch session (KIP-227) both ends remember what was requested, so that only changes are sent. `FetchSession` is the
follower's end: given what is wanted now it tells what to send; it is reset whenever the leader has lost its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

Key = TypeVar("Key", bound=Hashable)

INITIAL_EPOCH = 0
NO_SESSION = 0


class Asked(NamedTuple):
    """The state of one followed partition, as a fetch request has it."""

    fetch_offset: int
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int

    def has_answer_of(self, sent: Asked) -> bool:
        """Whether the answer to `sent` answers this as well: the log start offset only informs the leader."""
        return self[:3] == sent[:3]


class FetchSession(Generic[Key]):
    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.sent: dict[Key, Asked] = {}
        self._dirty: dict[Key, Asked | None] = {}

    def want(self, key: Key, asked: Asked | None) -> None:
        """From now on fetch this of the partition, or (None) leave it out."""
        self._dirty[key] = asked

    def next(self) -> tuple[dict[Key, Asked], list[Key]]:
        """What to send: new or changed partitions, and partitions to forget."""
        changed: dict[Key, Asked] = {}
        forgotten: list[Key] = []
        for key, asked in self._dirty.items():
            before = self.sent.get(key)
            if asked is None:
                if before is not None:
                    del self.sent[key]
                    forgotten.append(key)
            elif asked != before:
                self.sent[key] = asked
                changed[key] = asked
        self._dirty.clear()
        if self.epoch == INITIAL_EPOCH:
            return dict(self.sent), []
        return changed, forgotten

    def answered(self, session_id: int) -> None:
        """The leader accepted the request. Session id 0: it keeps no session, so the next request is full again."""
        if session_id == NO_SESSION:
            self.reset()
        elif self.epoch == INITIAL_EPOCH or session_id == self.session_id:
            self.session_id = session_id
            self.epoch = 1 if self.epoch >= 2**31 - 1 else self.epoch + 1
        else:
            self.reset()

    def reset(self) -> None:
        """The session is lost (an error, a new connection): the next request is a full one."""
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH


class Epochs(Protocol):
    """The part of a log that truncation needs."""

    @property
    def log_end_offset(self) -> int: ...
    def epoch_end_offset(self, epoch: int) -> tuple[int, int]: ...


def truncation_offset(log: Epochs, leader_epoch: int, leader_end_offset: int) -> int:
    """Where to truncate, given the leader's largest epoch up to our last one, and its end offset in the leader's log.

    If our own largest epoch at or below it is a different one, truncate to that one's end and fetch again: the next
    response names an older epoch, until one is found that both logs have.
    """
    end = log.log_end_offset
    if leader_epoch < 0:
        return min(leader_end_offset, end)
    own_epoch, own_end = log.epoch_end_offset(leader_epoch)
    if own_end < 0:
        return min(leader_end_offset, end)
    if own_epoch != leader_epoch:
        return min(own_end, end)
    return min(own_end, leader_end_offset, end)


class Backoff:
    """How long a partition that failed is set aside: 50 ms at first, doubling up to the configured time."""

    FIRST_MS = 50

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._failures: dict[Hashable, int] = {}

    def failed(self, key: Hashable) -> int:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return int(min(self._longest_ms, self.FIRST_MS << min(failures, 16)))

    def worked(self, key: Hashable) -> None:
        if self._failures:
            self._failures.pop(key, None)


def grouped(keys: Mapping[tuple[UUID, int], Asked]) -> dict[UUID, list[tuple[int, Asked]]]:
    """Group by topic, as requests do."""
    topics: dict[UUID, list[tuple[int, Asked]]] = {}
    for (topic_id, partition), asked in keys.items():
        topics.setdefault(topic_id, []).append((partition, asked))
    return topics
