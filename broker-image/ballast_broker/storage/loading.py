"""Loads a `Log` from its folder: after a clean shutdown by file sizes and tails, after a crash by scanning.

Runs in a thread, before anybody else has the log. Resolves everything that a crash leaves: `.deleted` and `.cleaned`
files are removed, `.swap` is completed, overlaps and torn batches are cut off, indexes are rebuilt.
"""

from __future__ import annotations

import errno
from uuid import UUID

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import outdated_checkpoints, retention, truncation
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
from ballast_broker.storage.leftovers import keep_rest, resolve_leftovers
from ballast_broker.storage.log import Log
from ballast_broker.storage.open_files import OpenFiles
from ballast_broker.storage.producer_snapshots import ProducerSnapshots, replay, snapshot_offsets
from ballast_broker.storage.producers import ProducerStates
from ballast_broker.storage.recovery import adopt_scan, cut, has_sound_batch, rebuild_indexes, scan_segment
from ballast_broker.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    UNFLUSHED_SUFFIX,
    Folder,
    Segment,
    base_offset_of,
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
    """Create a folder with one empty segment. Never overwrites records that are there already."""
    if not context.disk.make_directory(path) and any(name.endswith(LOG_SUFFIX) for name in context.disk.list(path)):
        raise FileExistsError(errno.EEXIST, "a log is there that was not loaded", path)
    outdated_checkpoints.mark_outdated(context.disk, path, directory.checkpoints, topic_partition)
    folder = Folder(path)
    log = Log(
        context, directory, folder, topic_partition, topic_id, config, [],
        start_offset=start_offset, end_offset=start_offset, recovery_point=0,
        epochs=LeaderEpochs(), producers=ProducerStates(), snapshots=ProducerSnapshots(context.disk, folder, []),
    )  # fmt: skip
    if topic_id != ZERO_UUID:
        # A crash may tear it, which does no harm: the log is still empty then.
        write_new_unsynced(context.disk, f"{path}/{PARTITION_METADATA}", render_partition_metadata(topic_id))
    log.new_segment(start_offset)
    return log


def write_topic_id(log: Log, topic_id: UUID) -> None:
    log.topic_id = topic_id
    path = f"{log.folder.path}/{PARTITION_METADATA}"
    write_unsynced(log.context.disk, path, render_partition_metadata(topic_id))


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
    cleaned_to: int = 0,
    no_copy_below: int = 0,
) -> Log:
    """Load the log of an existing folder. The caller turns an OSError into a failed directory. CorruptFile if sound
    records of an offset below `no_copy_below`, of which nobody else has a copy, would be cut off with damaged ones."""
    loading = _Loading(context, path, config, recovery_point, cleaned_to, no_copy_below)
    return loading.load(directory, topic_partition, start_offset, clean)


class _Loading:
    """The state while one folder is being loaded."""

    def __init__(
        self,
        context: LogContext,
        path: str,
        config: LogConfig,
        recovery_point: int,
        cleaned_to: int,
        no_copy_below: int,
    ) -> None:
        self.context = context
        self.disk = context.disk
        self.folder = Folder(path)
        self.config = config
        self.recovery_point = recovery_point
        self.cleaned_to = cleaned_to
        self.no_copy_below = no_copy_below
        found = self.disk.list(path)
        self.names: set[str] = set(resolve_leftovers(self.disk, path, found))
        self.private_files = OpenFiles()  # the shared ones belong to the loop thread
        self.segments: list[Segment] = []
        self.end_offset = 0
        self.last_epoch = -1  # of the last batch, if the tail was read
        self.epochs = LeaderEpochs()
        # From this base offset on transaction indexes cannot be trusted: a crash while cleaned segments were swapped in
        # may have kept old ones or lost new ones.
        stems = [name.split(".")[0] for name in found if name.endswith(SWAP_SUFFIX)]
        swapped = [int(stem) for stem in stems if stem.isdigit()]
        knows_aborted = any(TRANSACTION_INDEX_SUFFIX in name for name in found)
        self.rebuild_from = min(swapped) if swapped and knows_aborted else None

    def load(self, directory: LogDirectory, partition: TopicPartition, start_offset: int, clean: bool) -> Log:
        outdated_checkpoints.settle_marks(
            self.disk, self.folder.path, self.names, directory.checkpoints, partition, clean=clean
        )
        self._find_segments(clean)
        if not self.segments:
            if not clean:  # a crash came right after creation: no checkpoint speaks of this log
                start_offset = 0
                outdated_checkpoints.mark_outdated(self.disk, self.folder.path, directory.checkpoints, partition)
            self.end_offset = start_offset
        self.epochs = self._read_epochs()
        if clean:
            directory.lost_some |= self._check_tail()
            self._check_epochs(start_offset)
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
        # A power failure may bring back a snapshot from before a truncation: trust none beyond what was flushed.
        snapshots.remove_after(self.end_offset if clean else min(self.recovery_point, self.end_offset))
        if self.rebuild_from is not None:
            producers = ProducerStates()
            snapshots.load(producers, self.rebuild_from)
            replay(producers, self.segments, self.end_offset, rebuild_from=self.rebuild_from)
        elif self.end_offset not in snapshots.offsets or snapshots.is_large(self.end_offset):
            # A small one is read when first needed, by the event loop.
            producers = ProducerStates()
            snapshots.load(producers, self.end_offset)
            if self.segments and producers.map_end_offset < self.segments[-1].base_offset:
                bases = [segment.base_offset for segment in self.segments]
                replay(producers, self.segments, bases[-1])
                snapshots.take(producers, bases[-1], bases)
            replay(producers, self.segments, self.end_offset)
        return Log(
            self.context, directory, self.folder, partition, self._read_topic_id(), self.config, self.segments,
            start_offset=start, end_offset=self.end_offset, recovery_point=min(self.recovery_point, self.end_offset),
            epochs=self.epochs, producers=producers, snapshots=snapshots,
        )  # fmt: skip

    def _find_segments(self, clean: bool) -> None:
        path = self.folder.path
        for name in sorted(name for name in self.names if name.endswith(LOG_SUFFIX)):
            base_offset = base_offset_of(name)
            if base_offset is not None:
                size = self.disk.size(f"{path}/{name}")
                limit = self.config.segment_index_bytes
                self.segments.append(Segment(self.disk, self.private_files, self.folder, base_offset, size, limit))
        known = {f"{segment.base_offset:020d}" for segment in self.segments}
        kinds = INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, UNFLUSHED_SUFFIX
        for name in [name for name in self.names if name.endswith(kinds)]:
            if name.split(".")[0] not in known:
                self.disk.remove(f"{path}/{name}")
                self.names.discard(name)
        for segment in self.segments:
            self._look_for_aborted(segment)
        if self.segments:
            last = self.segments[-1].base_offset
            self._settle_unflushed(last if clean else max(self.recovery_point, self.cleaned_to))

    def _settle_unflushed(self, flushed: int) -> None:
        """Remove marks up to `flushed`. We drop a mark when we flush or clean past it, so one that is left there comes
        from before another program flushed or cleaned the log, perhaps leaving gaps."""
        for name in [name for name in self.names if name.endswith(UNFLUSHED_SUFFIX)]:
            if int(name.split(".")[0]) <= flushed:
                self.disk.remove(f"{self.folder.path}/{name}")
                self.names.discard(name)

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

    def _check_tail(self) -> bool:
        """After a clean shutdown: read only the tail, from the last index entry on. Returns whether batches had to be
        cut off there, which must have been damaged since."""
        for segment in self.segments:
            if not self._has_indexes(segment):
                rebuild_indexes(segment, self.config.index_interval_bytes, active=False)
        if self.segments:
            active = self.segments[-1]
            size, end = active.size, self._tail(active)
            self.end_offset = self._recover_segment(active) if end is None else end
            return active.size < size
        return False

    def _tail(self, segment: Segment) -> int | None:
        """The offset after the segment's last batch; None if its batches do not reach the end of the file."""
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
            self.last_epoch = header.leader_epoch
            if header.max_timestamp > largest:
                segment.max_timestamp = largest = header.max_timestamp
                segment.offset_of_max_timestamp = next_offset - 1
        return next_offset if end == segment.size else None

    def _check_epochs(self, start_offset: int) -> None:
        """Rebuild the epochs if the file lacks the last batch's epoch, so is not of this log: by such a file a follower
        would not notice that it has diverged from its leader."""
        self.epochs.truncate_from_end(self.end_offset)
        if start_offset < self.end_offset and 0 <= self.last_epoch != self.epochs.latest:
            self.epochs = self._epochs_from_batches()

    # After a crash

    def _recover(self) -> None:
        if not self.segments:
            return
        bases = [segment.base_offset for segment in self.segments]
        first = self._check_flushed(max([0, *[n for n, base in enumerate(bases) if base <= self.recovery_point]]))
        number = first
        self.end_offset = self.segments[first].base_offset
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset < self.end_offset:
                self._replace_by_rest(number, self.end_offset)
                continue
            size = segment.size
            self.end_offset = self._recover_segment(segment)
            number += 1
            if number < len(self.segments) and (segment.size < size or self._hole_before(self.segments[number])):
                self._drop(number)

    def _hole_before(self, segment: Segment) -> bool:
        """A gap may stem from compaction, or be records that never reached the disk: the mark tells."""
        is_marked = f"{segment.base_offset:020d}{UNFLUSHED_SUFFIX}" in self.names
        return is_marked and self.end_offset < segment.base_offset

    def _check_flushed(self, first: int) -> int:
        """Of segments before the recovery point check only that their indexes exist and are plausible. Returns the
        number of the first segment to scan, which is lower if some segments turned out to be covered by others."""
        number = 0
        while number < first:
            segment = self.segments[number]
            following = self.segments[number + 1]
            end = self._end_of(segment)
            if end > following.base_offset:
                self._rebuild_aborted(segment)
                count = len(self.segments)
                self._replace_by_rest(number + 1, end)
                first += len(self.segments) - count
            else:
                number += 1
        return first

    def _end_of(self, segment: Segment) -> int:
        """The offset after its last batch; rebuilds its indexes if they are implausible."""
        try:
            if not self._has_indexes(segment):
                raise CorruptFile("an index is missing")
            entry = segment.offset_index.last()
            if entry is not None and not (entry[0] > 0 and 0 <= entry[1] < segment.size):
                raise CorruptFile("the offset index does not fit the log")
            last = self._last_offset(segment)
            if not self._time_index_fits(segment, last):
                raise CorruptFile("the time index does not fit the log")
        except CorruptFile:
            rebuild_indexes(segment, self.config.index_interval_bytes, active=False)
            last = self._last_offset(segment)
        return last + 1

    def _last_offset(self, segment: Segment) -> int:
        """Read from the batches after the last index entry."""
        entry = segment.offset_index.last()
        batches = segment.batches(entry[1] if entry else 0)
        surely = segment.base_offset + (entry[0] if entry else -1)
        return max([surely, *[header.base_offset + header.last_offset_delta for _, header in batches]])

    def _time_index_fits(self, segment: Segment, last_offset: int) -> bool:
        """A sealed segment's last time entry is its largest timestamp; without timestamps there is no entry."""
        last = segment.time_index.last()
        if last is None:
            return segment.first_batch_timestamp() < 0
        fits = last[0] >= 0 and last[1] <= last_offset - segment.base_offset
        return fits and (last != (0, 0) or segment.time_index.count == 1)

    def _recover_segment(self, segment: Segment) -> int:
        """Scan with CRCs, truncate at the first bad batch, rewrite the indexes; returns the next offset."""
        found = scan_segment(segment, self.config.index_interval_bytes)
        if self.no_copy_below and found.valid_bytes < segment.size:
            self._check_nothing_sound_follows(segment, found.valid_bytes)
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

    def _check_nothing_sound_follows(self, segment: Segment, position: int) -> None:
        following = self.segments[self.segments.index(segment) + 1 :]
        for each, start in [(segment, position), *[(later, 0) for later in following]]:
            if has_sound_batch(each, start, self.no_copy_below):
                raise CorruptFile(f"{segment.path()} is spoilt at byte {position}, and sound records follow")

    def _replace_by_rest(self, number: int, end_offset: int) -> None:
        """Replace a segment that begins before `end_offset`, the previous one's end, by its part beyond, if any."""
        segment = self.segments[number]
        kept = keep_rest(self.disk, segment, end_offset, self.config.index_interval_bytes)
        self._retire(segment)
        following = self.segments[number + 1 :]
        if kept and following and following[0].base_offset == end_offset:
            del following[0]  # the same part, made by an earlier start that was killed
        self.segments[number:] = kept + following

    def _drop(self, number: int) -> None:
        """Drop the segments behind a cut or a hole: they do not continue the log."""
        for segment in self.segments[number:]:
            self._retire(segment)
        del self.segments[number:]
        # Before anything is appended: if the power failed again they would come back, and seem to continue the log.
        self.disk.sync_directory(self.folder.path)

    def _retire(self, segment: Segment) -> None:
        """In a thread, but before maintenance runs on the loop: so its list of removals may be used."""
        self.context.remove_later(retention.retire(segment), self.config.file_delete_delay_ms)

    def _read_epochs(self) -> LeaderEpochs:
        if LEADER_EPOCHS not in self.names:
            flushed = self.segments and self.recovery_point > self.segments[0].base_offset
            return self._epochs_from_batches() if flushed else LeaderEpochs()  # unflushed segments will be scanned
        try:
            return LeaderEpochs(parse_epochs(self.disk.read_bytes(f"{self.folder.path}/{LEADER_EPOCHS}")))
        except CorruptFile:
            return self._epochs_from_batches()

    def _epochs_from_batches(self) -> LeaderEpochs:
        """Rebuild missing or torn epochs: every batch has its leader epoch."""
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
