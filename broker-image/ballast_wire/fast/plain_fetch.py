"""Fast path for the fetch of a consumer without a fetch session: parses and answers it in one go.

librdkafka's consumers, and those that read a partition from end to end, send nothing else. As in `single_produce`,
anything that looks different in any byte is left to `parse_fetch`; where both understand a request they agree
(tests/wire).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
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
from ballast_wire.fast.writer import count, unsigned_varint

CONSUMER: Final = -1
MOST: Final = 126  # of topics, and of partitions in each: a compact array's count in one byte
_NOTHING_FORGOTTEN: Final[bytes] = b"\x00\x00\x00\x00"

# Topic as raw bytes (name or id), partition, leader epoch, fetch offset, last fetched epoch, log start, max bytes.
Asked = tuple[bytes, int, int, int, int, int, int]


class PlainFetch(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    rack: str
    asked: list[Asked]  # grouped by topic


def _start_layout(version: int) -> struct.Struct:
    """Header's tags; replica id; max wait, min bytes, max bytes, isolation; session id and epoch; count of topics."""
    flexible = version >= FIRST_FLEXIBLE
    layout = ("B" if flexible else "") + ("i" if version < FIRST_WITH_REPLICA_STATE else "") + "iiib"
    return struct.Struct(">" + layout + ("ii" if version >= FIRST_WITH_SESSION else "") + ("B" if flexible else "i"))


def _old_partition_layout(version: int) -> struct.Struct:
    """Partition, leader epoch, fetch offset, log start offset, max bytes."""
    layout = ">i" + ("i" if version >= FIRST_WITH_LEADER_EPOCH else "") + "q"
    return struct.Struct(layout + ("q" if version >= FIRST_WITH_START_OFFSET else "") + "i")


_STARTS: Final = {version: _start_layout(version) for version in range(FIRST_VERSION, LAST_VERSION + 1)}
_OLD_PARTITIONS: Final = {version: _old_partition_layout(version) for version in range(FIRST_VERSION, FIRST_FLEXIBLE)}
_TOPIC_ID: Final = struct.Struct(">16sB")  # and the count of partitions
_PARTITION: Final = struct.Struct(">iiqiqiB")  # and its tags
_COUNT: Final = struct.Struct(">i")
_NAME_LENGTH: Final = struct.Struct(">h")
_new_tuple: Final = tuple.__new__


def parse_plain_fetch(frame: memoryview, position: int, version: int) -> PlainFetch | None:
    """None for any other shape. `position` is where the client id ends: a flexible header's tags are parsed here."""
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(frame, position, version)
        return _parse_old(frame, position, version)
    except (struct.error, IndexError, KeyError):
        return None


def _parse_old(frame: memoryview, position: int, version: int) -> PlainFetch | None:
    start, layout = _STARTS[version], _OLD_PARTITIONS[version]
    replica, max_wait_ms, min_bytes, max_bytes, isolation, *session, topics = start.unpack_from(frame, position)
    at = position + start.size
    if replica != CONSUMER or not 0 < topics <= MOST or (session and session != [NO_SESSION, FINAL_EPOCH]):
        return None
    names: set[bytes] = set()
    asked: list[Asked] = []
    for _ in range(topics):
        length: int = _NAME_LENGTH.unpack_from(frame, at)[0]
        if length < 0:
            return None
        name, at = at + 2, at + 2 + length
        topic = bytes(frame[name:at])
        partitions: int = _COUNT.unpack_from(frame, at)[0]
        at += 4
        if not 0 < partitions <= MOST:
            return None
        names.add(topic)
        for _ in range(partitions):
            partition, *middle, most = layout.unpack_from(frame, at)
            at += layout.size
            leader_epoch = middle.pop(0) if version >= FIRST_WITH_LEADER_EPOCH else -1
            start_offset = middle[1] if version >= FIRST_WITH_START_OFFSET else -1
            asked.append((topic, partition, leader_epoch, middle[0], -1, start_offset, most))
    if version >= FIRST_WITH_SESSION:
        if frame[at : at + 4] != _NOTHING_FORGOTTEN:
            return None
        at += 4
    rack = b""
    if version >= FIRST_WITH_RACK:
        rack = bytes(frame[at + 2 : at + 2 + (frame[at] << 8 | frame[at + 1])])
        at += 2 + len(rack)
    if at != len(frame) or len(names) != topics:
        return None
    return PlainFetch(max_wait_ms, min_bytes, max_bytes, isolation, rack.decode(errors="replace"), asked)


def _parse_flexible(frame: memoryview, position: int, version: int) -> PlainFetch | None:
    start = _STARTS[version]
    fields = start.unpack_from(frame, position)
    at = position + start.size
    tags = fields[0]
    if version < FIRST_WITH_REPLICA_STATE:
        if fields[1] != CONSUMER:
            return None
        fields = fields[1:]
    _, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics = fields
    if tags or session_id != NO_SESSION or session_epoch != FINAL_EPOCH or not 1 < topics < 0x80:
        return None
    has_ids = version >= FIRST_WITH_TOPIC_ID
    names: set[bytes] = set()
    asked: list[Asked] = []
    for _ in range(topics - 1):
        if has_ids:
            topic, partitions = _TOPIC_ID.unpack_from(frame, at)
            at += 17
        else:
            length = frame[at]  # plus one
            if not 0 < length < 0x80:
                return None
            name, at = at + 1, at + length
            topic = bytes(frame[name:at])
            partitions = frame[at]
            at += 1
        if not 1 < partitions < 0x80:
            return None
        names.add(topic)
        for _ in range(partitions - 1):
            partition, leader_epoch, offset, last_epoch, start_offset, most, tags = _PARTITION.unpack_from(frame, at)
            at += 33
            if tags:
                return None
            asked.append((topic, partition, leader_epoch, offset, last_epoch, start_offset, most))
        if frame[at]:  # the topic's tags
            return None
        at += 1
    rack = frame[at + 1]  # its length plus one
    end = at + 1 + rack
    if frame[at] != 1 or not 0 < rack < 0x80 or frame[end] or end + 1 != len(frame) or len(names) != topics - 1:
        return None  # forgotten topics, or tags
    text = bytes(frame[at + 2 : end]).decode(errors="replace") if rack > 1 else ""
    return _new_tuple(PlainFetch, (max_wait_ms, min_bytes, max_bytes, isolation, text, asked))


class PlainAnswer:
    """The response's part for one partition without an error; created once per partition and version."""

    __slots__ = ("_flexible", "_has_start", "_middles", "_pack", "_partition", "topic")

    def __init__(self, version: int, topic: str | UUID, partition: int) -> None:
        flexible = version >= FIRST_FLEXIBLE
        self.topic = topic_bytes(topic, flexible)
        self._flexible = flexible
        self._has_start = version >= FIRST_WITH_START_OFFSET
        self._partition = partition
        # The list of aborted transactions: null, or empty for read_committed; no preferred replica.
        none, empty = (b"\x00", b"\x01") if flexible else (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00")
        preferred = b"\xff\xff\xff\xff" if version >= FIRST_WITH_RACK else b""
        self._middles = none + preferred, empty + preferred
        layout = ">ih" + ("qqq" if self._has_start else "qq") + f"{len(self._middles[0])}s"
        self._pack = struct.Struct(layout).pack

    def head(self, offsets: tuple[int, int, int], committed: bool, size: int) -> bytes:
        """Everything before the data. `offsets`: high watermark, last stable offset, log start offset."""
        known = offsets if self._has_start else offsets[:2]
        length = unsigned_varint(size + 1) if self._flexible else size.to_bytes(4, "big")
        return self._pack(self._partition, 0, *known, self._middles[committed]) + length


# The result for a partition: its answer, its offsets as `head` takes them, its data.
Found = tuple[PlainAnswer, tuple[int, int, int], Data | None]


def answer_plain_fetch(version: int, correlation_id: int, committed: bool, found: Sequence[Found]) -> Parts:
    """`found` is grouped by topic, like `PlainFetch.asked`."""
    flexible = version >= FIRST_FLEXIBLE
    counts: dict[bytes, int] = {}
    for answer, _, _ in found:
        counts[answer.topic] = counts.get(answer.topic, 0) + 1
    out = bytearray(_COUNT.pack(correlation_id))
    out += b"\x00\x00\x00\x00\x00" if flexible else b"\x00\x00\x00\x00"  # header's tags; not throttled
    if version >= FIRST_WITH_SESSION:
        out += b"\x00\x00\x00\x00\x00\x00"  # no error, no session
    out += count(len(counts), flexible)
    parts: Parts = []
    size = 0
    last: bytes | None = None
    for answer, offsets, data in found:
        topic = answer.topic
        if topic != last:
            if last is not None and flexible:
                out += b"\x00"
            last = topic
            out += topic + count(counts[topic], flexible)
        length = 0 if data is None else data.size
        out += answer.head(offsets, committed, length)
        if data is not None and length:
            size += len(out) + length
            parts += [bytes(out), data]
            out = bytearray()
        if flexible:
            out += b"\x00"
    if flexible:
        out += b"\x00\x00"  # tags of the last topic and of the response
    if out:
        parts.append(bytes(out))
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = _COUNT.pack(size + len(out)) + first
    return parts
