"""Encodes and decodes the embedded consumer protocol: subscriptions and assignments of classic members. PURE.

The bytes come from clients: malformed ones raise ValueError. For unknown newer versions, the fields of the last known
version are read, as all consumers do.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ballast_broker.coordinator.consumers.group import Partitions
from ballast_broker.metadata.image import TopicsImage

LAST_VERSION = 3
WITH_OWNED, WITH_RACK = 1, 3  # versions of subscriptions
_short = struct.Struct(">h")
_int = struct.Struct(">i")

Named = Mapping[str, frozenset[int]]  # topic name → partitions


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Named
    rack_id: str | None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError("it ends too early")
        taken, self._position = self._data[self._position : end], end
        return taken

    def short(self) -> int:
        return int(_short.unpack(self.take(2))[0])

    def number(self) -> int:
        return int(_int.unpack(self.take(4))[0])

    def count(self) -> int:
        count = self.number()
        if count < 0:
            raise ValueError("what has to be there is not")
        return count

    def version(self) -> int:
        version = self.short()
        if version < 0:
            raise ValueError(f"there is no version {version}")
        return version

    def text(self) -> str:
        return self.take(self.short()).decode()

    def bytes_or_none(self) -> bytes | None:
        size = self.number()
        return None if size < 0 else self.take(size)

    def partitions(self) -> Named:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count()):
            topic, count = self.text(), self.count()
            taken = self.take(4 * count)
            numbers = frozenset(struct.unpack(f">{count}i", taken))
            found[topic] = found.get(topic, frozenset()) | numbers
        return found


def subscription_of(metadata: bytes) -> Subscription:
    reader = _Reader(metadata)
    version = reader.version()
    topics = frozenset(reader.text() for _ in range(reader.count()))
    reader.bytes_or_none()
    owned = reader.partitions() if version >= WITH_OWNED else {}
    rack_id = None
    if version >= WITH_RACK:
        reader.number()  # the generation
        size = reader.short()
        rack_id = None if size < 0 else reader.take(size).decode()
    return Subscription(version, topics, owned, rack_id)


def assignment_of(data: bytes) -> tuple[Named, bytes]:
    """Return the partitions and the assignor's userdata."""
    if not data:
        return {}, b""
    reader = _Reader(data)
    reader.version()
    return reader.partitions(), reader.bytes_or_none() or b""


def assignment(partitions: Partitions, topics: TopicsImage, version: int) -> bytes:
    """Encode for a member with this subscription version; deleted topics are left out."""
    named = sorted(
        (topic.name, sorted(numbers))
        for topic_id, numbers in partitions.items()
        if (topic := topics.by_id(topic_id)) is not None
    )
    parts = [_short.pack(min(version, LAST_VERSION)), _int.pack(len(named))]
    for name, numbers in named:
        encoded = name.encode()
        parts += [_short.pack(len(encoded)), encoded, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _int.pack(-1)])


def by_id(named: Named, topics: TopicsImage) -> Partitions:
    return {
        topic.id: numbers for name, numbers in named.items() if numbers and (topic := topics.by_name(name)) is not None
    }
