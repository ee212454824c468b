"""Makes a log durable. `flush` runs in any thread, concurrently with appends on the loop; `settle` before shutdown.

The recovery point promises that everything before it is on the disk, with its leader epochs. Sealed segments are
flushed with their indexes; the active one's indexes need no flush, since recovery always scans the segment with the
recovery point. Files that did not change since the last flush are skipped, so a commit of the metadata log is one sync.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ballast_broker.seams import Disk
from ballast_broker.storage.checkpoint import LEADER_EPOCHS, PARTITION_METADATA, write_unsynced
from ballast_broker.storage.outdated_checkpoints import OutdatedMark
from ballast_broker.storage.producers import NEVER
from ballast_broker.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    UNFLUSHED_SUFFIX,
    Segment,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


def flush(
    log: Log, up_to: int | None = None, synced: frozenset[Segment] = frozenset(), for_s: float = math.inf
) -> bool:
    """False if the time was up before the end; at least one segment is flushed all the same."""
    whole = True
    with _unless_deleted(log):
        whole = _flush(log, up_to, synced, for_s)
    return whole


def write_epochs(log: Log) -> None:
    """Write the leader epochs to their file, without fsync, if they have changed. Any thread."""
    with log.flush_lock:
        if log.epochs.changed:
            log.epochs.changed = False
            log.epochs_written += 1
            try:
                write_unsynced(log.context.disk, f"{log.folder.path}/{LEADER_EPOCHS}", log.epochs.render())
            except OSError:
                log.epochs.changed = True
                raise


def sync_names(log: Log) -> None:
    """Make renames in the log's folder durable. Any thread."""
    with log.disk_faults(), _unless_deleted(log):
        _sync_folder(log)


@contextlib.contextmanager
def _unless_deleted(log: Log) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if log.segments and not log.active.deleted:  # otherwise it is being truncated, or was deleted
            raise


def _flush(log: Log, up_to: int | None, synced: frozenset[Segment], for_s: float) -> bool:
    truncations = log.truncations
    # In this order: appending a marker lowers `unindexed_from` before the end moves, and raises it once it is indexed.
    end = min(log.end_offset, log.unindexed_from)
    if up_to is not None:
        end = min(end, up_to)
    segments = log.segments  # replaced, never changed in place, when segments go
    if end <= log.recovery_point or not segments:  # no segments: the loop is just truncating all of them
        return True
    # Not `log.bases`: the loop may have replaced one of the two lists but not yet the other.
    first = max(0, bisect_right(segments, log.recovery_point, key=_base) - 1)
    going = segments[first:]
    write_epochs(log)
    with log.flush_lock:
        written = log.epochs_written
        epochs = log.epochs_synced < written  # also if another flush is about to sync them: it may fail
    now, whole = log.context.clock.monotonic, True
    until_s = now() + for_s
    names = (log.folder.path, segments[-1].base_offset, segments[-1].aborted.there, truncations)
    if epochs:
        with contextlib.suppress(FileNotFoundError):  # no epoch was ever written
            _whatever_it_is_called(log, lambda: f"{log.folder.path}/{LEADER_EPOCHS}", _sync)
    for segment in going:
        if segment.base_offset >= end:
            break
        if segment is not going[0] and now() >= until_s:
            end, whole = segment.base_offset, False
            break
        if segment not in synced:
            _sync_log(log, segment)
            sync_beside_log(log, segment, sealed=segment is not segments[-1])
    if log.synced_names is None or log.synced_names[0] != log.folder.path:
        _sync_identity(log)
    if epochs or log.synced_names != names:
        for segment in going:
            if segment.base_offset <= end:
                forget_unflushed(log, segment)
        _sync_folder(log)
        if whole:
            log.synced_names = names
    with log.flush_lock:
        log.epochs_synced = max(log.epochs_synced, written)
        if log.truncations == truncations and end > log.recovery_point:
            log.recovery_point = end
            log.last_flush_s = now()
    return whole


def note_unflushed(log: Log, base_offset: int) -> None:
    """Call before a segment with this base is created: a power failure may keep the segment but lose data before it."""
    log.context.disk.open(f"{log.folder.path}/{base_offset:020d}{UNFLUSHED_SUFFIX}", create=True).close()


def forget_unflushed(log: Log, segment: Segment) -> None:
    """Everything before the segment is on the disk: remove its mark."""
    with contextlib.suppress(FileNotFoundError):
        _whatever_it_is_called(log, lambda: segment.path(UNFLUSHED_SUFFIX), lambda disk, path: disk.remove(path))


def forget_marks(log: Log, marks: Iterable[OutdatedMark]) -> None:
    """Remove marks that no longer apply: the checkpoint speaks of this log now. Any thread."""
    with log.disk_faults(), _unless_deleted(log):
        with log.flush_lock:  # so that the folder's name cannot pass to another log meanwhile
            for mark in marks:
                with contextlib.suppress(FileNotFoundError):
                    log.context.disk.remove(f"{log.folder.path}/{mark.file_name}")
        _sync_folder(log)


def _base(segment: Segment) -> int:
    return segment.base_offset


def _sync_log(log: Log, segment: Segment) -> None:
    try:
        _whatever_it_is_called(log, lambda: segment.path(LOG_SUFFIX), _sync)
    except FileNotFoundError:
        if not segment.deleted:
            raise


def sync_beside_log(log: Log, segment: Segment, *, sealed: bool) -> None:
    kinds = [INDEX_SUFFIX, TIME_INDEX_SUFFIX] if sealed else []
    if segment.aborted.there:  # recovery does not check it below the recovery point
        kinds.append(TRANSACTION_INDEX_SUFFIX)
    for kind in kinds:
        with contextlib.suppress(FileNotFoundError):
            _whatever_it_is_called(log, lambda kind=kind: segment.path(kind), _sync)  # type: ignore[misc]


def _sync_identity(log: Log) -> None:
    """Make the topic id and the folder itself durable: once, and again after a move has renamed the folder."""
    with contextlib.suppress(FileNotFoundError):  # a topic without an id
        _whatever_it_is_called(log, lambda: f"{log.folder.path}/{PARTITION_METADATA}", _sync)
    log.context.disk.sync_directory(log.directory.path)


def _sync_folder(log: Log) -> None:
    _whatever_it_is_called(log, lambda: log.folder.path, lambda disk, path: disk.sync_directory(path))


def _sync(disk: Disk, path: str) -> None:
    """Sync by an own descriptor: the loop may close the segment's meanwhile."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def _whatever_it_is_called(log: Log, path_of: Callable[[], str], work: Callable[[Disk, str], None]) -> None:
    """Run `work` on the current path, again if it was renamed: by retention, or with its folder by deletion or move."""
    while True:
        path = path_of()
        try:
            work(log.context.disk, path)
            return
        except FileNotFoundError:
            with log.flush_lock:  # held by whoever renames until `path_of` shows the new name
                renamed = path_of() != path
            if not renamed:
                raise


def settle(log: Log) -> None:
    """Write everything that is pending in memory to the files, and close them."""
    try:
        if log.directory.online:
            _write_what_waits(log)
    finally:
        for segment in log.segments:
            segment.close()


def _write_what_waits(log: Log) -> None:
    if log.touched:
        _trim(log.active)
        log.unindexed_from = NEVER
    write_epochs(log)
    if log.producers_are_loaded or log.end_offset not in log.snapshots.offsets:
        log.producers.map_end_offset = log.end_offset
        log.snapshots.take(log.producers, log.end_offset, log.bases)


def _trim(active: Segment) -> None:
    active.add_time_entry()
    active.aborted.catch_up()
    active.trim_indexes()
    if active.size != active.disk.size(active.path()):
        active.writable_file().truncate(active.size)
