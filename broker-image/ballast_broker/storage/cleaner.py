"""Compacts sealed segments: keeps the newest record of each key, all offsets, and tombstones for a while.

Records of aborted transactions are removed. A marker stays until no record of its transaction is left, and from then
on as long as a tombstone. A producer's last batch (or its marker, if nothing else is left) stays, emptied.

Reads segments and writes `.cleaned` files beside them; renames nothing and touches no log: `compaction` swaps the
result in. Runs in its own process (or thread). Memory is bounded by the job's `map_entries`: when the map is full,
cleaning ends there and the next pass goes on. Disk space is bounded too: cleaning stops before it would use the
disk's reserve, and keeps the groups finished by then, since they free space.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from ballast_broker.seams import Disk, File
from ballast_broker.storage.batch_header import walk
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.index import OFFSET_ENTRY, TIME_ENTRY
from ballast_broker.storage.recovery import Scan
from ballast_broker.storage.room import room_for
from ballast_broker.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAXIMUM_RELATIVE_OFFSET,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from ballast_broker.storage.transactions import CleanedTransactions, EndedTransaction, render_entries
from ballast_wire.compression import Codec
from ballast_wire.records import (
    LOG_OVERHEAD,
    BatchView,
    CorruptBatch,
    Header,
    Record,
    decode_records,
    encode_batch,
)

MAP_ENTRY_BYTES = 200  # memory of one key in the map, overhead included
# The largest delete horizon from which timestamp deltas can be stored even for the oldest records.
FOR_EVER_MS = 2**62
_DIGEST_BYTES = 16
_WRITE_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
Throttle = Callable[[int], None]


@dataclass(slots=True)
class CleanJob:
    """`segments`: (base offset, size) of all sealed segments up to `dirty_end_offset`, oldest first."""

    folder: str
    segments: list[tuple[int, int]]
    first_dirty_offset: int
    dirty_end_offset: int
    map_entries: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id → (epoch, last data offset); the offset is -1 if only a marker is left."""
    aborted: list[EndedTransaction] = field(default_factory=list)
    reserve_bytes: int | None = None
    """How much of the disk must stay free, as configured."""


@dataclass(slots=True)
class CleanedGroup:
    """The segments with these base offsets become one of this size, named after the first of them."""

    replaced: list[int]
    size: int
    aborted: list[EndedTransaction] = field(default_factory=list)


@dataclass(slots=True)
class CleanResult:
    end_offset: int
    groups: list[CleanedGroup]
    read_bytes: int = 0
    keys: int = 0
    out_of_room: bool = False
    """The disk had no space for the group after these."""


def clean(disk: Disk, job: CleanJob, throttle: Throttle = lambda _: None) -> CleanResult:
    newest, end_offset = build_map(disk, job, throttle)
    result = CleanResult(end_offset, [], keys=len(newest))
    transactions = CleanedTransactions(job.aborted)
    for group in group_segments(job, end_offset):
        try:
            _clean_group(disk, job, group, newest, transactions, result, throttle)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            result.out_of_room = True
            break
    return result


def _key_of(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def build_map(disk: Disk, job: CleanJob, throttle: Throttle) -> tuple[dict[bytes, int], int]:
    """The newest offset of each key in the dirty part, and the offset up to which that part fit into the map."""
    newest: dict[bytes, int] = {}
    ends = [*[base for base, _ in job.segments[1:]], job.dirty_end_offset]
    transactions = CleanedTransactions(each for each in job.aborted if each.last_offset >= job.first_dirty_offset)
    for (base, size), following in zip(job.segments, ends, strict=False):
        if following <= job.first_dirty_offset or base >= job.dirty_end_offset:
            continue
        for batch in _batches(disk, job.folder, base, size, throttle):
            if batch.header.base_offset >= job.dirty_end_offset:
                break
            if batch.is_control:
                transactions.ends_nothing(batch)
                continue
            if transactions.is_aborted(batch) or batch.last_offset < job.first_dirty_offset:
                continue
            if newest and len(newest) + max(0, batch.header.record_count) > job.map_entries:
                return newest, batch.header.base_offset
            for record in _records(batch) or ():
                if record.key is not None and record.offset >= job.first_dirty_offset:
                    newest[_key_of(record.key)] = record.offset
    return newest, job.dirty_end_offset


def _records(batch: BatchView) -> list[Record] | None:
    """None for a corrupt body (sent that way, or damaged on disk): such a batch is kept as it is."""
    try:
        return list(decode_records(batch)) if batch.crc_is_right() else None
    except CorruptBatch:
        return None


def _batches(disk: Disk, folder: str, base: int, size: int, throttle: Throttle) -> Iterator[BatchView]:
    file = disk.open(f"{folder}/{base:020d}{LOG_SUFFIX}", writable=False)
    try:
        yield from _batches_of(file, size, throttle)
    finally:
        file.close()


def _batches_of(file: File, size: int, throttle: Throttle) -> Iterator[BatchView]:
    """All batches. Raises if they do not reach the file's end: nothing of such a file may be thrown away."""
    end = 0
    for position, header in walk(file, 0, size):
        length = header.length + LOG_OVERHEAD
        throttle(length)
        yield BatchView(memoryview(bytearray(file.pread(length, position))))
        end = position + length
    if end != size:
        raise CorruptFile(f"no whole batch at {end} of {size} bytes")


def group_segments(job: CleanJob, end_offset: int) -> list[list[tuple[int, int]]]:
    """Adjacent segments that together fit into one, by size and by offset range."""
    groups: list[list[tuple[int, int]]] = []
    bases = [base for base, _ in job.segments] + [job.dirty_end_offset]
    group_size = 0
    for number, (base, size) in enumerate(job.segments):
        if base >= end_offset:
            break
        fits = (
            groups
            and group_size + size <= job.segment_bytes
            and bases[number + 1] - groups[-1][0][0] <= MAXIMUM_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append((base, size))
            group_size += size
        else:
            groups.append([(base, size)])
            group_size = size
    return groups


class _Output:
    """The `.cleaned` files of one group."""

    def __init__(self, disk: Disk, job: CleanJob, base: int) -> None:
        self._disk = disk
        self._folder = job.folder
        self._reserve = job.reserve_bytes
        self._stem = f"{job.folder}/{base:020d}"
        self._interval = job.index_interval_bytes
        self._file = disk.empty_file(self._stem + LOG_SUFFIX + CLEANED_SUFFIX)
        self._buffer = bytearray()
        self._flushed = 0
        self.scan = Scan(base, base, offset_of_max_timestamp=base)

    @property
    def size(self) -> int:
        return self._flushed + len(self._buffer)

    def write(self, batch: bytes | bytearray | memoryview, header: Header) -> None:
        self.scan.add(self.size, header, self._interval)
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not room_for(len(self._buffer), self._disk.usage(self._folder), self._reserve):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._folder)
        self._file.pwrite(self._buffer, self._flushed)
        self._flushed += len(self._buffer)
        self._buffer = bytearray()

    def finish(self, aborted: list[EndedTransaction], modified_ms: int) -> int:
        """Make all files durable, before they may be renamed. The modification time of the originals is kept: retention
        uses it for segments without timestamps."""
        self._flush()
        self._disk.set_modified_ms(self._stem + LOG_SUFFIX + CLEANED_SUFFIX, modified_ms)
        self._file.sync()
        self.scan.add_time_entry()
        offsets, times = self.scan.offset_entries, self.scan.time_entries
        self._write(INDEX_SUFFIX, b"".join([OFFSET_ENTRY.pack(*row) for row in offsets]))
        self._write(TIME_INDEX_SUFFIX, b"".join([TIME_ENTRY.pack(*row) for row in times]))
        if aborted:
            self._write(TRANSACTION_INDEX_SUFFIX, render_entries(aborted))
        self._file.close()
        return self._flushed

    def _write(self, kind: str, data: bytes) -> None:
        file = self._disk.empty_file(self._stem + kind + CLEANED_SUFFIX)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()

    def abandon(self) -> None:
        """Free the disk space taken; removing the (empty) files is left to the caller of `clean`."""
        try:
            self._file.truncate(0)
        finally:
            self._file.close()


def _clean_group(
    disk: Disk,
    job: CleanJob,
    group: list[tuple[int, int]],
    newest: dict[bytes, int],
    transactions: CleanedTransactions,
    result: CleanResult,
    throttle: Throttle,
) -> None:
    output = _Output(disk, job, group[0][0])
    transactions.index = []
    try:
        for base, size in group:
            result.read_bytes += size
            for batch in _batches(disk, job.folder, base, size, throttle):
                kept: memoryview | bytearray | None = batch.bytes_view
                # Beyond the map's end nothing may be removed, least of all tombstones.
                in_map = batch.base_offset < result.end_offset
                if batch.is_control and batch.header.producer_id >= 0:
                    ends_nothing = transactions.ends_nothing(batch)
                    if in_map and ends_nothing:
                        kept = _clean_marker(batch, job)
                else:
                    aborted = transactions.is_aborted(batch)
                    if in_map:
                        kept = clean_batch(batch, newest, job, aborted=aborted)
                if kept is not None:
                    throttle(len(kept))
                    output.write(kept, BatchView(memoryview(kept)).header)
        modified_ms = disk.modified_ms(f"{job.folder}/{group[-1][0]:020d}{LOG_SUFFIX}")
        written = output.finish(transactions.index, modified_ms)
    except BaseException:
        output.abandon()
        raise
    result.groups.append(CleanedGroup([base for base, _ in group], written, transactions.index))


def _is_last_of_producer(batch: BatchView, job: CleanJob) -> bool:
    """Whether recovery from this log needs the batch to know the producer's last sequence, or its epoch."""
    header = batch.header
    known = job.producers.get(header.producer_id)
    if known is None:
        return False
    epoch, last_offset = known
    if last_offset >= 0:
        return batch.last_offset == last_offset
    return batch.is_control and header.producer_epoch == epoch


def _clean_marker(batch: BatchView, job: CleanJob) -> memoryview | bytearray | None:
    """The marker of a transaction with no records left: gets a delete horizon, waits for it, or has reached it."""
    horizon, empty = batch.delete_horizon_ms, not batch.header.record_count
    if empty or (horizon is not None and job.now_ms >= horizon):
        if not _is_last_of_producer(batch, job):
            return None
        return batch.bytes_view if empty else _rebuild(batch, [], None)
    records = _records(batch)
    if horizon is not None or records is None:
        return batch.bytes_view
    return _rebuild(batch, records, min(job.now_ms + job.delete_retention_ms, FOR_EVER_MS))


def clean_batch(
    batch: BatchView, newest: dict[bytes, int], job: CleanJob, *, aborted: bool = False
) -> memoryview | bytearray | None:
    """The batch to keep: unchanged, smaller, emptied (to keep a producer's last sequence), or None."""
    if batch.is_control:
        return batch.bytes_view  # has no producer id, so no transaction
    records = [] if aborted else _records(batch)
    if records is None:
        return batch.bytes_view
    now_ms, horizon = job.now_ms, batch.delete_horizon_ms
    keeps_tombstones = horizon is None or now_ms < horizon
    kept = [
        record
        for record in records
        if record.key is not None
        and record.offset >= newest.get(_key_of(record.key), -1)
        and (record.value is not None or keeps_tombstones)
    ]
    if not kept and not _is_last_of_producer(batch, job):
        return None
    new_horizon = horizon
    if horizon is None and any(record.value is None for record in kept):
        new_horizon = min(now_ms + job.delete_retention_ms, FOR_EVER_MS)
    if len(kept) == batch.header.record_count and new_horizon == horizon:
        return batch.bytes_view
    return _rebuild(batch, kept, new_horizon)


def _rebuild(batch: BatchView, records: list[Record], horizon: int | None) -> bytearray:
    """An empty batch is a header without a compressed body: librdkafka crashes on the compressed form of no bytes."""
    header = batch.header
    return encode_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        codec=batch.codec if records else Codec.NONE,
        control=batch.is_control,
        transactional=batch.is_transactional,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        delete_horizon_ms=horizon if records else None,
        append_time_ms=header.max_timestamp if batch.is_log_append_time else None,
        newest_ms=None if records else header.max_timestamp,
        last_offset=header.base_offset + header.last_offset_delta,
    )
