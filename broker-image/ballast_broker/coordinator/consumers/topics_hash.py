"""One number for the topics that a group reads: it changes when they do. PURE.

It is kept with the group's epoch, so that who takes the group over sees whether topics changed meanwhile. Apache Kafka
reckons it by another function: a group that comes from there is assigned once more, to the same members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ballast_broker.metadata.image import TopicsImage


def topics_hash(names: Iterable[str], topics: TopicsImage) -> int:
    """0 where there are none."""
    hashed = hashlib.blake2b(digest_size=8)
    known = 0
    for name in sorted(names):
        topic = topics.by_name(name)
        if topic is not None:
            known += 1
            hashed.update(topic.id.bytes + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(hashed.digest(), "big", signed=True) if known else 0
