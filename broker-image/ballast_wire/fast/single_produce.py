"""The commonest produce of all, read and answered in one go: one batch for one partition, outside of a transaction.

Small requests are what a broker in Python pays most for, and nearly all of them have this shape, so it is unpacked by
precompiled structs without an object for each level. Whatever looks different in any byte is not refused here: the
answer is None, and `parse_produce` says what it is. Both say the same of what both understand (tests/wire).
"""

from __future__ import annotations

import struct
from uuid import UUID

from ballast_wire.fast.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_ERROR_MESSAGES,
    FIRST_WITH_START_OFFSET,
    FIRST_WITH_TOPIC_ID,
    topic_bytes,
)

FIRST_VERSION = FIRST_WITH_START_OFFSET
NO_TAGS = 0
ONE = 2  # a compact array's length is written plus one

_start = struct.Struct(">hhiih").unpack_from  # transactional id, acks, timeout, topics, length of the name
_START_BYTES = 14
_partition = struct.Struct(">iii").unpack_from  # partitions, partition, length of the batches
_PARTITION_BYTES = 12
_compact_start = struct.Struct(">BBhiBB").unpack_from  # header's tags, transactional id, acks, timeout, topics, length
_COMPACT_START_BYTES = 10
_start_with_id = struct.Struct(">BBhiB16s").unpack_from
_START_WITH_ID_BYTES = 25
_compact_partition = struct.Struct(">BiB").unpack_from  # partitions, partition, first byte of the batches' length
_COMPACT_PARTITION_BYTES = 6
_COMPACT_END = b"\x00\x00\x00"  # no tags: of the partition, of the topic, of the request

Single = tuple[bytes, int, int, int, memoryview]


def parse_single_produce(frame: memoryview, position: int, version: int) -> Single | None:
    """(topic as it lies there, acks, timeout, partition, batches), or None for any other shape.

    `position` is where the client's id ends: a flexible header's tags are read here.
    """
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(frame, position, version)
        transactional, acks, timeout_ms, topics, length = _start(frame, position)
        name = position + _START_BYTES
        at = name + length
        partitions, partition, size = _partition(frame, at)
    except (struct.error, IndexError):
        return None
    at += _PARTITION_BYTES
    if transactional != -1 or topics != 1 or length < 0 or partitions != 1 or size <= 0 or at + size != len(frame):
        return None
    return frame[name : at - _PARTITION_BYTES].tobytes(), acks, timeout_ms, partition, frame[at:]


def _parse_flexible(frame: memoryview, position: int, version: int) -> Single | None:
    if version >= FIRST_WITH_TOPIC_ID:
        tags, transactional, acks, timeout_ms, topics, topic = _start_with_id(frame, position)
        at = position + _START_WITH_ID_BYTES
    else:
        tags, transactional, acks, timeout_ms, topics, length = _compact_start(frame, position)
        name = position + _COMPACT_START_BYTES
        at = name + length - 1
        if not 0 < length < 0x80:
            return None
        topic = frame[name:at].tobytes()
    partitions, partition, byte = _compact_partition(frame, at)
    at += _COMPACT_PARTITION_BYTES
    size = byte & 0x7F
    shift = 7
    while byte >= 0x80 and shift < 32:
        byte = frame[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
    end = at + size - 1
    if (
        tags or transactional or topics != ONE or partitions != ONE or size < 2
        or end + len(_COMPACT_END) != len(frame) or frame[end:] != _COMPACT_END
    ):  # fmt: skip
        return None
    return topic, acks, timeout_ms, partition, frame[at:end]


class SingleAnswer:
    """Packs the whole frame that answers such a request when all went well; made once for a partition and version."""

    __slots__ = ("_before", "_pack", "_size", "_tail")

    def __init__(self, version: int, topic: str | UUID, partition: int) -> None:
        flexible = version >= FIRST_FLEXIBLE
        before = topic_bytes(topic, flexible) + (b"\x02" if flexible else b"\x00\x00\x00\x01")
        before = (b"\x00\x02" if flexible else b"\x00\x00\x00\x01") + before
        self._before = before + struct.pack(">ih", partition, 0)
        self._tail = _tail(version, flexible)
        layout = struct.Struct(f">ii{len(self._before)}sqqq{len(self._tail)}s")
        self._size = layout.size - 4
        self._pack = layout.pack

    def frame(self, correlation_id: int, first_offset: int, log_append_time: int, log_start_offset: int) -> bytes:
        return self._pack(
            self._size, correlation_id, self._before, first_offset, log_append_time, log_start_offset, self._tail
        )


def _tail(version: int, flexible: bool) -> bytes:
    """No record errors, no message, no throttling; no tags anywhere."""
    if flexible:
        return b"\x01\x00\x00" + b"\x00" + b"\x00\x00\x00\x00" + b"\x00"
    return (b"\x00\x00\x00\x00\xff\xff" if version >= FIRST_WITH_ERROR_MESSAGES else b"") + b"\x00\x00\x00\x00"
