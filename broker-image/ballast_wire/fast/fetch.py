"""Parses Fetch requests and encodes responses by hand: records go from file to socket untouched. Versions 4 to 18.

A response is a list of parts: bytes, and between them the caller's data objects (with a `size`), which the connection
sends by `sendfile`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ballast_wire.fast import writer
from ballast_wire.fast.produce import NodeEndpoint, endpoint_tag, topic_bytes, topic_key
from ballast_wire.fast.reader import MalformedRequest, Reader
from ballast_wire.fast.writer import unsigned_varint

FIRST_VERSION: Final = 4
LAST_VERSION: Final = 18
FIRST_WITH_START_OFFSET: Final = 5
FIRST_WITH_SESSION: Final = 7
FIRST_WITH_LEADER_EPOCH: Final = 9
FIRST_WITH_RACK: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15
FIRST_WITH_ENDPOINTS: Final = 16
TAG_REPLICA_STATE: Final = 1
TAG_DIRECTORY_ID: Final = 0
TAG_HIGH_WATERMARK: Final = 1
NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
NO_HIGH_WATERMARK: Final = 2**63 - 1
# Partition, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes.
_FLEXIBLE_PARTITION: Final = struct.Struct(">iiqiqi")
# Partition, error, high watermark, last stable offset, log start offset, count of aborted, preferred replica.
_FLEXIBLE_ANSWER: Final = struct.Struct(">ihqqqBi")
_new_tuple: Final = tuple.__new__  # half the cost of a NamedTuple's own constructor


class Data(Protocol):
    """Bytes in a file."""

    @property
    def size(self) -> int: ...


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    directory_id: UUID | None = None
    high_watermark: int = NO_HIGH_WATERMARK


class FetchTopic(NamedTuple):
    topic: str | UUID
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[tuple[str | UUID, list[int]]]
    rack: str


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class FetchAnswer(NamedTuple):
    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_replica: int = -1
    data: Data | bytes | None = None
    diverging: EpochEnd | None = None
    leader: tuple[int, int] | None = None  # (id, epoch) of the leader to ask instead


def parse_fetch(buffer: memoryview, position: int, version: int) -> FetchRequest:
    reader = Reader(buffer, position)
    try:
        return _parse(reader, version, version >= FIRST_FLEXIBLE)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(str(error)) from error


def _parse(reader: Reader, version: int, flexible: bool) -> FetchRequest:
    replica_id, replica_epoch = (reader.int32() if version < FIRST_WITH_REPLICA_STATE else -1), -1
    max_wait_ms, min_bytes, max_bytes = reader.int32(), reader.int32(), reader.int32()
    isolation = reader.int8()
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= FIRST_WITH_SESSION:
        session_id, session_epoch = reader.int32(), reader.int32()
    topics = [_parse_topic(reader, version, flexible) for _ in range(reader.count(flexible))]
    forgotten = []
    if version >= FIRST_WITH_SESSION:
        forgotten = [_parse_forgotten(reader, version, flexible) for _ in range(reader.count(flexible))]
    rack = (reader.string(flexible) or "") if version >= FIRST_WITH_RACK else ""
    for tag, value in reader.tags() if flexible else ():
        if tag == TAG_REPLICA_STATE and version >= FIRST_WITH_REPLICA_STATE:
            state = Reader(value)
            replica_id, replica_epoch = state.int32(), state.int64()
    return FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def _parse_topic(reader: Reader, version: int, flexible: bool) -> FetchTopic:
    topic = topic_key(reader, version >= FIRST_WITH_TOPIC_ID, flexible)
    if flexible:
        partitions = _flexible_partitions(reader)
        reader.skip_tags()
    else:
        partitions = [_parse_partition(reader, version) for _ in range(reader.count(flexible))]
    return FetchTopic(topic, partitions)


def _parse_partition(reader: Reader, version: int) -> FetchPartition:
    partition = reader.int32()
    leader_epoch = reader.int32() if version >= FIRST_WITH_LEADER_EPOCH else -1
    fetch_offset = reader.int64()
    start_offset = reader.int64() if version >= FIRST_WITH_START_OFFSET else -1
    return FetchPartition(partition, leader_epoch, fetch_offset, -1, start_offset, reader.int32())


def _flexible_partitions(reader: Reader) -> list[FetchPartition]:
    """Parse all partitions in one loop: a request may name very many."""
    count = reader.count(True)
    buffer, position = reader.buffer, reader.position
    partitions = []
    for _ in range(count):
        fields = _FLEXIBLE_PARTITION.unpack_from(buffer, position)
        position += _FLEXIBLE_PARTITION.size
        directory_id, high_watermark = None, NO_HIGH_WATERMARK
        if buffer[position]:
            reader.position = position
            for tag, value in reader.tags():
                if tag == TAG_DIRECTORY_ID:
                    directory_id = Reader(value).uuid()
                elif tag == TAG_HIGH_WATERMARK:
                    high_watermark = Reader(value).int64()
            position = reader.position
        else:
            position += 1
        partitions.append(_new_tuple(FetchPartition, (*fields, directory_id, high_watermark)))
    reader.position = position
    return partitions


def _parse_forgotten(reader: Reader, version: int, flexible: bool) -> tuple[str | UUID, list[int]]:
    topic = topic_key(reader, version >= FIRST_WITH_TOPIC_ID, flexible)
    partitions = [reader.int32() for _ in range(reader.count(flexible))]
    if flexible:
        reader.skip_tags()
    return topic, partitions


Parts = list[bytes | Data]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[FetchAnswer]]],
    *,
    error: int = 0,
    session_id: int = NO_SESSION,
    leaders: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> Parts:
    """The frame in parts, length first: bytes are joined, file data stays separate."""
    flexible = version >= FIRST_FLEXIBLE
    out = bytearray(struct.pack(">ii", 0, correlation_id))
    if flexible:
        out += b"\x00"
    out += struct.pack(">i", throttle_ms)
    if version >= FIRST_WITH_SESSION:
        out += struct.pack(">hi", error, session_id)
    out += writer.count(len(topics), flexible)
    parts: Parts = []
    size = 0
    for topic, answers in topics:
        out += topic_bytes(topic, flexible)
        out += writer.count(len(answers), flexible)
        for answer in answers:
            _put_answer(out, answer, version, flexible)
            data = answer.data
            length = 0 if data is None else (len(data) if isinstance(data, bytes) else data.size)
            out += unsigned_varint(length + 1) if flexible else struct.pack(">i", length)
            if isinstance(data, bytes):
                out += data
            elif data is not None and length:
                size += len(out) + length
                parts += [bytes(out), data]
                out = bytearray()
            if flexible:
                out += _tags(answer)
        if flexible:
            out += b"\x00"
    if flexible:
        out += endpoint_tag(leaders) if leaders and version >= FIRST_WITH_ENDPOINTS else b"\x00"
    size += len(out)
    parts.append(bytes(out))
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = struct.pack(">i", size - 4) + first[4:]
    return parts


def _put_answer(out: bytearray, answer: FetchAnswer, version: int, flexible: bool) -> None:
    if flexible and not answer.aborted:
        partition, error, high_watermark, last_stable, log_start, aborted, preferred = answer[:7]
        lists = 0 if aborted is None else 1
        out += _FLEXIBLE_ANSWER.pack(partition, error, high_watermark, last_stable, log_start, lists, preferred)
        return
    out += struct.pack(">ihqq", answer.partition, answer.error, answer.high_watermark, answer.last_stable_offset)
    if version >= FIRST_WITH_START_OFFSET:
        out += struct.pack(">q", answer.log_start_offset)
    if answer.aborted is None:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        out += writer.count(len(answer.aborted), flexible)
        for producer_id, first_offset in answer.aborted:
            out += struct.pack(">qq", producer_id, first_offset) + (b"\x00" if flexible else b"")
    if version >= FIRST_WITH_RACK:
        out += struct.pack(">i", answer.preferred_replica)


def _tags(answer: FetchAnswer) -> bytes:
    if answer.diverging is None and answer.leader is None:
        return b"\x00"
    body, count = b"", 0
    if answer.diverging is not None:
        body += b"\x00\x0d" + struct.pack(">iq", *answer.diverging) + b"\x00"
        count += 1
    if answer.leader is not None:
        body += b"\x01\x09" + struct.pack(">ii", *answer.leader) + b"\x00"
        count += 1
    return bytes([count]) + body
