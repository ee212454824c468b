"""Extracts the topics from a consumer's subscription (the member metadata of the `consumer` protocol). PURE.

The bytes come from clients: malformed ones give None, meaning unknown, and nothing is decided from them.
"""

from __future__ import annotations

import struct

MAX_TOPICS = 100_000


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or not 0 <= count <= MAX_TOPICS:
            return None
        position, topics = 6, set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            end = position + 2 + length
            if length < 0 or end > len(metadata):
                return None
            topics.add(metadata[position + 2 : end].decode())
            position = end
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None
