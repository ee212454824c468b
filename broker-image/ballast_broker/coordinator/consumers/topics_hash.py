"""Hashes a group's subscribed topics: the hash changes when they change. PURE.

It is stored with the group's epoch, so that a new coordinator sees whether topics changed meanwhile. Apache Kafka uses
another hash function: a group coming from there is assigned once more, with the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ballast_broker.metadata.image import TopicsImage


def topics_hash(names: Iterable[str], topics: TopicsImage) -> int:
    """0 if none of the topics exists."""
    hashed = hashlib.blake2b(digest_size=8)
    known = 0
    for name in sorted(names):
        topic = topics.by_name(name)
        if topic is not None:
            known += 1
            hashed.update(topic.id.bytes + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(hashed.digest(), "big", signed=True) if known else 0
