"""Encodes a follower's Fetch request and decodes the response by hand: version 16 only. Records are not copied.

`FetchRequest` has a message's interface (`encode`, `API_KEY`, its class name), and `decode_response` returns an object
with the same attributes as the message, so the message engine can be used instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from ballast_wire.fast.reader import MalformedRequest, Reader
from ballast_wire.fast.writer import unsigned_varint

VERSION: Final = 16
API_KEY: Final = 1
TAG_REPLICA_STATE: Final = 1
TAG_DIVERGING_EPOCH: Final = 0

_HEAD: Final = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation, session id, session epoch
_PARTITION: Final = struct.Struct(">iiqiqib")  # and its empty tags
_NUMBER: Final = struct.Struct(">i")
_REPLICA_STATE: Final = struct.Struct(">iqb")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_ANSWER: Final = struct.Struct(">ihqqq")
_DIVERGING: Final = struct.Struct(">iq")


class AskedPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[UUID, Sequence[AskedPartition]]]
    forgotten: Sequence[tuple[UUID, Sequence[int]]]

    @property
    def API_KEY(self) -> int:  # as messages have it
        return API_KEY

    def encode(self, version: int = VERSION) -> bytes:
        if version != VERSION:
            raise ValueError(f"followers ask in version {VERSION}, not {version}")
        head = _HEAD.pack(self.max_wait_ms, self.min_bytes, self.max_bytes, 0, self.session_id, self.session_epoch)
        parts = [head, unsigned_varint(len(self.topics) + 1)]
        pack = _PARTITION.pack
        for topic_id, partitions in self.topics:
            parts += [topic_id.bytes, unsigned_varint(len(partitions) + 1)]
            parts += [pack(*partition, 0) for partition in partitions]
            parts.append(b"\0")
        parts.append(unsigned_varint(len(self.forgotten) + 1))
        for topic_id, numbers in self.forgotten:
            parts += [topic_id.bytes, unsigned_varint(len(numbers) + 1)]
            parts += [_NUMBER.pack(number) for number in numbers]
            parts.append(b"\0")
        state = _REPLICA_STATE.pack(self.replica_id, self.replica_epoch, 0)
        # No rack; one tag: the replica state.
        parts += [b"\1\1", bytes((TAG_REPLICA_STATE, len(state))), state]
        return b"".join(parts)

    @staticmethod
    def decode_response(body: memoryview, version: int = VERSION) -> FetchResponse:
        try:
            return _decode(Reader(body))
        except (struct.error, IndexError) as error:
            raise MalformedRequest(str(error)) from error


class DivergingEpoch(NamedTuple):
    epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    partition_index: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: DivergingEpoch | None
    records: memoryview | None


class FetchedTopic(NamedTuple):
    topic_id: UUID
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    error_code: int
    session_id: int
    responses: list[FetchedTopic]


@lru_cache(maxsize=4096)
def _topic_id(value: bytes) -> UUID:
    return UUID(bytes=value)


def _decode(reader: Reader) -> FetchResponse:
    _, error, session = _RESPONSE_HEAD.unpack(reader.take(_RESPONSE_HEAD.size))
    topics = []
    for _ in range(reader.count(True)):
        topic_id = _topic_id(bytes(reader.take(16)))
        partitions = [_decode_partition(reader) for _ in range(reader.count(True))]
        _skip(reader.tags())
        topics.append(FetchedTopic(topic_id, partitions))
    return FetchResponse(error, session, topics)  # ignores the leaders' endpoints, which a broker knows


def _decode_partition(reader: Reader) -> FetchedPartition:
    number, error, high_watermark, _, start = _ANSWER.unpack(reader.take(_ANSWER.size))
    for _ in range(reader.count(True)):  # aborted transactions; -1 for null
        reader.take(16)
        _skip(reader.tags())
    reader.take(4)  # preferred read replica
    records = reader.bytes_view(True)
    diverging = None
    for tag, value in reader.tags():
        if tag == TAG_DIVERGING_EPOCH:
            diverging = DivergingEpoch(*_DIVERGING.unpack_from(value))
    return FetchedPartition(number, error, high_watermark, start, diverging, records)


def _skip(tags: Iterable[object]) -> None:
    for _ in tags:
        pass
