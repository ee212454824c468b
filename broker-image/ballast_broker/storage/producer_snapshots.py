"""Keeps a log's `.snapshot` files of producer state: takes and loads them, and replays the batches that came after.

Loop thread, or the thread that loads the log before anybody else has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ballast_broker.seams import Disk
from ballast_broker.storage.checkpoint import write_unsynced
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.producers import NO_OFFSET, WINDOW, ProducerState, ProducerStates
from ballast_broker.storage.segment import Folder, Segment
from ballast_broker.storage.transactions import EndedTransaction, read_marker
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import CONTROL_MASK, LOG_OVERHEAD, TRANSACTIONAL_MASK, Header

SNAPSHOT_SUFFIX = ".snapshot"
# How far back to look for batches that a producer may send again: more than it has in flight.
LOOK_BACK_BYTES = 8 << 20
LARGE_BYTES = 128 << 10  # of 3,000 producers, which take the event loop 5 ms to read


def snapshot_path(folder: Folder, offset: int) -> str:
    return f"{folder.path}/{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    return sorted(
        int(name[: -len(SNAPSHOT_SUFFIX)])
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX) and name[: -len(SNAPSHOT_SUFFIX)].isdigit()
    )


class ProducerSnapshots:
    """The snapshots that a log has on disk."""

    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: Folder, offsets: list[int]) -> None:
        self._disk = disk
        self._folder = folder
        self.offsets = offsets

    def take(self, producers: ProducerStates, offset: int, segment_bases: Iterable[int]) -> None:
        """Write the state at `offset`; remove snapshots that are neither at a segment's base nor the newest."""
        write_unsynced(self._disk, snapshot_path(self._folder, offset), producers.render())
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()
        wanted = {offset, *segment_bases}
        for old in [old for old in self.offsets if old not in wanted]:
            self.remove(old)

    def is_large(self, offset: int) -> bool:
        return self._disk.size(snapshot_path(self._folder, offset)) > LARGE_BYTES

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
        try:
            self._disk.remove(snapshot_path(self._folder, offset))
        except FileNotFoundError:
            return

    def remove_after(self, offset: int) -> None:
        for later in [later for later in self.offsets if later > offset]:
            self.remove(later)

    def remove_before(self, offset: int) -> None:
        for earlier in [earlier for earlier in self.offsets if earlier < offset]:
            self.remove(earlier)

    def load(self, producers: ProducerStates, end_offset: int) -> None:
        """Load the newest intact snapshot at or before `end_offset`; removes corrupt ones."""
        for offset in reversed([offset for offset in self.offsets if offset <= end_offset]):
            try:
                producers.load(self._disk.read_bytes(snapshot_path(self._folder, offset)), offset)
                return
            except (CorruptFile, FileNotFoundError):
                self.remove(offset)
        producers.clear(0)


def replay(
    producers: ProducerStates, segments: list[Segment], end_offset: int, *, rebuild_from: int | None = None
) -> None:
    """Bring the states up to `end_offset` from the headers of the batches after `map_end_offset`.

    `rebuild_from`: rebuild the transaction indexes of segments that begin there or later on the way.
    """
    start = producers.map_end_offset
    for segment in segments:
        if rebuild_from is not None and segment.base_offset >= rebuild_from:
            segment.aborted.replace([])
    if start >= end_offset:
        producers.map_end_offset = end_offset
        return
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if following <= start or segment.base_offset >= end_offset:
            continue
        begin = segment.floor_position(start) if start > segment.base_offset else 0
        aborted = []
        for position, header in segment.batches(begin):
            if header.base_offset >= end_offset:
                break
            if header.base_offset + header.last_offset_delta >= start:
                ended = observe_stored(producers, segment, position, header)
                if ended is not None and ended.aborted:
                    aborted.append(ended)
        if rebuild_from is not None and segment.base_offset >= rebuild_from:
            segment.aborted.replace(aborted)
    producers.map_end_offset = end_offset


def look_back(state: ProducerState, producer_id: int, segments: list[Segment]) -> None:
    """A snapshot has only the last batch of each producer: look up the earlier ones near the log's end. If that part is
    corrupt, duplicates cannot be told from new batches, and the producer gets a retriable error."""
    found = _written_lately({producer_id}, segments)
    if found is None:
        text = f"{segments[-1].path()}: what producer {producer_id} wrote last cannot be read"
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)
    state.has_complete_window = True
    again = found.get(producer_id)
    if again is not None and again.epoch == state.epoch and again.last_offset == state.last_offset:
        state.batches = again.batches


def cut_back(producers: ProducerStates, segments: list[Segment], snapshots: ProducerSnapshots, offset: int) -> None:
    """The log was truncated to `offset`. Look up the states that are now unknown near the log's end, and only if they
    are not found there replay everything since the last snapshot: the loop waits for this."""
    unknown = producers.cut_back(offset)
    known = {producer_id: producers.get(producer_id) for producer_id in unknown}
    # The log's end does not tell where a transaction began, nor the coordinator epoch of the last marker.
    transactional = any(state is None or state.transactional for state in known.values())
    found = _written_lately(unknown, segments) if unknown and not transactional else None
    states = {producer_id: None if found is None else found.get(producer_id) for producer_id in unknown}
    if any(state is None for state in states.values()):
        ended = producers.ended  # a snapshot lacks transactions whose markers are not committed
        snapshots.load(producers, offset)
        replay(producers, segments, offset)
        producers.ended = sorted({*ended, *producers.ended})
    else:
        for producer_id, state in states.items():
            assert state is not None
            state.has_complete_window = len(state.batches) == WINDOW
            state.first_offset = NO_OFFSET
            producers.replace(producer_id, state)
    producers.map_end_offset = offset


def _written_lately(producer_ids: Collection[int], segments: list[Segment]) -> ProducerStates | None:
    """The producers' batches near the log's end; None if a corrupt header hides what may be the latest of them."""
    found = ProducerStates()
    for segment, start in _the_end_of(segments):
        end = start
        for position, header in segment.batches(start):
            end = position + header.length + LOG_OVERHEAD
            if header.producer_id in producer_ids:
                observe_stored(found, segment, position, header)
        if end < segment.size:
            return None
    return found


def _the_end_of(segments: list[Segment]) -> Iterator[tuple[Segment, int]]:
    """The segments that hold the last `LOOK_BACK_BYTES`, in order, each with the position to start from."""
    first, left = len(segments), LOOK_BACK_BYTES
    while first and left > 0:
        first -= 1
        left -= segments[first].size
    for segment in segments[first:]:
        number = segment.offset_index.floor(max(0, -left), column=1)
        yield segment, segment.offset_index.at(number)[1] if number >= 0 else 0
        left = 0


def observe_stored(
    producers: ProducerStates, segment: Segment, position: int, header: Header
) -> EndedTransaction | None:
    """Update the state by a batch that is read from a file."""
    batch = None
    if header.attributes & CONTROL_MASK and header.producer_id >= 0:
        batch = memoryview(segment.file().pread(header.length + LOG_OVERHEAD, position))
    return observe(producers, header, header.base_offset + header.last_offset_delta, batch)


def observe(
    producers: ProducerStates, header: Header, last_offset: int, batch: memoryview | None
) -> EndedTransaction | None:
    """Update the state by a batch that is in the log; `last_offset` is its last offset there. Returns the transaction
    that it ended, if that had records here. Only for a control batch `batch` is needed."""
    producer_id = header.producer_id
    if producer_id < 0:
        return None
    if header.attributes & CONTROL_MASK:
        marker = None if batch is None else read_marker(batch)
        if marker is None:
            if not header.record_count:
                producers.record_epoch(producer_id, header.producer_epoch, last_offset, header.max_timestamp)
            return None
        first, stable = producers.record_end_of_transaction(
            producer_id, header.producer_epoch, last_offset, marker.coordinator_epoch, header.max_timestamp
        )
        return EndedTransaction(producer_id, first, last_offset, stable, not marker.committed) if first >= 0 else None
    if header.base_sequence >= 0 or header.attributes & TRANSACTIONAL_MASK:
        producers.record(
            producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset_delta,
            last_offset,
            header.max_timestamp,
            transactional=bool(header.attributes & TRANSACTIONAL_MASK),
        )
    return None
