"""Stores Raft's data: the metadata log, the snapshots beside it, and the `quorum-state` file.

Loop thread only, except the log's `flush` and a `SnapshotWriter`. The log is the storage engine's; `quorum-state` and
finished `.checkpoint` files are always on stable storage.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
from base64 import urlsafe_b64decode
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol
from uuid import UUID

from ballast_broker.handles import NothingOpened, are_out
from ballast_broker.raft.control_records import (
    HEADER_RECORDS_WITH_VOTERS,
    NO_DIRECTORY,
    snapshot_footer_batch,
    snapshot_header_batch,
    voters_in,
)
from ballast_broker.raft.flushed_end import Flushed, FlushedEnd
from ballast_broker.raft.integrity import CorruptMetadata, check_batches
from ballast_broker.raft.messages import NOBODY, SnapshotId
from ballast_broker.raft.terms import Persisted, Position
from ballast_broker.raft.voters import NO_VOTERS, VoterHistory, VoterSet, uuid_text
from ballast_broker.seams import Disk, File
from ballast_wire.errors import ApiError
from ballast_wire.records import LOG_OVERHEAD

logger = logging.getLogger(__name__)
QUORUM_STATE = "quorum-state"
PART_SUFFIX = ".part"
SCAN_BYTES = 1 << 20
FORMATTED = SnapshotId(0, 0)
"""Written by `kafka-storage format`: the first voters, before there is a log. Never loaded as a snapshot."""
NO_MATTER_WHEN = 0
"""The time is irrelevant: segments of the metadata log are deleted only by its start offset, never by age."""
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
    def flush(self, up_to: int | None = None) -> object: ...


class MetadataStore:
    def __init__(self, disk: Disk, directory: str, log: MetadataLog) -> None:
        self.disk = disk
        self.directory = directory
        self.log = log
        self.snapshots = sorted(self._find_snapshots())
        self._parts = itertools.count()
        self._spare: File | None = None  # a descriptor in reserve, for the next vote
        self._keep_spare()
        self.flushed_end = FlushedEnd(disk, directory)
        self.lacks: Position | None = self.flushed_end.said.end
        latest = self.latest_snapshot
        self._history = VoterHistory(NO_VOTERS)
        if latest is not None and (latest.epoch > self.last_epoch or latest.offset > self.end_offset):
            self.begin_after(latest)  # a crash came before this was completed
        self._has_up_to(self.position)
        self._find_voters()

    # ------------------------------------------------------------------ what the core asks (LogView)

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_epoch(self) -> int:
        return self._epoch_at(self.end_offset)

    def _epoch_at(self, offset: int) -> int:
        """The latest epoch that began at or before `offset`; if the log has none, the latest snapshot's."""
        began = (epoch for epoch, first in reversed(self.log.epochs.entries) if first <= offset)
        snapshot = self.latest_snapshot
        return next(began, snapshot.epoch if snapshot is not None else 0)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def position(self) -> Position:
        return Position(self.last_epoch, self.end_offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        entries = self.log.epochs.entries
        number = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if number:
            end = entries[number][1] if number < len(entries) else self.end_offset
            return entries[number - 1][0], end
        # Older than anything in the log: then the snapshot after which the log begins ends where the log begins.
        for snapshot in reversed(self.snapshots):
            if snapshot.epoch <= epoch and 0 < snapshot.offset == self.start_offset:
                return snapshot.epoch, snapshot.offset
        return -1, -1

    # ------------------------------------------------------------------ what it once had

    def flushed(self, end: Position, *, is_voter: bool = True) -> None:
        """Everything up to this end, which was not truncated since, is on stable storage."""
        self._has_up_to(end)
        if self.lacks is None:
            try:
                self.flushed_end.say(Flushed(end, len(self.voters.voters) if is_voter else 0))
            except OSError as error:
                if not are_out(error):  # the earlier end in the file is true as well
                    raise

    def _has_up_to(self, end: Position) -> None:
        if self.lacks is not None and end >= self.lacks:
            self.lacks = None

    def _say_no_more_than(self, end: Position) -> None:
        """Before a truncation: what is given up to follow a leader does not count as lost by the disk."""
        said = self.flushed_end.said
        if self.lacks is None and said.end > end:
            self.flushed_end.say(Flushed(end, said.voters), durably=True)

    def tell_what_it_lacks(self, node_id: int) -> None:
        """Log what the disk has lost; call once the voters are known. If this is the only voter, nobody else can have
        it: go on without."""
        if self.lacks is None or not self.voters.voters:
            return
        path = self.flushed_end.path
        log, once = f"the metadata log in {self.directory} ends at offset {self.end_offset}", self.lacks.end_offset
        if self.voters.ids == (node_id,) and self.flushed_end.said.voters == 1:
            logger.error(
                "%s, and was written up to %d: the disk has lost the rest, which no other voter has", log, once
            )
            self.lacks = None
        else:
            logger.error(
                "%s, and was written up to %d (%s): the disk has lost the rest. Until this node has it from a leader "
                "it does not stand for election, and votes only for nodes that have as much",
                log,
                once,
                path,
            )

    # ------------------------------------------------------------------ who votes

    @property
    def voters(self) -> VoterSet:
        return self._history.latest

    @property
    def voters_before(self) -> VoterSet:
        return self._history.previous

    @property
    def voters_offset(self) -> int:
        return self._history.offset

    def voters_up_to(self, end_offset: int) -> VoterSet | None:
        """The voter set by the log up to `end_offset`; None if the log has none."""
        return self._history.before(end_offset)

    def configured(self, voters: VoterSet) -> None:
        """Set the voters from the configuration; used only if neither the log nor the formatting names any."""
        if not self.disk.exists(self.path_of(FORMATTED)):
            self._history.begin_with(voters)

    def _find_voters(self) -> None:
        formatted = self._voters_of(FORMATTED) if self.disk.exists(self.path_of(FORMATTED)) else None
        self._history = VoterHistory(formatted or NO_VOTERS)
        position = self.start_offset
        if position and self.snapshots:
            # A snapshot from before the log start may be left over from a crash, and lacks later changes.
            first = next((each for each in self.snapshots if each.offset >= position), self.snapshots[-1])
            self._history.begin_after(first.offset, self._voters_of(first))
            position = max(position, first.offset)
        while position < self.end_offset:
            data = self._read_sound(position)
            self._note_voters(data, position)
            position = next_offset(data)

    def _read_sound(self, position: int) -> bytes:
        try:
            data = self.read(position, SCAN_BYTES, self.end_offset)
            check_batches(data)
        except ValueError as error:
            raise CorruptMetadata(
                f"the log in {self.directory} is spoilt from offset {position} on: {error}"
            ) from error
        return data

    def format(self, voters: VoterSet, now_ms: int) -> None:
        """Format the empty directory of a new quorum's first voter."""
        writer = self.new_snapshot(FORMATTED)
        writer.write(snapshot_header_batch(0, now_ms, FORMATTED.epoch, voters))
        writer.write(snapshot_footer_batch(now_ms, HEADER_RECORDS_WITH_VOTERS, FORMATTED.epoch))
        writer.finish()
        self._history.begin_with(voters)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever here: no log, no snapshot, no vote, no formatting."""
        state, formatted = f"{self.directory}/{QUORUM_STATE}", self.path_of(FORMATTED)
        there = self.end_offset or self.snapshots or self.disk.exists(state) or self.disk.exists(formatted)
        return not there

    def _note_voters(self, batches: bytes | bytearray | memoryview, first: int = 0) -> None:
        for offset, voters in voters_in(batches):
            if first <= offset < self.end_offset and offset > self._history.offset:
                self._history.add(offset, voters)

    def _voters_of(self, snapshot: SnapshotId) -> VoterSet | None:
        """The voters in the snapshot's header, its first batch."""
        path = self.path_of(snapshot)
        file = self.disk.open(path, writable=False)
        try:
            size = int.from_bytes(file.pread(4, 8), "big") + LOG_OVERHEAD
            header = file.pread(min(size, file.size()), 0)
        finally:
            file.close()
        return next((voters for _, voters in voters_in(header)), None)

    # ------------------------------------------------------------------ quorum-state

    def load_persisted(self) -> Persisted:
        state = self._quorum_state()
        return Persisted(
            epoch=int(state.get("leaderEpoch", 0)),
            voted_for=int(state.get("votedId", NOBODY)),
            leader=int(state.get("leaderId", NOBODY)),
            voted_directory=_directory(state.get("votedDirectoryId")),
        )

    def voters_remembered(self) -> list[int]:
        """The voters in `quorum-state`, where a static quorum writes them: those when this node last ran."""
        return [each["voterId"] for each in self._quorum_state().get("currentVoters", ())]

    def _quorum_state(self) -> dict[str, Any]:
        """The content of `quorum-state`; empty if there is no file yet."""
        path = f"{self.directory}/{QUORUM_STATE}"
        if not self.disk.exists(path):
            return {}
        try:
            state = json.loads(self.disk.read_bytes(path))
        except ValueError:
            state = None
        if not isinstance(state, dict) or not isinstance(state.get("leaderEpoch"), int):
            raise CorruptMetadata(f"{path} is spoilt: it says nothing of an epoch")
        return state

    def persist(self, state: Persisted) -> None:
        body: dict[str, Any] = {
            "clusterId": "",
            "leaderId": state.leader,
            "leaderEpoch": state.epoch,
            "votedId": state.voted_for,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in self.voters.ids],
            "data_version": 0,
        }
        if not self.voters.is_static:
            body = {
                "leaderId": state.leader,
                "leaderEpoch": state.epoch,
                "votedId": state.voted_for,
                "votedDirectoryId": uuid_text(state.voted_directory or NO_DIRECTORY),
                "data_version": 1,
            }
        self._write_quorum_state(json.dumps(body, separators=(",", ":")).encode())

    def _write_quorum_state(self, data: bytes) -> None:
        """A vote cannot wait: if file descriptors are lacking, use the one in reserve."""
        path = f"{self.directory}/{QUORUM_STATE}"
        try:
            self.disk.write_atomically(path, data)
        except OSError as error:
            if not are_out(error) or self._spare is None:
                raise
            self._let_go_of_spare()
            self.disk.write_atomically(path, data)
        self._keep_spare()

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = self.disk.open(f"{self.directory}/{QUORUM_STATE}", writable=False)

    def _let_go_of_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def close(self) -> None:
        self._let_go_of_spare()
        self.flushed_end.close()

    # ------------------------------------------------------------------ the log

    def append(self, batch: bytearray, epoch: int, now_ms: int) -> tuple[int, int]:
        """Append as leader; returns the first and the last offset."""
        info = self.log.append_as_leader(batch, epoch, now_ms=now_ms, origin="raft")
        self._note_voters(batch)
        return info.first_offset, info.last_offset

    def append_fetched(self, batches: bytes | memoryview) -> None:
        """For want of file descriptors only the first of the batches may be appended."""
        try:
            self.log.append_as_follower(memoryview(batches))
        except ApiError as error:
            if lacks_handles(error):
                self._note_voters(batches)
            raise
        self._note_voters(batches)

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        found = self.log.read(offset, max_bytes, upper_offset=upper_offset)
        try:
            return found.read()
        finally:
            found.release()

    def truncate(self, offset: int) -> None:
        self._say_no_more_than(Position(self._epoch_at(offset - 1), offset))
        self.log.truncate_to(offset)
        self._history.cut(self.end_offset)

    def committed_up_to(self, offset: int) -> None:
        """Set the high watermark: what lies below may be deleted once a snapshot contains it."""
        self.log.update_high_watermark(min(offset, self.end_offset))

    # ------------------------------------------------------------------ snapshots

    def _find_snapshots(self) -> Iterator[SnapshotId]:
        for name in self.disk.list(self.directory):
            match = _SNAPSHOT.fullmatch(name)
            if match:
                snapshot = SnapshotId(int(match[1]), int(match[2]))
                if snapshot != FORMATTED:
                    yield snapshot
            elif name.endswith(PART_SUFFIX):
                self.disk.remove(f"{self.directory}/{name}")

    def path_of(self, snapshot: SnapshotId) -> str:
        return f"{self.directory}/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint"

    def size_of(self, snapshot: SnapshotId) -> int:
        return self.disk.size(self.path_of(snapshot))

    def new_snapshot(self, snapshot: SnapshotId) -> SnapshotWriter:
        return SnapshotWriter(self.disk, self.path_of(snapshot), self.directory, next(self._parts))

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        """The file is complete. Keep it and the previous one; let the log begin after the older of the two."""
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
        """Reset the log to begin after a snapshot from the leader: nothing in the log continues it."""
        voters = self._voters_of(snapshot)  # first, since file descriptors may be lacking
        self._say_no_more_than(Position(snapshot.epoch, snapshot.offset))
        self.log.truncate_fully_and_start_at(snapshot.offset)
        for old in [each for each in self.snapshots if each < snapshot]:
            self.disk.remove(self.path_of(old))
        self.snapshots = [snapshot]
        self._history.begin_after(snapshot.offset, voters)

    def read_snapshot(self, snapshot: SnapshotId, position: int, size: int) -> tuple[bytes, int] | None:
        """Up to `size` bytes from `position` on, and the size of the file; None if there is no such snapshot."""
        if snapshot not in self.snapshots:
            return None
        file = self.disk.open(self.path_of(snapshot), writable=False)
        try:
            whole = file.size()
            return (file.pread(min(size, whole - position), position) if 0 <= position < whole else b""), whole
        finally:
            file.close()


def lacks_handles(error: Exception) -> bool:
    """Whether file descriptors were lacking and nothing was done, so that it may be retried (unlike work that was left
    half done)."""
    return isinstance(error, NothingOpened) or are_out(error)


class SnapshotWriter:
    """Writes a snapshot in pieces; only `finish` makes it count. Each writer has its own file: another one for the same
    snapshot, fetched from a former leader, may still be active."""

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
        """Block until the snapshot is on stable storage."""
        self._file.sync()
        self._file.close()
        self._disk.rename(self._part, self._path)
        self._disk.sync_directory(self._directory)

    def abandon(self) -> None:
        self._file.close()
        self._disk.remove(self._part)


def next_offset(batches: bytes) -> int:
    """The offset after the last batch."""
    position = 0
    following = -1
    while position < len(batches):
        base = int.from_bytes(batches[position : position + 8], "big")
        following = base + int.from_bytes(batches[position + 23 : position + 27], "big") + 1
        position += int.from_bytes(batches[position + 8 : position + 12], "big") + 12
    return following


def _directory(text: str | None) -> UUID | None:
    found = None if text is None else UUID(bytes=urlsafe_b64decode(f"{text}=="))
    return None if found == NO_DIRECTORY else found
