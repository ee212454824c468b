"""Fast path for the most common produce: one batch for one partition, not transactional.

Small requests cost a broker in Python the most, and nearly all of them have this shape, so they are unpacked by
precompiled structs without an object for each level. Anything that looks different in any byte is not refused here: the
result is None, and `parse_produce` decides. Where both understand a request they agree (tests/wire).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final
from uuid import UUID

from ballast_wire.fast.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_ERROR_MESSAGES,
    FIRST_WITH_START_OFFSET,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    topic_bytes,
)

FIRST_VERSION: Final = FIRST_WITH_START_OFFSET
NO_TAGS: Final = 0
ONE: Final = 2  # a compact array's length is encoded plus one

_LENGTH_AT: Final = 13  # the low byte of the name's length, which always fits into it
_BESIDES_NAME_BYTES: Final = 26
_COMPACT_LENGTH_AT: Final = 9
_BESIDES_COMPACT_NAME_BYTES: Final = 16
_with_id: Final = struct.Struct(">BBhiB16sBiB").unpack_from
_WITH_ID_BYTES: Final = 31
_COMPACT_END: Final[bytes] = b"\x00\x00\x00"  # no tags of the partition, the topic, the request

Single = tuple[bytes, int, int, int, memoryview]


@cache
def _with_name(length: int) -> Callable[..., tuple[Any, ...]]:
    """Transactional id, acks, timeout, topics, length of the name, name, partitions, partition, size of the batches."""
    return struct.Struct(f">hhiih{length}siii").unpack_from


@cache
def _with_compact_name(length: int) -> Callable[..., tuple[Any, ...]]:
    """The same after the header's tags, with only the first byte of the batches' size."""
    return struct.Struct(f">BBhiBB{length}sBiB").unpack_from


def parse_single_produce(frame: memoryview, position: int, version: int) -> Single | None:
    """(topic as raw bytes, acks, timeout, partition, batches), or None for any other shape.

    `position` is where the client id ends: a flexible header's tags are parsed here.
    """
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(frame, position, version)
        name_bytes = frame[position + _LENGTH_AT]
        transactional, acks, timeout_ms, topics, length, topic, partitions, partition, size = _with_name(name_bytes)(
            frame, position
        )
    except (struct.error, IndexError):
        return None
    at = position + _BESIDES_NAME_BYTES + name_bytes
    if (
        transactional != -1 or topics != 1 or length != name_bytes or partitions != 1
        or size <= 0 or at + size != len(frame)
    ):  # fmt: skip
        return None
    return topic, acks, timeout_ms, partition, frame[at:]


def _parse_flexible(frame: memoryview, position: int, version: int) -> Single | None:
    if version >= FIRST_WITH_TOPIC_ID:
        if version > LAST_VERSION:
            return None
        tags, transactional, acks, timeout_ms, topics, topic, partitions, partition, byte = _with_id(frame, position)
        at = position + _WITH_ID_BYTES
    else:
        name_bytes = frame[position + _COMPACT_LENGTH_AT] - 1
        if not 0 <= name_bytes < 0x7F:
            return None
        tags, transactional, acks, timeout_ms, topics, _, topic, partitions, partition, byte = _with_compact_name(
            name_bytes
        )(frame, position)
        at = position + _BESIDES_COMPACT_NAME_BYTES + name_bytes
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
    """Packs the whole frame of a successful response; created once per partition and version."""

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
