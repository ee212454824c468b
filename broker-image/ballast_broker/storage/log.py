"""Implements one partition's log in one directory: append, read, look up.

Guarantees: offsets ascend without overlap; readers see a batch whole or not at all; a failed write takes the directory
offline (`LogDirectoryFailure`) and harms nothing written before. Synchronous; the event loop's thread only, except
`flush` (any thread) and reading a held `LogSlice`. What is not on the hot path is in sibling modules: `loading`,
`rolling`, `truncation`, `retention`, `lookup`, `flushing`.
"""

from __future__ import annotations

import asyncio
import math
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from ballast_broker.config.logs import LONG_MAX, LogConfig
from ballast_broker.storage import appending, flushing, lookup, retention, rolling, truncation
from ballast_broker.storage.context import LogContext
from ballast_broker.storage.conversion import inspects_records
from ballast_broker.storage.directories import SLOW_WRITE_S, LogDirectory
from ballast_broker.storage.epochs import LeaderEpochs
from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_broker.storage.producer_snapshots import ProducerSnapshots, replay
from ballast_broker.storage.producers import NEVER, ProducerStates, Verification
from ballast_broker.storage.segment import MAXIMUM_RELATIVE_OFFSET, Folder, Segment
from ballast_broker.storage.slices import AppendInfo, LogSlice
from ballast_broker.storage.transactions import EndedTransaction
from ballast_broker.storage.validation import (
    CLIENT,
    check_leader_batch,
    is_plain,
    refuse_larger_than_segment,
    split,
)
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import HEADER, HEADER_BYTES, LOG_OVERHEAD, TRANSACTIONAL_MASK, Header

UNKNOWN_WAITS: Final = -1
_put_start: Final = struct.Struct(">qii").pack_into  # base offset, length (unchanged), leader epoch
_unpack_header: Final = HEADER.unpack_from
_make_header: Final = Header._make
_new_tuple: Final = tuple.__new__  # faster than a NamedTuple's own constructor


class Log:
    """Attributes without underscore that are not properties belong to the sibling modules; others only read them."""

    __slots__ = (
        "_config",
        "_high_watermark",
        "_producers",
        "_producers_end",
        "_roll_after_timestamp",
        "_writable",
        "bases",
        "cleaned_to",
        "cleaning_paused",
        "closed",
        "context",
        "directory",
        "end_offset",
        "epochs",
        "epochs_synced",
        "epochs_written",
        "flush_lock",
        "flushed_often",
        "folder",
        "inspects_records",
        "interruptions",
        "known_positions",
        "last_flush_s",
        "moved_to",
        "on_start_moved",
        "recovery_point",
        "segments",
        "size_bytes",
        "slow_append_turn",
        "slow_appends",
        "snapshots",
        "start_offset",
        "synced_names",
        "topic_id",
        "topic_partition",
        "touched",
        "truncations",
        "unindexed_from",
        "write_in_progress",
    )

    def __init__(
        self,
        context: LogContext,
        directory: LogDirectory,
        folder: Folder,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        segments: list[Segment],
        *,
        start_offset: int,
        end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: ProducerStates | None,
        snapshots: ProducerSnapshots,
    ) -> None:
        """`producers` None: the state is read from the snapshot at `end_offset` when first needed."""
        self.context = context
        self.directory = directory
        self.folder = folder
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.recovery_point = recovery_point
        self.epochs = epochs
        self._producers = producers
        self._producers_end = end_offset
        self.snapshots = snapshots
        self.size_bytes = sum(segment.size for segment in segments)
        self.known_positions: dict[int, tuple[Segment, int]] = {}  # recently written or read batch boundaries
        self.flush_lock = threading.Lock()
        self.truncations = 0
        # Lets `flush` skip what is synced already; of a log just opened nothing is known to be.
        self.epochs_written = 1  # how often
        self.epochs_synced = 0  # the last of those times that is durable
        self.synced_names: tuple[str, int, bool, int] | None = None
        self.touched = False  # since it was loaded
        self.write_in_progress = False  # by `slow_append`
        self.slow_append_turn: asyncio.Lock | None = None
        self.slow_appends = 0  # requested and not done
        self.unindexed_from = NEVER  # the first marker whose `.txnindex` entry is not written yet
        self.interruptions = 0
        self.last_flush_s = float("-inf")
        self.closed = False
        self.moved_to: Log | None = None  # the log in another directory that has taken this one's place
        self.cleaning_paused = 0
        self.cleaned_to = 0
        self.on_start_moved: Callable[[], None] | None = None  # called when the log start offset has moved
        self._high_watermark = start_offset
        self._writable = False
        self._roll_after_timestamp = 0
        self.update_config(config)

    # Facts

    @property
    def producers(self) -> ProducerStates:
        return self._producers or self.load_producers()

    @property
    def producers_are_loaded(self) -> bool:
        return self._producers is not None

    def load_producers(self) -> ProducerStates:
        if self._producers is None:
            with self.disk_faults():
                loaded = ProducerStates()
                self.snapshots.load(loaded, self._producers_end)
                replay(loaded, self.segments, self._producers_end)
                self._producers = loaded
        return self._producers

    @property
    def config(self) -> LogConfig:
        return self._config

    def update_config(self, config: LogConfig) -> None:
        self._config = config
        self.inspects_records = inspects_records(config)
        self.flushed_often = config.flush_messages < LONG_MAX
        self._writable = False  # recompute the time to roll at the next append

    @property
    def log_start_offset(self) -> int:
        return self.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.end_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to the log; returns the value set."""
        if not self.start_offset <= offset <= self.end_offset:
            offset = max(min(offset, self.end_offset), self.start_offset)
        self._high_watermark = offset
        return offset

    @property
    def last_stable_offset(self) -> int:
        """Before it every transaction has ended with a committed marker; the high watermark if none is pending."""
        producers, high_watermark = self._producers or self.load_producers(), self._high_watermark
        if producers.ended:
            producers.committed(high_watermark)
        first = producers.first_unstable
        return high_watermark if first >= high_watermark else max(first, self.start_offset)

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset(epoch, self.end_offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """This replica is the leader in `epoch`, from `start_offset` on."""
        self.epochs.assign(epoch, start_offset)

    # Appending

    def append_as_leader(
        self,
        batches: bytearray | memoryview,
        leader_epoch: int,
        *,
        now_ms: int,
        origin: str = CLIENT,
        verified: Verification | None = None,
    ) -> AppendInfo:
        """Check, assign offsets in place, write. One batch per call is the fast path.

        `verified`: for the first batch of a transaction, what `ProducerStates.verify` returned.
        """
        view = batches if type(batches) is memoryview else memoryview(batches)
        size = len(view)
        if size < HEADER_BYTES:
            split(view, self.topic_partition)
        header = _unpack_header(view)
        _, length, _, _, _, attributes, last_delta, _, max_timestamp, producer_id, epoch, sequence, _ = header
        if length + LOG_OVERHEAD != size or self.inspects_records:
            return appending.append_several(self, view, leader_epoch, now_ms, origin, verified)
        if not is_plain(view, header, self._config, now_ms):
            if attributes & TRANSACTIONAL_MASK:
                return appending.append_several(self, view, leader_epoch, now_ms, origin, verified)
            check_leader_batch(view, _make_header(header), self._config, self.topic_partition, origin, now_ms)
        if size > self._config.segment_bytes:
            refuse_larger_than_segment(size, self._config, self.topic_partition)
        producer = None
        if producer_id >= 0:
            producer = self.producers.going_on(producer_id, epoch, sequence, last_delta)
            if producer is None:
                duplicate = appending.check_producer(self, _make_header(header), self.end_offset)
                if duplicate is not None:
                    return appending.repeated(self, duplicate, size)
        first = self.end_offset
        last = first + last_delta
        _put_start(view, 0, first, length, leader_epoch)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, first)
        self.write(view, last, max_timestamp, now_ms)
        if producer is not None:
            producer.sent(sequence + last_delta, last, last_delta, max_timestamp)
            self.producers.map_end_offset = last + 1
        elif producer_id >= 0:
            appending.record_producer(self, _make_header(header), last, view)
        if self.flushed_often:
            self.flush_if_due()
        return _new_tuple(AppendInfo, (first, last, -1, self.start_offset, size, False))

    def append_is_slow(self) -> bool:
        """LOG-32: whether to append with `slow_append`: the directory stalls, `flush.messages` requires syncs, or
        earlier appends by thread are not done yet."""
        slow_until = self.directory.slow_until
        return (
            self.slow_appends > 0
            or self.flushed_often
            or (slow_until > 0 and slow_until > self.context.clock.monotonic())
        )

    def interrupt_appends(self) -> None:
        """Abort the appends under way in threads: a new leader epoch or a truncation has overtaken them."""
        self.interruptions += 1

    def append_as_follower(self, batches: memoryview) -> AppendInfo:
        """Append batches as the leader has them: offsets and epochs are kept."""
        return appending.append_as_follower(self, memoryview(batches))

    def write(self, batch: memoryview, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        """Write one prepared batch to the end of the active segment, rolling it first if that is due."""
        size = len(batch)
        monotonic = self.context.clock.monotonic
        try:
            segment = self.segment_for_append(size, last_offset, max_timestamp, now_ms)
            directory, began_s = self.directory, monotonic()
            waits = directory.waits() if began_s < directory.suspected_until else UNKNOWN_WAITS
            segment.writable_file().pwrite(batch, segment.size)
            took_s = monotonic() - began_s
            if took_s > SLOW_WRITE_S:
                directory.note_slow_write(began_s + took_s, waited=waits == UNKNOWN_WAITS or waits != directory.waits())
            self.account_appended(segment, size, last_offset, max_timestamp, now_ms)
        except OSError as error:
            raise self.directory.failure_for(error) from error

    def segment_for_append(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The segment to append the batch to: rolls the active one if that is due."""
        if not self.directory.online:
            raise LogDirectoryFailure(self.directory, self.directory.error)
        segment = self.segments[-1]
        if not self._writable:
            self._prepare_to_write(segment)
        if (
            segment.size > self._config.segment_bytes - size
            or (max_timestamp if max_timestamp >= 0 else now_ms) > self._roll_after_timestamp
            or segment.full
            or last_offset - segment.base_offset > MAXIMUM_RELATIVE_OFFSET
        ):
            segment = rolling.roll_for(self, last_offset)
            if not self._writable:
                self._prepare_to_write(segment)
        return segment

    def account_appended(self, segment: Segment, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        """The bytes are in the file: make them part of the log."""
        position = segment.size
        if not position:
            segment.first_timestamp = max_timestamp
            stamp = max_timestamp if max_timestamp >= 0 else now_ms
            self._roll_after_timestamp = stamp + rolling.roll_ms(self._config, self.topic_partition)
        segment.index_batch(last_offset, position, size, max_timestamp, self._config.index_interval_bytes)
        self.directory.writes += 1
        self.size_bytes += size
        end = self.end_offset = last_offset + 1
        known = self.known_positions
        known[end] = (segment, position + size)
        if len(known) > lookup.MOST_KNOWN:
            lookup.forget_oldest(self)

    @property
    def flush_is_due(self) -> bool:
        return self.end_offset - self.recovery_point >= self._config.flush_messages

    def flush_if_due(self) -> None:
        if self.flush_is_due:
            self.flush()

    def invalidate_write_state(self) -> None:
        """The active segment has changed: prepare it again before the next append."""
        self._writable = False
        self.touched = True

    def _prepare_to_write(self, segment: Segment) -> None:
        """Before the first append to a new segment, or after startup, a truncation or a configuration change."""
        if self.write_in_progress:
            raise RuntimeError(f"an append to {self.topic_partition} is going on in a thread")
        if self.closed:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log of {self.topic_partition} is closed")
        segment.resume()
        self.touched = True
        if segment.size:
            first = segment.first_batch_timestamp()
            first = first if first >= 0 else segment.created_ms or self.context.clock.wall_ms()
            self._roll_after_timestamp = first + rolling.roll_ms(self._config, self.topic_partition)
        else:
            self._roll_after_timestamp = 2**63
        self._writable = True

    @contextmanager
    def disk_faults(self, *, halves: bool = False) -> Iterator[None]:
        """An OSError inside takes the directory offline. A lack of file descriptors does so only with `halves`: if the
        work may be left half done."""
        if not self.directory.online:
            raise LogDirectoryFailure(self.directory, self.directory.error)
        try:
            yield
        except OSError as error:
            if halves:
                self.directory.fail(error)
                raise LogDirectoryFailure(self.directory, error) from error
            raise self.directory.failure_for(error) from error

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begin a new segment at the log end; the old one is trimmed at once and flushed in the background."""
        with self.disk_faults():
            return rolling.roll(self, self.end_offset if base_offset is None else base_offset)

    def new_segment(self, base_offset: int) -> Segment:
        """Add an empty segment, which becomes the active one."""
        segment = rolling.create_segment(self, base_offset)
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.known_positions.clear()
        self.invalidate_write_state()
        return segment

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool = True, from_first_file: bool = False,
        waiting: bool = True,
    ) -> LogSlice:  # fmt: skip
        """Whole batches from the one that contains `offset` (or the next) up to `upper_offset`, not including it.

        `from_first_file`: also what lies before the log start in the first segment (a move copies files as they are).
        Not `waiting`: raise `NotInMemory` rather than wait for the disk to find the position.
        """
        if offset < (self.bases[0] if from_first_file else self.start_offset) or offset > self.end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, "
                f"but we only have log segments from offset {self.start_offset} up to {self.end_offset}.",
            )
        if not self.directory.online:
            raise LogDirectoryFailure(self.directory, self.directory.error)
        if offset >= upper_offset:
            return LogSlice(None, 0, 0, offset, self.directory)
        try:
            return lookup.read(self, offset, max_bytes, min(upper_offset, self.end_offset), min_one, waiting)
        except OSError as error:
            raise self.directory.failure_for(error) from error

    def aborted_transactions(self, offset: int, upper_offset: int) -> list[EndedTransaction]:
        """The aborted transactions with records in [offset, upper_offset), as far as they have ended."""
        return lookup.aborted_transactions(self, offset, upper_offset)

    def segment_number(self, offset: int) -> int:
        """Number of the segment that contains `offset`: the last whose base is at most that."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with at least that timestamp."""
        with self.disk_faults():
            return lookup.offset_for_timestamp(self, timestamp)

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        with self.disk_faults():
            return lookup.offset_of_max_timestamp(self)

    # Cutting, cleaning, closing

    def truncate_to(self, offset: int) -> None:
        self.interrupt_appends()
        with truncation.cutting(self):
            truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.interrupt_appends()
        with truncation.cutting(self):
            truncation.truncate_fully(self, offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """By DeleteRecords, or as a follower's leader says: nothing before `offset` is readable any more."""
        truncation.advance_start(self, offset)

    def move_start(self, offset: int) -> None:
        self.start_offset = offset
        if self.on_start_moved is not None:
            self.on_start_moved()

    def delete_old_segments(self, now_ms: int, most: int | None = None) -> int:
        with self.disk_faults():
            return retention.delete_old_segments(self, now_ms, most)

    def flush(
        self, up_to: int | None = None, *, synced: frozenset[Segment] = frozenset(), for_s: float = math.inf
    ) -> bool:
        """Make everything before `up_to` (default: the log end) durable. `synced`: sealed segments known to be durable
        already, with the files beside them. Returns False if the time was up before the end. Any thread."""
        with self.disk_faults():
            return flushing.flush(self, up_to, synced, for_s)

    def close(self) -> None:
        """Trim indexes, write epochs and producer state; no appends from now on. (Flush afterwards for durability.)"""
        if self.closed:
            return
        with self.disk_faults():
            self.closed = True
            self._writable = False
            self.interrupt_appends()
            flushing.settle(self)
