"""This node's metadata replica: turns committed records into images and writes snapshots from time to time.

Every broker and controller has one. Publishers are called on the loop, in order, once per committed batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ballast_broker.controller.snapshots import read_snapshot, write_snapshot
from ballast_broker.metadata.batches import read_batches
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.loader import MetadataLoader, Publisher, Steps
from ballast_broker.raft.messages import SnapshotId
from ballast_broker.raft.store import MetadataStore, lacks_handles
from ballast_broker.seams import Clock, Threads
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError

logger = logging.getLogger(__name__)

LeaderCallback = Callable[[int, int], None]

DEFAULT_BYTES_BETWEEN_SNAPSHOTS = 20 * 1024 * 1024
DEFAULT_INTERVAL_BETWEEN_SNAPSHOTS_S = 3600.0
# On start the last snapshot is read and the records after it are replayed, at most this many times its size: a restart
# of a broker with thousands of partitions changes each of them twice, and every later start would replay that.
MOST_REPLAYED = 4
ALWAYS_REPLAYED_BYTES = 1 << 20
WRITE_AGAIN_S = 10.0


class MetadataReplica:
    """Implements the Raft driver's `CommitListener`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        threads: Threads,
        *,
        on_failure: Callable[[Exception], None],
        bytes_between_snapshots: int = DEFAULT_BYTES_BETWEEN_SNAPSHOTS,
        interval_between_snapshots_s: float = DEFAULT_INTERVAL_BETWEEN_SNAPSHOTS_S,
    ) -> None:
        self.loader = MetadataLoader()
        self.published_offset = self.loader.image.offset  # everything up to here has been published
        self.leader_callbacks: list[LeaderCallback] = []
        self._store = store
        self._clock = clock
        self._threads = threads
        self._on_failure = on_failure
        self._bytes_between = bytes_between_snapshots
        self._interval_s = interval_between_snapshots_s
        self._bytes_since = 0
        self._snapshot_bytes = 0
        self._snapshot_at = clock.monotonic()
        self._last_timestamp_ms = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def image(self) -> MetadataImage:
        return self.loader.image

    def add_publisher(self, publish: Publisher) -> None:
        self.loader.publishers.append(publish)

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    # ------------------------------------------------------------------ CommitListener

    def committed(self, batches: bytes) -> Steps:
        for batch in read_batches(batches):
            self._last_timestamp_ms = batch.timestamp_ms
            yield from self.loader.apply(batch.records, batch.last_offset, batch.epoch)
            self.published_offset = batch.last_offset
            yield
        self._bytes_since += len(batches)
        self._maybe_snapshot()

    def leader_changed(self, leader: int, epoch: int) -> None:
        for callback in self.leader_callbacks:
            callback(leader, epoch)

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        records: deque[Any] = deque()
        async for batch in read_snapshot(self._store, snapshot):
            records.extend(batch.records)
        async for _ in InTurns(self.loader.load_snapshot(_taken(records), snapshot.offset - 1, snapshot.epoch)):
            pass
        self.published_offset = snapshot.offset - 1
        self._snapshot_bytes = self._store.size_of(snapshot)
        self._bytes_since = 0
        self._snapshot_at = self._clock.monotonic()

    def failed(self, error: Exception) -> None:
        self._on_failure(error)

    # ------------------------------------------------------------------ snapshots

    def _maybe_snapshot(self) -> None:
        if self._writing is not None and not self._writing.done():
            return
        worth = max(ALWAYS_REPLAYED_BYTES, MOST_REPLAYED * self._snapshot_bytes)
        due = self._bytes_since >= min(self._bytes_between, worth)
        late = 0 < self._interval_s <= self._clock.monotonic() - self._snapshot_at  # 0: never by age alone
        if (due or late) and not self.loader.in_transaction:
            self._writing = asyncio.get_running_loop().create_task(self._write_snapshot())

    async def _write_snapshot(self) -> None:
        bytes_since, self._bytes_since = self._bytes_since, 0
        self._snapshot_at = self._clock.monotonic()
        try:
            snapshot = await self.snapshot()
            self._snapshot_bytes = self._store.size_of(snapshot)
        except (OSError, ApiError) as error:
            if not lacks_handles(error):
                self._on_failure(error)
                return
            logger.error("no metadata snapshot could be written, it is tried again: %s", error)
            await asyncio.sleep(WRITE_AGAIN_S)
            self._bytes_since += bytes_since
            return
        logger.info("metadata snapshot at offset %d, epoch %d", snapshot.offset, snapshot.epoch)

    async def snapshot(self) -> SnapshotId:
        """Write a snapshot of the current image."""
        return await write_snapshot(
            self._store,
            self._threads,
            self.image,
            self._clock.wall_ms(),
            last_contained_ms=self._last_timestamp_ms,
        )


def _taken(records: deque[Any]) -> Iterator[Any]:
    """Free each record as it is replayed: freeing a hundred thousand at once takes long."""
    while records:
        yield records.popleft()
