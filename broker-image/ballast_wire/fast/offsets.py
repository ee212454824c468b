"""Encodes OffsetCommit, OffsetFetch and ListOffsets responses by hand: for a group that reads ten thousand partitions
the general engine would block the loop for a third of a second at each commit.

They have the same shape: topics that contain partitions, which are added one after the other. PURE.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from uuid import UUID

from ballast_wire.fast.produce import topic_bytes
from ballast_wire.fast.writer import NO_TAGS, count, string

COMMIT_FIRST_WITH_THROTTLE = 3
COMMIT_FIRST_FLEXIBLE = 8
FETCH_FIRST_WITH_ERROR = 2
FETCH_FIRST_WITH_THROTTLE = 3
FETCH_FIRST_WITH_EPOCH = 5
FETCH_FIRST_FLEXIBLE = 6
FETCH_FIRST_WITH_MANY_GROUPS = 8

LIST_FIRST_WITH_THROTTLE = 2
LIST_FIRST_WITH_EPOCH = 4
LIST_FIRST_FLEXIBLE = 6

_index_and_error = struct.Struct(">ih").pack
_error = struct.Struct(">h").pack
_index_and_offset = struct.Struct(">iq").pack
_with_epoch = struct.Struct(">iqi").pack
_listed = struct.Struct(">ihqq").pack
_listed_with_epoch = struct.Struct(">ihqqi").pack


class _Response(ABC):
    """Has the part of a response's interface that the dispatcher needs."""

    def __init__(self, version: int, *, flexible: bool, first_with_throttle: int) -> None:
        self.version = version
        self.throttle_time_ms = 0
        self._tells_throttle = version >= first_with_throttle
        self._flexible = flexible
        self._tags = NO_TAGS if flexible else b""
        self._errors: list[int] = []
        self._topics: list[bytes] = []
        self._partitions: list[bytes] = []

    def error_codes(self) -> Iterator[int]:
        return iter(self._errors)

    def end_topic(self, key: str | UUID) -> None:
        """Close a topic: its partitions are those added since the previous one."""
        partitions, self._partitions = self._partitions, []
        head = topic_bytes(key, self._flexible) + count(len(partitions), self._flexible)
        self._topics.append(b"".join((head, *partitions, self._tags)))

    def _taken_topics(self) -> bytes:
        topics, self._topics = self._topics, []
        return b"".join((count(len(topics), self._flexible), *topics))

    def _note(self, error: int) -> None:
        if error:
            self._errors.append(error)

    def encode(self, version: int) -> bytes:
        if version != self.version:
            raise ValueError(f"encoded for version {self.version}, not {version}")
        throttle = struct.pack(">i", self.throttle_time_ms) if self._tells_throttle else b""
        return throttle + self._bytes()

    @abstractmethod
    def _bytes(self) -> bytes:
        """Everything after the throttle time."""


class OffsetCommitResponse(_Response):
    def __init__(self, version: int) -> None:
        super().__init__(
            version, flexible=version >= COMMIT_FIRST_FLEXIBLE, first_with_throttle=COMMIT_FIRST_WITH_THROTTLE
        )

    def add(self, index: int, error: int) -> None:
        self._note(error)
        self._partitions.append(_index_and_error(index, error) + self._tags)

    def _bytes(self) -> bytes:
        return self._taken_topics() + self._tags


class OffsetFetchResponse(_Response):
    def __init__(self, version: int) -> None:
        super().__init__(
            version, flexible=version >= FETCH_FIRST_FLEXIBLE, first_with_throttle=FETCH_FIRST_WITH_THROTTLE
        )
        self._groups: list[bytes] = []
        self._own_error = b""

    def add(self, index: int, offset: int, leader_epoch: int, metadata: str, error: int) -> None:
        with_epoch = self.version >= FETCH_FIRST_WITH_EPOCH
        head = _with_epoch(index, offset, leader_epoch) if with_epoch else _index_and_offset(index, offset)
        self._note(error)
        self._partitions.append(head + string(metadata, self._flexible) + _error(error) + self._tags)

    def end_group(self, group_id: str, error: int) -> None:
        """Close a group: its topics are those added since the previous one. Old versions have one unnamed group."""
        self._note(error)
        own_error = _error(error)
        if self.version >= FETCH_FIRST_WITH_MANY_GROUPS:
            group = string(group_id, self._flexible) + self._taken_topics() + own_error + self._tags
            self._groups.append(group)
        else:
            self._groups = [self._taken_topics()]
            self._own_error = own_error if self.version >= FETCH_FIRST_WITH_ERROR else b""

    def _bytes(self) -> bytes:
        head = count(len(self._groups), self._flexible) if self.version >= FETCH_FIRST_WITH_MANY_GROUPS else b""
        return b"".join((head, *self._groups, self._own_error, self._tags))


class ListOffsetsResponse(_Response):
    def __init__(self, version: int) -> None:
        super().__init__(version, flexible=version >= LIST_FIRST_FLEXIBLE, first_with_throttle=LIST_FIRST_WITH_THROTTLE)

    def add(self, index: int, error: int, timestamp: int, offset: int, leader_epoch: int) -> None:
        self._note(error)
        if self.version >= LIST_FIRST_WITH_EPOCH:
            packed = _listed_with_epoch(index, error, timestamp, offset, leader_epoch)
        else:
            packed = _listed(index, error, timestamp, offset)
        self._partitions.append(packed + self._tags)

    def _bytes(self) -> bytes:
        return self._taken_topics() + self._tags
