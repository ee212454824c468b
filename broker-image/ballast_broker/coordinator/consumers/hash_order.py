"""Reproduces the iteration order of a Java HashMap. PURE.

Apache Kafka's assignors break ties in this order. With another one, a group that moves between an Apache Kafka and a
Ballast coordinator would be rebalanced for no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from ballast_wire.names import java_string_hash

T = TypeVar("T")
SMALLEST_TABLE = 16
MASK = 0xFFFFFFFF


def in_hash_order(entries: Iterable[T], hash_of: Callable[[T], int]) -> list[T]:
    """Sort by table slot; entries in the same slot keep their order."""
    all_of_them = list(entries)
    size = SMALLEST_TABLE
    while len(all_of_them) > size * 3 // 4:
        size *= 2

    def place(entry: T) -> int:
        hashed = hash_of(entry) & MASK
        return (hashed ^ (hashed >> 16)) & (size - 1)

    return sorted(all_of_them, key=place)


def texts_in_order(texts: Iterable[str]) -> list[str]:
    return in_hash_order(texts, java_string_hash)


def ids_in_order(ids: Iterable[UUID]) -> list[UUID]:
    return in_hash_order(ids, _hash_of_id)


def numbers_in_order(numbers: Iterable[int]) -> list[int]:
    return in_hash_order(sorted(numbers), lambda number: number)


def _hash_of_id(topic_id: UUID) -> int:
    folded = (topic_id.int >> 64) ^ (topic_id.int & (2**64 - 1))
    return (folded >> 32) ^ (folded & MASK)
