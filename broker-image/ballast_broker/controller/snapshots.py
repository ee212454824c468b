"""Writes the image as a snapshot and reads snapshots back, in slices that do not block the loop. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from ballast_broker.metadata.batches import (
    SNAPSHOT_BATCH_RECORDS,
    CommittedBatch,
    data_batch,
    read_batches,
)
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.snapshot import image_records
from ballast_broker.raft.control_records import (
    HEADER_RECORDS,
    HEADER_RECORDS_WITH_VOTERS,
    snapshot_footer_batch,
    snapshot_header_batch,
)
from ballast_broker.raft.integrity import CorruptMetadata, SnapshotPieces
from ballast_broker.raft.messages import SnapshotId
from ballast_broker.raft.store import MetadataStore
from ballast_broker.seams import Threads

RECORDS_PER_SLICE = 50
READ_BYTES = 256 * 1024


async def write_snapshot(
    store: MetadataStore, threads: Threads, image: MetadataImage, now_ms: int, *, last_contained_ms: int
) -> SnapshotId:
    """Write a snapshot; when this returns, the file is fsynced and the store knows it."""
    snapshot = SnapshotId(image.offset + 1, image.epoch)
    writer = store.new_snapshot(snapshot)
    try:
        voters = store.voters_up_to(snapshot.offset)
        writer.write(snapshot_header_batch(last_contained_ms, now_ms, image.epoch, voters))
        offset = HEADER_RECORDS if voters is None else HEADER_RECORDS_WITH_VOTERS
        records = image_records(image)
        while chunk := await _next_records(records, SNAPSHOT_BATCH_RECORDS):
            writer.write(data_batch(chunk, now_ms, base_offset=offset, epoch=image.epoch))
            offset += len(chunk)
            await asyncio.sleep(0)
        writer.write(snapshot_footer_batch(now_ms, offset, image.epoch))
    except BaseException:
        writer.abandon()
        raise
    await threads.run(writer.finish)
    store.snapshot_written(snapshot)
    return snapshot


async def _next_records(records: Any, count: int) -> list[Any]:
    chunk: list[Any] = []
    while len(chunk) < count:
        piece = list(islice(records, RECORDS_PER_SLICE))
        if not piece:
            break
        chunk += piece
        await asyncio.sleep(0)
    return chunk


async def read_snapshot(store: MetadataStore, snapshot: SnapshotId) -> AsyncIterator[CommittedBatch]:
    """The batches of a stored snapshot; raise CorruptMetadata if the file is corrupt."""
    position = 0
    pieces = SnapshotPieces()
    try:
        while True:
            found = store.read_snapshot(snapshot, position, READ_BYTES)
            if found is None:
                raise FileNotFoundError(store.path_of(snapshot))
            piece, whole = found
            position += len(piece)
            for batch in read_batches(pieces.feed(piece)):
                yield batch
                await asyncio.sleep(0)
            if position >= whole or not piece:
                pieces.end()
                return
    except ValueError as error:
        raise CorruptMetadata(f"{store.path_of(snapshot)} is spoilt: {error}") from error
