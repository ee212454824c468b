"""Making a `Log` out of a folder: after a clean stop by sizes and tails, after a crash by scanning.

Runs in a thread per directory (or wherever), before anybody else has the log. Every leftover of a crash is resolved
here: `.deleted` and `.cleaned` go, `.swap` is completed, overlaps are cut, what is torn is cut, indexes are rebuilt.
"""

from __future__ import annotations

import errno
from uuid import UUID

from ballast_broker.log_config import LogConfig
from ballast_broker.storage import outdated, truncation
from ballast_broker.storage.checkpoint import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    parse_epochs,
    parse_partition_metadata,
    render_partition_metadata,
    write_new_unsynced,
    write_unsynced,
)
from ballast_broker.storage.context import LogContext
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.epochs import LeaderEpochs
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.leftovers import resolve_leftovers, resolve_overlap
from ballast_broker.storage.log import Log
from ballast_broker.storage.open_files import OpenFiles
from ballast_broker.storage.producer_snapshots import ProducerSnapshots, replay, snapshot_offsets
from ballast_broker.storage.producers import ProducerStates
from ballast_broker.storage.recovery import adopt_scan, cut, rebuild_indexes, scan_segment
from ballast_broker.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    UNFLUSHED_SUFFIX,
    Folder,
    Segment,
)
from ballast_wire.names import ZERO_UUID, TopicPartition
from ballast_wire.records import LOG_OVERHEAD


def create_log(
    context: LogContext,
    directory: LogDirectory,
    path: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: LogConfig,
    start_offset: int = 0,
) -> Log:
    """A new folder with one empty segment. Records that are there already are never written over."""
    if not context.disk.make_directory(path) and any(name.endswith(LOG_SUFFIX) for name in context.disk.list(path)):
        raise FileExistsError(errno.EEXIST, "a log is there that was not loaded", path)
    outdated.mark(context.disk, path, directory.outdated.checkpoints_of(topic_partition))
    log = _assemble(
        context, directory, Folder(path), topic_partition, topic_id, config, [], start_offset, start_offset,
        producers=ProducerStates(),
    )  # fmt: skip
    if topic_id != ZERO_UUID:
        # Cut by a crash it is as good as none: nothing was ever in this log.
        write_new_unsynced(context.disk, f"{path}/{PARTITION_METADATA}", render_partition_metadata(topic_id))
    log.new_segment(start_offset)
    return log


def write_topic_id(log: Log, topic_id: UUID) -> None:
    log.topic_id = topic_id
    path = f"{log.folder.path}/{PARTITION_METADATA}"
    write_unsynced(log.context.disk, path, render_partition_metadata(topic_id))


def _assemble(
    context: LogContext,
    directory: LogDirectory,
    folder: Folder,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: LogConfig,
    segments: list[Segment],
    start_offset: int,
    end_offset: int,
    recovery_point: int = 0,
    epochs: LeaderEpochs | None = None,
    producers: ProducerStates | None = None,
    snapshots: ProducerSnapshots | None = None,
) -> Log:
    return Log(
        context,
        directory,
        folder,
        topic_partition,
        topic_id,
        config,
        segments,
        start_offset=start_offset,
        end_offset=end_offset,
        recovery_point=recovery_point,
        epochs=epochs or LeaderEpochs(),
        producers=producers,
        snapshots=snapshots or ProducerSnapshots(context.disk, folder, []),
    )


def load_log(
    context: LogContext,
    directory: LogDirectory,
    path: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int = 0,
    start_offset: int = 0,
) -> Log:
    """The log of a folder that exists. OSError is the caller's to turn into a failed directory."""
    return _Loading(context, path, config, recovery_point).load(directory, topic_partition, start_offset, clean)


class _Loading:
    """One folder while it is being loaded."""

    def __init__(self, context: LogContext, path: str, config: LogConfig, recovery_point: int) -> None:
        self.context = context
        self.disk = context.disk
        self.folder = Folder(path)
        self.config = config
        self.recovery_point = recovery_point
        found = self.disk.list(path)
        self.names: set[str] = set(resolve_leftovers(self.disk, path, found))
        self.private_files = OpenFiles()  # the shared ones belong to the loop's thread
        self.segments: list[Segment] = []
        self.end_offset = 0
        self.epochs = LeaderEpochs()
        # Of segments that begin here or later the transaction indexes are not to be believed: they may have stayed
        # behind, or gone, where the result of a cleaning was being put in place.
        stems = [name.split(".")[0] for name in found if name.endswith(SWAP_SUFFIX)]
        swapped = [int(stem) for stem in stems if stem.isdigit()]
        knows_aborted = any(TRANSACTION_INDEX_SUFFIX in name for name in found)
        self.rebuild_from = min(swapped) if swapped and knows_aborted else None

    def load(self, directory: LogDirectory, partition: TopicPartition, start_offset: int, clean: bool) -> Log:
        if marks := outdated.marked(self.names):
            directory.outdated.add(partition, marks)
        self._find_segments(start_offset)
        self.epochs = self._read_epochs()
        if clean:
            self._check_tail()
        else:
            self._recover()
        first = self.segments[0].base_offset if self.segments else start_offset
        start = max(start_offset, first)
        log = self._log(directory, partition, start, clean)
        if start > self.end_offset or not self.segments:
            truncation.truncate_fully(log, start)
        for segment in log.segments:
            segment.close()
            segment.open_files = self.context.open_files
        return log

    def _log(self, directory: LogDirectory, partition: TopicPartition, start: int, clean: bool) -> Log:
        self.epochs.truncate_from_end(self.end_offset)
        self.epochs.truncate_from_start(start)
        producers: ProducerStates | None = None
        snapshots = ProducerSnapshots(self.disk, self.folder, snapshot_offsets(self.names))
        # A loss of power may bring back one of a log that was cut: later ones than what was flushed are not believed.
        snapshots.remove_after(self.end_offset if clean else min(self.recovery_point, self.end_offset))
        if self.rebuild_from is not None:
            producers = ProducerStates()
            snapshots.load(producers, self.rebuild_from)
            replay(producers, self.segments, self.end_offset, rebuild_from=self.rebuild_from)
        elif self.end_offset not in snapshots.offsets:  # else it is read when it is needed
            producers = ProducerStates()
            snapshots.load(producers, self.end_offset)
            if self.segments and producers.map_end_offset < self.segments[-1].base_offset:
                bases = [segment.base_offset for segment in self.segments]
                replay(producers, self.segments, bases[-1])
                snapshots.take(producers, bases[-1], bases)
            replay(producers, self.segments, self.end_offset)
        return _assemble(
            self.context,
            directory,
            self.folder,
            partition,
            self._read_topic_id(),
            self.config,
            self.segments,
            start,
            self.end_offset,
            min(self.recovery_point, self.end_offset),
            self.epochs,
            producers,
            snapshots,
        )

    def _find_segments(self, start_offset: int) -> None:
        path = self.folder.path
        for name in sorted(name for name in self.names if name.endswith(LOG_SUFFIX)):
            stem = name[: -len(LOG_SUFFIX)]
            if stem.isdigit():
                size = self.disk.size(f"{path}/{name}")
                limit = self.config.segment_index_bytes
                self.segments.append(Segment(self.disk, self.private_files, self.folder, int(stem), size, limit))
        known = {f"{segment.base_offset:020d}" for segment in self.segments}
        kinds = INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, UNFLUSHED_SUFFIX
        for name in [name for name in self.names if name.endswith(kinds)]:
            if name.split(".")[0] not in known:
                self.disk.remove(f"{path}/{name}")
                self.names.discard(name)
        for segment in self.segments:
            self._look_for_aborted(segment)
        if not self.segments:
            self.end_offset = start_offset

    def _look_for_aborted(self, segment: Segment) -> None:
        if f"{segment.base_offset:020d}{TRANSACTION_INDEX_SUFFIX}" not in self.names:
            return
        segment.aborted.there = True
        try:
            segment.aborted.check(segment.base_offset)
        except CorruptFile:
            self._rebuild_aborted(segment)

    def _rebuild_aborted(self, segment: Segment) -> None:
        known = self.rebuild_from
        self.rebuild_from = segment.base_offset if known is None else min(known, segment.base_offset)

    def _has_indexes(self, segment: Segment) -> bool:
        stem = f"{segment.base_offset:020d}"
        return stem + INDEX_SUFFIX in self.names and stem + TIME_INDEX_SUFFIX in self.names

    def _check_tail(self) -> None:
        """After a clean stop: only where the log ends, from the last index entry on."""
        for segment in self.segments:
            if not self._has_indexes(segment):
                rebuild_indexes(segment, self.config.index_interval_bytes, active=False)
        if self.segments:
            active = self.segments[-1]
            end = self._tail(active)
            self.end_offset = self._recover_segment(active) if end is None else end

    def _tail(self, segment: Segment) -> int | None:
        """The offset after the segment's last batch; None if it is not whole up to its end."""
        if not segment.size:
            segment.max_timestamp = -1
            return segment.base_offset
        try:
            entry = segment.offset_index.last()
            largest = segment.largest_timestamp()
        except (CorruptFile, FileNotFoundError):
            return None
        position = entry[1] if entry else 0
        if not 0 <= position < segment.size:
            return None
        next_offset, end = segment.base_offset, 0
        for start, header in segment.batches(position):
            next_offset = header.base_offset + header.last_offset_delta + 1
            end = start + header.length + LOG_OVERHEAD
            if header.max_timestamp > largest:
                segment.max_timestamp = largest = header.max_timestamp
                segment.offset_of_max_timestamp = next_offset - 1
        return next_offset if end == segment.size else None

    # After a crash

    def _recover(self) -> None:
        if not self.segments:
            return
        bases = [segment.base_offset for segment in self.segments]
        first = max([0, *[n for n, base in enumerate(bases) if base <= self.recovery_point]])
        # Before a mark not all is flushed, whatever a checkpoint says that was written before the log was cut.
        marked = next((n for n in range(1, first + 1) if self._is_marked(self.segments[n])), None)
        if marked is not None:
            first = marked - 1
            self.recovery_point = bases[first]
        first = self._check_flushed(first)
        number = first
        self.end_offset = self.segments[first].base_offset
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset < self.end_offset:
                kept = resolve_overlap(self.disk, segment, self.end_offset, self.config.index_interval_bytes)
                self.segments[number : number + 1] = kept
                continue
            size = segment.size
            self.end_offset = self._recover_segment(segment)
            number += 1
            if number < len(self.segments) and (segment.size < size or self._hole_before(self.segments[number])):
                self._drop(number)

    def _hole_before(self, segment: Segment) -> bool:
        """A gap may be the cleaner's work, or records that were never written back."""
        return self._is_marked(segment) and self.end_offset < segment.base_offset

    def _is_marked(self, segment: Segment) -> bool:
        return f"{segment.base_offset:020d}{UNFLUSHED_SUFFIX}" in self.names

    def _check_flushed(self, first: int) -> int:
        """Segments before the recovery point: only that their indexes are there and can be right. Answers where the
        scan begins, which is earlier by as many segments as turned out to be covered by others."""
        number = 0
        while number < first:
            segment = self.segments[number]
            following = self.segments[number + 1]
            tail = self._plausible_end(segment)
            if tail > following.base_offset:
                kept = resolve_overlap(self.disk, following, tail, self.config.index_interval_bytes)
                self.segments[number + 1 : number + 2] = kept
                self._rebuild_aborted(segment)
                first += len(kept) - 1
            number += 1
        return first

    def _plausible_end(self, segment: Segment) -> int:
        """An offset that the segment surely reaches; rebuilds its indexes if they cannot be right."""
        entry = None
        try:
            if not self._has_indexes(segment):
                raise CorruptFile("an index is missing")
            entry = segment.offset_index.last()
            if entry is not None and not (entry[0] > 0 and 0 <= entry[1] < segment.size):
                raise CorruptFile("the offset index does not fit the log")
            if not self._time_index_fits(segment):
                raise CorruptFile("the time index does not fit the log")
        except CorruptFile:
            rebuild_indexes(segment, self.config.index_interval_bytes, active=False)
            entry = segment.offset_index.last()
        return segment.base_offset + entry[0] + 1 if entry else segment.base_offset

    def _time_index_fits(self, segment: Segment) -> bool:
        """A sealed segment's last entry is that of its latest record; a batch without timestamps has none."""
        last = segment.time_index.last()
        if last is None:
            return segment.first_batch_timestamp() < 0
        entry = segment.offset_index.last()
        surely = segment.base_offset + (entry[0] if entry else 0)
        batches = segment.batches(entry[1] if entry else 0)
        end = max([surely, *[header.base_offset + header.last_offset_delta for _, header in batches]])
        return (
            last[0] >= 0 and last[1] <= end - segment.base_offset and (last != (0, 0) or segment.time_index.count == 1)
        )

    def _recover_segment(self, segment: Segment) -> int:
        """Scan with CRCs, cut, write the indexes anew; answers the next offset."""
        found = scan_segment(segment, self.config.index_interval_bytes)
        cut(segment, found)
        if found.ends_transactions or segment.aborted.there:
            self._rebuild_aborted(segment)
        if segment is not self.segments[-1]:
            found.add_time_entry()
        adopt_scan(segment, found)
        self.epochs.truncate_from_end(segment.base_offset)
        for epoch, offset in found.epochs:
            if self.epochs.latest is None or epoch > self.epochs.latest:
                self.epochs.assign(epoch, offset)
        return found.next_offset

    def _drop(self, number: int) -> None:
        """Segments behind a cut: what they hold does not continue the log."""
        for segment in self.segments[number:]:
            for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, UNFLUSHED_SUFFIX):
                path = segment.path(kind)
                if self.disk.exists(path):
                    self.disk.rename(path, path + DELETED_SUFFIX)
        del self.segments[number:]

    def _read_epochs(self) -> LeaderEpochs:
        if LEADER_EPOCHS not in self.names:
            return LeaderEpochs()
        try:
            return LeaderEpochs(parse_epochs(self.disk.read_bytes(f"{self.folder.path}/{LEADER_EPOCHS}")))
        except CorruptFile:
            return self._epochs_from_batches()

    def _epochs_from_batches(self) -> LeaderEpochs:
        """The file was cut in the middle of being written: every batch says its epoch."""
        epochs = LeaderEpochs()
        for segment in self.segments:
            for _, header in segment.batches():
                if header.leader_epoch >= 0 and (epochs.latest is None or header.leader_epoch > epochs.latest):
                    epochs.assign(header.leader_epoch, header.base_offset)
        return epochs

    def _read_topic_id(self) -> UUID:
        if PARTITION_METADATA not in self.names:
            return ZERO_UUID
        try:
            return parse_partition_metadata(self.disk.read_bytes(f"{self.folder.path}/{PARTITION_METADATA}"))
        except CorruptFile:
            return ZERO_UUID
