"""The fetch of a client that follows one partition and keeps no session, read and answered in one go.

librdkafka's consumers of one partition per broker, and whoever reads a partition from end to end, send nothing else.
As with `single_produce`: what looks different in any byte is left to `parse_fetch`, which says the same where both
understand it (tests/wire).
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from ballast_wire.fast.fetch import (
    FINAL_EPOCH,
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_LEADER_EPOCH,
    FIRST_WITH_RACK,
    FIRST_WITH_REPLICA_STATE,
    FIRST_WITH_SESSION,
    FIRST_WITH_START_OFFSET,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    NO_SESSION,
    Data,
    Parts,
)
from ballast_wire.fast.produce import topic_bytes
from ballast_wire.fast.reader import unsigned_varint

CONSUMER = -1
_NOTHING_FORGOTTEN = b"\x00\x00\x00\x00"
# No tags of partition and topic, nothing forgotten; then the rack, then the request's tags.
_COMPACT_MIDDLE = b"\x00\x00\x01"


class SingleFetch(NamedTuple):
    topic: bytes  # as it lies there: a name or an id
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    rack: str


def _start_layout(version: int) -> struct.Struct:
    """Header's tags; replica; wait, least and most bytes, isolation; session; topics; topic id or name's length."""
    flexible = version >= FIRST_FLEXIBLE
    layout = ("B" if flexible else "") + ("i" if version < FIRST_WITH_REPLICA_STATE else "") + "iiib"
    layout += ("ii" if version >= FIRST_WITH_SESSION else "") + ("B" if flexible else "i")
    return struct.Struct(">" + layout + ("16s" if version >= FIRST_WITH_TOPIC_ID else "B" if flexible else "h"))


def _partition_layout(version: int) -> struct.Struct:
    """Partitions; partition; leader's epoch; offset; last epoch; start offset; most bytes."""
    layout = ("B" if version >= FIRST_FLEXIBLE else "i") + "i" + ("i" if version >= FIRST_WITH_LEADER_EPOCH else "")
    layout += "q" + ("i" if version >= FIRST_FLEXIBLE else "")
    return struct.Struct(">" + layout + ("q" if version >= FIRST_WITH_START_OFFSET else "") + "i")


_VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)
_STARTS = {version: _start_layout(version) for version in _VERSIONS}
_PARTITIONS = {version: _partition_layout(version) for version in _VERSIONS}
_new_tuple = tuple.__new__


def parse_single_fetch(frame: memoryview, position: int, version: int) -> SingleFetch | None:
    """None for any other shape. `position` is where the client's id ends: a flexible header's tags are read here."""
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(frame, position, version)
        return _parse_old(frame, position, version)
    except (struct.error, IndexError, KeyError):
        return None


def _parse_old(frame: memoryview, position: int, version: int) -> SingleFetch | None:
    start, layout = _STARTS[version], _PARTITIONS[version]
    replica, max_wait_ms, min_bytes, max_bytes, isolation, *session, topics, length = start.unpack_from(frame, position)
    name = position + start.size
    at = name + length
    partitions, partition, *middle, partition_max_bytes = layout.unpack_from(frame, at)
    end = at + layout.size
    if version >= FIRST_WITH_SESSION:
        if session != [NO_SESSION, FINAL_EPOCH] or frame[end : end + 4] != _NOTHING_FORGOTTEN:
            return None
        end += 4
    rack = b""
    if version >= FIRST_WITH_RACK:
        rack = bytes(frame[end + 2 : end + 2 + (frame[end] << 8 | frame[end + 1])])
        end += 2 + len(rack)
    if replica != CONSUMER or topics != 1 or length < 0 or partitions != 1 or end != len(frame):
        return None
    leader_epoch = middle.pop(0) if version >= FIRST_WITH_LEADER_EPOCH else -1
    start_offset = middle[1] if version >= FIRST_WITH_START_OFFSET else -1
    return SingleFetch(
        bytes(frame[name:at]), max_wait_ms, min_bytes, max_bytes, isolation, partition, leader_epoch, middle[0], -1,
        start_offset, partition_max_bytes, rack.decode(errors="replace"),
    )  # fmt: skip


def _parse_flexible(frame: memoryview, position: int, version: int) -> SingleFetch | None:
    start, layout = _STARTS[version], _PARTITIONS[version]
    fields = start.unpack_from(frame, position)
    at = position + start.size
    tags = fields[0]
    if version < FIRST_WITH_REPLICA_STATE:
        if fields[1] != CONSUMER:
            return None
        fields = fields[1:]
    _, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, topic = fields
    if version < FIRST_WITH_TOPIC_ID:
        if not 0 < topic < 0x80:
            return None
        name, at = at, at + topic - 1
        topic = bytes(frame[name:at])
    partitions, partition, leader_epoch, offset, last_epoch, start_offset, partition_max = layout.unpack_from(frame, at)
    at += layout.size
    rack = frame[at + 3]  # its length and one
    end = at + 3 + rack
    if (
        tags or session_id != NO_SESSION or session_epoch != FINAL_EPOCH or topics != 2 or partitions != 2
        or frame[at : at + 3] != _COMPACT_MIDDLE or not 0 < rack < 0x80 or frame[end] or end + 1 != len(frame)
    ):  # fmt: skip
        return None
    found = (
        topic, max_wait_ms, min_bytes, max_bytes, isolation, partition, leader_epoch, offset, last_epoch, start_offset,
        partition_max, bytes(frame[at + 4 : end]).decode(errors="replace") if rack > 1 else "",
    )  # fmt: skip
    return _new_tuple(SingleFetch, found)


class SingleFetchAnswer:
    """The parts of an answer without error for one partition; made once for a partition and version."""

    __slots__ = ("_before", "_flexible", "_has_start", "_middle", "_pack", "_size", "_tail")

    def __init__(self, version: int, topic: str | UUID, partition: int) -> None:
        flexible = version >= FIRST_FLEXIBLE
        one = b"\x02" if flexible else b"\x00\x00\x00\x01"
        self._flexible = flexible
        self._has_start = version >= FIRST_WITH_START_OFFSET
        self._tail = b"\x00\x00\x00" if flexible else b""
        before = (b"\x00" if flexible else b"") + b"\x00\x00\x00\x00"
        if version >= FIRST_WITH_SESSION:
            before += struct.pack(">hi", 0, NO_SESSION)
        self._before = before + one + topic_bytes(topic, flexible) + one + struct.pack(">ih", partition, 0)
        self._middle = b"\x00" if flexible else b"\xff\xff\xff\xff"  # no list of aborted transactions
        if version >= FIRST_WITH_RACK:
            self._middle += b"\xff\xff\xff\xff"  # no preferred replica
        offsets = "qqq" if self._has_start else "qq"
        layout = struct.Struct(f">ii{len(self._before)}s{offsets}{len(self._middle)}s")
        self._size = layout.size - 4 + len(self._tail)
        self._pack = layout.pack

    def parts(self, correlation_id: int, offsets: tuple[int, int, int], data: Data | None) -> Parts:
        """`offsets`: high watermark, last stable, log start."""
        size = 0 if data is None else data.size
        length = unsigned_varint(size + 1) if self._flexible else size.to_bytes(4, "big")
        before, known = self._before, offsets if self._has_start else offsets[:2]
        head = self._pack(self._size + len(length) + size, correlation_id, before, *known, self._middle) + length
        if data is None or not size:
            return [head + self._tail]
        return [head, data, self._tail] if self._tail else [head, data]
