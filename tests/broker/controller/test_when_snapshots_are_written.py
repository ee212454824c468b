"""When a node writes a snapshot of its metadata: by bytes since the last one, and by time."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest
from tests.broker.raft.memory import InlineThreads, LoopClock, MemoryDisk, MemoryLog

from ballast_broker.controller import replica as replicas
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
    assert list(replica.committed(bytes(batch)))
    for _ in range(20):
        await asyncio.sleep(0)
    await replica.stop()
    assert len(store.snapshots) == count


class FullDisk(MemoryDisk):
    """A disk on which, at first, nothing can be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def empty_file(self, path: str) -> Any:
        if self.is_full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().empty_file(path)


@pytest.mark.spec("LOG-35", "CLU-03")
async def test_without_file_descriptors_one_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "WRITE_AGAIN_S", 0.01)
    disk, failures = FullDisk(), list[Exception]()
    store = MetadataStore(disk, "/meta", MemoryLog())
    replica = MetadataReplica(
        store, LoopClock(), InlineThreads(), on_failure=failures.append, bytes_between_snapshots=1
    )
    monkeypatch.setattr(replicas, "ALWAYS_REPLAYED_BYTES", 1)
    batch = data_batch([record("NoOpRecord")], 1)
    disk.is_full = True
    async with asyncio.timeout(20):
        while not store.snapshots:
            store.append(batch, 1, 1)
            store.committed_up_to(store.end_offset)
            assert list(replica.committed(bytes(batch)))
            await asyncio.sleep(0.02)
            disk.is_full = store.end_offset < 3
            assert not failures
    await replica.stop()
    assert store.snapshots[0].offset >= 3
