"""Parses Produce requests and encodes responses by hand: here every microsecond counts. Versions 3 to 13.

The batches stay in the request's buffer: they are stamped there and written from there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from ballast_wire.errors import ErrorCode
from ballast_wire.fast import writer
from ballast_wire.fast.reader import MalformedRequest, Reader
from ballast_wire.fast.writer import unsigned_varint

FIRST_VERSION: Final = 3
LAST_VERSION: Final = 13
FIRST_FLEXIBLE: Final = 9
FIRST_WITH_START_OFFSET: Final = 5
FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_ERROR_MESSAGES: Final = 8
FIRST_WITH_LEADER: Final = 10
FIRST_WITH_TOPIC_ID: Final = 13

_ANSWER: Final = struct.Struct(">ihqq")
_ANSWER_WITH_START: Final = struct.Struct(">ihqqq")
_THROTTLE: Final = struct.Struct(">i")
_number_and_byte: Final = struct.Struct(">iB").unpack_from
_new_tuple: Final = tuple.__new__  # half the cost of a NamedTuple's own constructor
# The end of an answer without an error: no record errors, no message, no tags.
_GOOD_END: Final = {
    version: b"\x01\x00\x00" if version >= FIRST_FLEXIBLE else b"\x00\x00\x00\x00\xff\xff"
    for version in range(FIRST_WITH_ERROR_MESSAGES, LAST_VERSION + 1)
}


class ProducePartition(NamedTuple):
    partition: int
    batches: memoryview | None


class ProduceTopic(NamedTuple):
    topic: str | UUID
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProduceAnswer(NamedTuple):
    partition: int
    error: int = 0
    first_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    leader_id: int = -1  # sent with NOT_LEADER_OR_FOLLOWER
    leader_epoch: int = -1
    record_errors: Sequence[tuple[int, str]] = ()


def good_answer(partition: int, first_offset: int, log_append_time: int, log_start_offset: int) -> ProduceAnswer:
    answer = (partition, 0, first_offset, log_append_time, log_start_offset, None, -1, -1, ())
    return _new_tuple(ProduceAnswer, answer)


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


def parse_produce(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    flexible = version >= FIRST_FLEXIBLE
    reader = Reader(buffer, position)
    try:
        transactional_id = reader.string(flexible)
        acks = reader.int16()
        timeout_ms = reader.int32()
        topics = []
        for _ in range(reader.count(flexible)):
            topic = topic_key(reader, version >= FIRST_WITH_TOPIC_ID, flexible)
            if flexible:
                partitions = _flexible_partitions(reader)
                reader.skip_tags()
            else:
                count = reader.count(flexible)
                partitions = [ProducePartition(reader.int32(), reader.bytes_view(flexible)) for _ in range(count)]
            topics.append(ProduceTopic(topic, partitions))
        if flexible:
            reader.skip_tags()
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(str(error)) from error


def _flexible_partitions(reader: Reader) -> list[ProducePartition]:
    """Reads like `int32`, `bytes_view` and `skip_tags`, inlined: most producers name several partitions."""
    count = reader.count(True)
    buffer, position, end = reader.buffer, reader.position, reader.end
    partitions = []
    for _ in range(count):
        number, byte = _number_and_byte(buffer, position)
        position += 5
        size, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift > 28:
                raise MalformedRequest("varint is too long")
            byte = buffer[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
        batches = None
        if size:
            start, position = position, position + size - 1
            if position > end:
                raise MalformedRequest("a field reaches past the end of the request")
            batches = buffer[start:position]
        partitions.append(_new_tuple(ProducePartition, (number, batches)))
        if buffer[position]:
            reader.position = position
            reader.skip_tags()
            position = reader.position
        else:
            position += 1
    reader.position = position
    return partitions


def each_once(topics: list[ProduceTopic]) -> list[ProduceTopic]:
    """Of a partition that is named twice only the last one counts, as in Apache Kafka."""
    if (len(topics) == 1 or len({topic for topic, _ in topics}) == len(topics)) and all(
        len({number for number, _ in partitions}) == len(partitions) for _, partitions in topics
    ):
        return topics
    once: dict[str | UUID, dict[int, ProducePartition]] = {}
    for topic, partitions in topics:
        once.setdefault(topic, {}).update({each.partition: each for each in partitions})
    return [ProduceTopic(topic, [*by_number.values()]) for topic, by_number in once.items()]


def topic_key(reader: Reader, by_id: bool, flexible: bool) -> str | UUID:
    """The topic, by name or id."""
    if by_id:
        return reader.uuid()
    name = reader.string(flexible)
    if name is None:
        raise MalformedRequest("a topic without a name")
    return name


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[ProduceAnswer]]],
    leaders: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> bytes:
    """The whole frame, length first. `leaders`: the endpoints of the leaders named in answers."""
    flexible = version >= FIRST_FLEXIBLE
    parts: list[bytes] = [b"", _THROTTLE.pack(correlation_id), b"\x00" if flexible else b""]
    parts.append(writer.count(len(topics), flexible))
    for topic, answers in topics:
        parts.append(topic_bytes(topic, flexible))
        parts.append(writer.count(len(answers), flexible))
        for answer in answers:
            _put_answer(parts, answer, version, flexible)
        if flexible:
            parts.append(b"\x00")
    parts.append(_THROTTLE.pack(throttle_ms))
    if flexible:
        parts.append(endpoint_tag(leaders) if leaders and version >= FIRST_WITH_LEADER else b"\x00")
    parts[0] = _THROTTLE.pack(sum(map(len, parts)))
    return b"".join(parts)


def _put_answer(parts: list[bytes], answer: ProduceAnswer, version: int, flexible: bool) -> None:
    partition, error, first_offset, append_time, start_offset, message, leader_id, leader_epoch, record_errors = answer
    if not error and message is None and not record_errors and version >= FIRST_WITH_ERROR_MESSAGES:
        parts.append(_ANSWER_WITH_START.pack(partition, 0, first_offset, append_time, start_offset))
        parts.append(_GOOD_END[version])
        return
    if version >= FIRST_WITH_START_OFFSET:
        parts.append(_ANSWER_WITH_START.pack(partition, error, first_offset, append_time, start_offset))
    else:
        parts.append(_ANSWER.pack(partition, error, first_offset, append_time))
    if version >= FIRST_WITH_ERROR_MESSAGES:
        parts.append(writer.count(len(record_errors), flexible))
        for index, text in record_errors:
            parts.append(_THROTTLE.pack(index) + writer.string(text, flexible) + (b"\x00" if flexible else b""))
        parts.append(writer.string(message, flexible))
    if not flexible:
        return
    tells_leader = version >= FIRST_WITH_LEADER and error == ErrorCode.NOT_LEADER_OR_FOLLOWER and leader_epoch >= 0
    parts.append(b"\x01\x00\x09" + struct.pack(">ii", leader_id, leader_epoch) + b"\x00" if tells_leader else b"\x00")


def endpoint_tag(leaders: Sequence[NodeEndpoint]) -> bytes:
    body = bytearray(unsigned_varint(len(leaders) + 1))
    for node_id, host, port, rack in leaders:
        body += struct.pack(">i", node_id) + writer.string(host, True) + struct.pack(">i", port)
        body += writer.string(rack, True) + b"\x00"
    return b"\x01\x00" + unsigned_varint(len(body)) + bytes(body)


def topic_bytes(topic: str | UUID, flexible: bool) -> bytes:
    return topic.bytes if isinstance(topic, UUID) else writer.string(topic, flexible)
