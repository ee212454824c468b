"""Loads a partition of `__consumer_offsets` into its shard, a little at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from ballast_broker.coordinator.shard import Shard
from ballast_broker.coordinator.store import CoordinatorStore, Found, Marker, Stored
from ballast_wire.errors import ApiError
from ballast_wire.names import TopicPartition

log = logging.getLogger(__name__)

RECORDS_PER_TURN = 200  # about 2 ms of work, then other tasks run
OFFSETS_PER_TURN = 10_000  # likewise, where offsets are only scanned

HasTopic = Callable[[str], bool]


def any_topic(_name: str) -> bool:
    return True


async def read_shard(
    store: CoordinatorStore, shard: Shard, now_ms: Callable[[], int], wanted: Callable[[], bool]
) -> int:
    """Replay the whole log, unless the shard is given up meanwhile; return the number of records."""
    count = 0
    async for found in store.read_all(shard.partition):
        _replay(shard, found, now_ms())
        count += 1
        if count % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
            if not wanted():
                break
    return count


def tell_unloaded(what: str, error: Exception, pause_s: float) -> None:
    """Log a failed load: as a warning if it is a Kafka error, since another broker may lead the partition before this
    one has learnt it, for instance; otherwise as an error that somebody has to look into.
    """
    known = isinstance(error, ApiError)
    text = "%s cannot be loaded, %s; again in %g s"
    log.log(logging.WARNING if known else logging.ERROR, text, what, error, pause_s, exc_info=not known)


def _replay(shard: Shard, found: Found, now_ms: int) -> None:
    try:
        if isinstance(found, Marker):
            shard.end_transaction(found.producer_id, found.committed)
        elif isinstance(found, Stored):
            shard.replay_pending(*found)
        else:
            shard.replay(found[0], found[1], now_ms)
    except Exception:  # malformed bytes may make the codec raise anything
        log.exception("a record in partition %d of the offsets topic cannot be read: %r", shard.partition, found[0])


async def topics_gone(shard: Shard, has_topic: HasTopic) -> set[str]:
    """Return the topics that the shard has offsets for but that no longer exist; nothing is committed meanwhile."""
    gone: set[str] = set()
    looked_at = 0
    found: list[Collection[TopicPartition]] = [*shard.offsets.values(), *shard.pending.producers.values()]
    for offsets in found:
        gone.update(name for name in {partition.topic for partition in offsets} if not has_topic(name))
        looked_at += len(offsets)
        if looked_at >= OFFSETS_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    return gone
