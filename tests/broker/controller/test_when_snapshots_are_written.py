"""When a node writes a snapshot of its metadata: after so many bytes, and after so much time."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.raft.memory import InlineThreads, LoopClock, MemoryDisk, MemoryLog

from ballast_broker.controller.replica import MetadataReplica
from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.records import record
from ballast_broker.raft.store import MetadataStore


@pytest.mark.spec("CLU-03")
@pytest.mark.parametrize(("interval_s", "count"), [(0.0, 0), (1e-9, 1), (3600.0, 0)])
async def test_an_interval_of_zero_means_that_time_alone_writes_none(interval_s: float, count: int) -> None:
    store = MetadataStore(MemoryDisk(), "/meta", MemoryLog())
    replica = MetadataReplica(
        store, LoopClock(), InlineThreads(), on_failure=lambda error: None, interval_between_snapshots_s=interval_s
    )
    batch = data_batch([record("NoOpRecord")], 1)
    store.append(batch, 1, 1)
    store.committed_up_to(store.end_offset)
    await asyncio.sleep(0.001)
    replica.committed(bytes(batch))
    for _ in range(20):
        await asyncio.sleep(0)
    await replica.stop()
    assert len(store.snapshots) == count
