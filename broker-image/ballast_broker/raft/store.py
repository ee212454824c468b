"""Where Raft keeps its things: the metadata log, its snapshots beside it, and the `quorum-state` file.

Loop thread only, but for `flush` and `write_snapshot`'s pieces. The log is the storage engine's; whatever
`quorum-state` or a finished `.checkpoint` file says is on stable storage.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol

from ballast_broker.raft.messages import NOBODY, SnapshotId
from ballast_broker.raft.terms import Persisted
from ballast_broker.seams import Disk

QUORUM_STATE = "quorum-state"
PART_SUFFIX = ".part"
NO_MATTER_WHEN = 0
"""Segments of the metadata log go by its start alone, never by their age."""
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class Slice(Protocol):
    def read(self) -> bytes: ...
    def release(self) -> None: ...


class Epochs(Protocol):
    @property
    def entries(self) -> list[tuple[int, int]]:
        """Ascending (epoch, first offset)."""


class MetadataLog(Protocol):
    """What Raft uses of the storage engine's `Log`."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    def append_as_leader(self, batches: bytearray, leader_epoch: int, *, now_ms: int, origin: str) -> Any: ...
    def append_as_follower(self, batches: memoryview) -> Any: ...
    def read(self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool = True) -> Slice: ...
    @property
    def epochs(self) -> Epochs: ...
    def update_high_watermark(self, offset: int) -> Any: ...
    def truncate_to(self, offset: int) -> None: ...
    def truncate_fully_and_start_at(self, offset: int) -> None: ...
    def advance_log_start_offset(self, offset: int) -> Any: ...
    def delete_old_segments(self, now_ms: int) -> int: ...
    def flush(self, up_to: int | None = None) -> None: ...


class MetadataStore:
    def __init__(self, disk: Disk, directory: str, log: MetadataLog) -> None:
        self.disk = disk
        self.directory = directory
        self.log = log
        self.snapshots = sorted(self._find_snapshots())
        self._parts = itertools.count()
        latest = self.latest_snapshot
        if latest is not None and (latest.epoch, latest.offset) > (self.last_epoch, self.end_offset):
            self.begin_after(latest)  # a crash came before this was done

    # ------------------------------------------------------------------ what the core asks (LogView)

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_epoch(self) -> int:
        entries = self.log.epochs.entries
        snapshot = self.latest_snapshot
        if entries:
            return entries[-1][0]
        return snapshot.epoch if snapshot is not None else 0

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        entries = self.log.epochs.entries
        number = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if number:
            end = entries[number][1] if number < len(entries) else self.end_offset
            return entries[number - 1][0], end
        # Older than all that the log has. What the snapshot that the log begins after contains ends where it begins.
        for snapshot in reversed(self.snapshots):
            if snapshot.epoch <= epoch and 0 < snapshot.offset <= self.start_offset:
                return snapshot.epoch, snapshot.offset
        return -1, -1

    # ------------------------------------------------------------------ quorum-state

    def load_persisted(self) -> Persisted:
        path = f"{self.directory}/{QUORUM_STATE}"
        if not self.disk.exists(path):
            return Persisted()
        state = json.loads(self.disk.read_bytes(path))
        return Persisted(
            epoch=int(state["leaderEpoch"]),
            voted_for=int(state.get("votedId", NOBODY)),
            leader=int(state.get("leaderId", NOBODY)),
        )

    def persist(self, state: Persisted, voters: tuple[int, ...]) -> None:
        body = {
            "clusterId": "",
            "leaderId": state.leader,
            "leaderEpoch": state.epoch,
            "votedId": state.voted_for,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voters],
            "data_version": 0,
        }
        data = json.dumps(body, separators=(",", ":")).encode()
        self.disk.write_atomically(f"{self.directory}/{QUORUM_STATE}", data)

    # ------------------------------------------------------------------ the log

    def append(self, batch: bytearray, epoch: int, now_ms: int) -> tuple[int, int]:
        """First and last offset."""
        info = self.log.append_as_leader(batch, epoch, now_ms=now_ms, origin="raft")
        return info.first_offset, info.last_offset

    def append_fetched(self, batches: bytes | memoryview) -> None:
        self.log.append_as_follower(memoryview(batches))

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        found = self.log.read(offset, max_bytes, upper_offset=upper_offset)
        try:
            return found.read()
        finally:
            found.release()

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)

    def committed_up_to(self, offset: int) -> None:
        """What is below may be dropped once a snapshot contains it."""
        self.log.update_high_watermark(min(offset, self.end_offset))

    # ------------------------------------------------------------------ snapshots

    def _find_snapshots(self) -> Iterator[SnapshotId]:
        for name in self.disk.list(self.directory):
            match = _SNAPSHOT.fullmatch(name)
            if match:
                yield SnapshotId(int(match[1]), int(match[2]))
            elif name.endswith(PART_SUFFIX):
                self.disk.remove(f"{self.directory}/{name}")

    def path_of(self, snapshot: SnapshotId) -> str:
        return f"{self.directory}/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint"

    def size_of(self, snapshot: SnapshotId) -> int:
        return self.disk.size(self.path_of(snapshot))

    def new_snapshot(self, snapshot: SnapshotId) -> SnapshotWriter:
        return SnapshotWriter(self.disk, self.path_of(snapshot), self.directory, next(self._parts))

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        """The file is complete. It and the one before are kept; the log begins after the older of them."""
        if snapshot not in self.snapshots:
            self.snapshots = sorted([*self.snapshots, snapshot])
        for old in self.snapshots[:-2]:
            self.disk.remove(self.path_of(old))
        self.snapshots = self.snapshots[-2:]
        oldest = self.snapshots[0]
        if len(self.snapshots) > 1 and oldest.offset > self.start_offset:
            self.log.advance_log_start_offset(oldest.offset)
            self.log.delete_old_segments(NO_MATTER_WHEN)

    def begin_after(self, snapshot: SnapshotId) -> None:
        """A snapshot came from the leader: the log holds nothing that continues it."""
        self.log.truncate_fully_and_start_at(snapshot.offset)
        for old in [each for each in self.snapshots if each < snapshot]:
            self.disk.remove(self.path_of(old))
        self.snapshots = [snapshot]

    def read_snapshot(self, snapshot: SnapshotId, position: int, size: int) -> tuple[bytes, int] | None:
        """A piece and the whole size; None where there is no such snapshot."""
        if snapshot not in self.snapshots:
            return None
        file = self.disk.open(self.path_of(snapshot), writable=False)
        try:
            whole = file.size()
            return (file.pread(min(size, whole - position), position) if position < whole else b""), whole
        finally:
            file.close()


class SnapshotWriter:
    """A snapshot on its way: pieces, then `finish`, which makes it one that counts. Each has a file of its own: one of
    the same snapshot may still be under way for a leader that is none any more."""

    def __init__(self, disk: Disk, path: str, directory: str, number: int) -> None:
        self._disk = disk
        self._path = path
        self._part = f"{path}.{number}{PART_SUFFIX}"
        self._directory = directory
        self._file = disk.empty_file(self._part)
        self.size_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.pwrite(data, self.size_bytes)
        self.size_bytes += len(data)

    def finish(self) -> None:
        """Blocks until it is on stable storage."""
        self._file.sync()
        self._file.close()
        self._disk.rename(self._part, self._path)
        self._disk.sync_directory(self._directory)

    def abandon(self) -> None:
        self._file.close()
        self._disk.remove(self._part)
