"""Defines names shared by all packages: partitions, and Java's string hash by which they are spread."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers by topic name, as requests and responses list them."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


@lru_cache(maxsize=16_384)  # creating one costs more than parsing the rest of a request's partition
def uuid_of(raw: bytes) -> UUID:
    return UUID(bytes=raw)


@lru_cache(maxsize=4_096)  # asked once for each partition of a topic
def java_string_hash(text: str) -> int:
    """`String.hashCode()`: what Kafka uses to spread topics over fetchers, movers and coordinators."""
    result = 0
    for unit in _utf16_units(text):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def java_length(text: str) -> int:
    """`String.length()`."""
    return len(text) if text.isascii() else len(_utf16_units(text))


def _utf16_units(text: str) -> memoryview:
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


def spread(topic: str, partition: int, slots: int) -> int:
    """Kafka's slot for a partition among fetchers or movers: `abs(31 * hash(topic) + partition) % slots` in 32 bits."""
    value = (31 * java_string_hash(topic) + partition) & 0xFFFFFFFF
    value = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if value == -(1 << 31) else abs(value)) % slots
