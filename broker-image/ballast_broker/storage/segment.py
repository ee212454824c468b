"""Implements one segment: a `.log` file of batches and its two indexes, opened only when used.

Loop thread only, except that a held segment's file may be read from a thread. The log checks the offsets; this keeps
positions, sizes and timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ballast_broker.seams import Disk, File
from ballast_broker.storage.aborted import AbortedIndex
from ballast_broker.storage.batch_header import READ_AHEAD, header_at, walk
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from ballast_broker.storage.open_files import OpenFiles
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import HEADER_BYTES, LOG_OVERHEAD, Header

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
# A mark beside a segment: the log before it may not be on the disk up to the segment's base offset.
UNFLUSHED_SUFFIX: Final = ".unflushed"
OFFSET_DIGITS: Final = 20
LAST_OFFSET: Final = 2**63 - 1
MAXIMUM_RELATIVE_OFFSET: Final = 2**31 - 1
ROOM_FOR_ROLL: Final = 1  # in the time index: for the entry written when rolling
UNKNOWN: Final = -2


def base_offset_of(name: str) -> int | None:
    """The base offset in a `.log` file's name; None for a foreign file, even if its name is a number."""
    stem = name[: -len(LOG_SUFFIX)]
    if len(stem) != OFFSET_DIGITS or not stem.isascii() or not stem.isdigit() or int(stem) > LAST_OFFSET:
        return None
    return int(stem)


class Folder:
    """Where a partition's files are. Mutable: the path changes when the folder is renamed."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class Segment:
    """`size` is how much of the `.log` file holds valid batches; only a preallocated file may be longer."""

    __slots__ = (
        "_file",
        "_held_files",
        "_new",
        "_offset_index",
        "_time_index",
        "_writable",
        "aborted",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "deleted",
        "disk",
        "first_timestamp",
        "folder",
        "full",
        "index_size_limit",
        "max_timestamp",
        "offset_of_max_timestamp",
        "open_files",
        "references",
        "size",
        "suffix",
        "used_lately",
    )

    def __init__(
        self, disk: Disk, open_files: OpenFiles, folder: Folder, base_offset: int, size: int, index_size_limit: int
    ) -> None:
        self.disk = disk
        self.open_files = open_files
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
        self.index_size_limit = index_size_limit
        self.suffix = ""
        self.references = 0
        self.used_lately = False
        self.deleted = False
        self.full = False  # an index is full
        self.created_ms = 0
        self.bytes_since_index_entry = 0
        self.first_timestamp = UNKNOWN  # of the first batch; -1: the batch has none
        self.max_timestamp = UNKNOWN
        self.offset_of_max_timestamp = base_offset
        self._file: File | None = None
        self._writable = False
        self._held_files: list[File] = []  # read-only files, held when a writable one replaced them
        self._new = False  # created by us: its indexes have no files yet
        self._offset_index: SparseIndex | None = None
        self._time_index: SparseIndex | None = None
        self.aborted = AbortedIndex(disk, lambda: self.path(TRANSACTION_INDEX_SUFFIX))

    def path(self, kind: str = LOG_SUFFIX) -> str:
        return f"{self.folder.path}/{self.base_offset:020d}{kind}{self.suffix}"

    @property
    def offset_index(self) -> SparseIndex:
        if self._offset_index is None:
            self._offset_index = SparseIndex(
                self.disk, lambda: self.path(INDEX_SUFFIX), OFFSET_ENTRY, self.index_size_limit, new=self._new
            )
        return self._offset_index

    @property
    def time_index(self) -> SparseIndex:
        if self._time_index is None:
            self._time_index = SparseIndex(
                self.disk, lambda: self.path(TIME_INDEX_SUFFIX), TIME_ENTRY, self.index_size_limit, new=self._new
            )
        return self._time_index

    # Files

    def create(self, now_ms: int, *, preallocate_bytes: int = 0) -> None:
        """Create the empty `.log` file. It is opened, and the index files are created (`resume`), only by the first
        append: of thousands of new partitions few are written to at once."""
        self.created_ms = now_ms
        self.max_timestamp = -1
        self.first_timestamp = UNKNOWN
        file = self.disk.empty_file(self.path())
        try:
            if preallocate_bytes:
                file.truncate(preallocate_bytes)
        finally:
            file.close()
        self._new = True

    def file(self) -> File:
        """The file for reading. To keep it beyond the current call, hold the segment (`hold`)."""
        self.used_lately = True
        return self._file or self._use(self.disk.open(self.path(), writable=False), writable=False)

    def writable_file(self) -> File:
        self.used_lately = True
        if self._file is not None and self._writable:
            return self._file
        held = self._file if self.references else None
        if held is None:
            self._close()
        file = self.disk.open(self.path(), create=True)
        if held is not None:
            self._held_files.append(held)
        return self._use(file, writable=True)

    def _use(self, file: File, *, writable: bool) -> File:
        self._file = file
        self._writable = writable
        self.open_files.opened(self)
        return file

    def hold(self) -> File:
        """Keep the file open, even if the segment is deleted, until `release`."""
        file = self.file()
        self.references += 1
        return file

    def release(self) -> None:
        self.references -= 1
        if self.references:
            return
        while self._held_files:
            with suppress(OSError):  # of files that were only read it does not matter
                self._held_files.pop().close()
        if self.deleted:
            self.close()

    def close_if_idle(self) -> bool:
        if self.references:
            return False
        self._close(told=True)
        return True

    def close(self) -> None:
        if not self.references:
            self._close()

    def abandon(self) -> None:
        self.deleted = True
        self.close()

    def _close(self, *, told: bool = False) -> None:
        file, self._file = self._file, None
        if self._offset_index is not None:
            self._offset_index.drop_cache()
        if self._time_index is not None:
            self._time_index.drop_cache()
        if file is not None:
            if not told:
                self.open_files.forget(self)
            self._let_go(file)

    def _let_go(self, file: File) -> None:
        try:
            file.close()
        except OSError:
            # A disk that has failed may refuse even that; of a useless file it does not matter.
            if not self.deleted:
                raise

    # Appending

    def index_batch(self, last_offset: int, position: int, size: int, max_timestamp: int, interval: int) -> None:
        """Account for a batch that was appended at `position`; adds an index entry every `interval` bytes."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_index_entry > interval:
            if (self._offset_index or self.offset_index).append(last_offset - self.base_offset, position) <= 0:
                self.full = True
            self.add_time_entry()
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size
        self.size = position + size

    def add_time_entry(self) -> None:
        """Add a time index entry, but only if later than the last one, so that the index ascends."""
        index = self._time_index or self.time_index
        last = index.last()
        if self.max_timestamp > (last[0] if last else -1):
            room = index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
            if room <= ROOM_FOR_ROLL:
                self.full = True

    def resume(self) -> None:
        """Before the first append, or the first after startup: preallocate the indexes."""
        self.offset_index.preallocate()
        self.time_index.preallocate()
        self.full = self._indexes_are_full()

    def _indexes_are_full(self) -> bool:
        return (
            self.offset_index.count >= self.offset_index.capacity
            or self.time_index.count >= self.time_index.capacity - ROOM_FOR_ROLL
        )

    def seal(self) -> None:
        """No more appends: add the last time entry, trim both indexes, cut a preallocated file to its size."""
        self.add_time_entry()
        self.aborted.catch_up()
        self.trim_indexes()
        file = self.writable_file()
        if file.size() != self.size:
            file.truncate(self.size)

    def trim_indexes(self) -> None:
        self.offset_index.trim()
        self.time_index.trim()

    # Looking up

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, Header]]:
        return walk(self.file(), position, self.size if end is None else end)

    def floor_position(self, offset: int) -> int:
        """Where to start scanning for the batch that contains `offset`, or the next one."""
        number = self.offset_index.floor(offset - self.base_offset)
        if number < 0:
            return 0
        position = self.offset_index.at(number)[1]
        if not 0 <= position < max(self.size, 1):
            raise CorruptFile(f"{self.path(INDEX_SUFFIX)} points to {position} in a log of {self.size} bytes")
        return position

    def find(self, offset: int) -> tuple[int, Header] | None:
        """Position and header of the first batch whose last offset is at least `offset`."""
        start = end = self.floor_position(offset)
        for position, header in self.batches(start):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
            end = position + header.length + LOG_OVERHEAD
        self.check_walked(start, end)
        return None

    def check_walked(self, start: int, end: int) -> None:
        """Raise if a walk over all batches from `start`, an index position, ended at `end`, before the segment's end:
        what lies behind a corrupt header must not be skipped."""
        if end >= self.size:
            return
        if end == start > 0:
            raise CorruptFile(f"{self.path(INDEX_SUFFIX)} points to {start}, where no batch begins")
        raise self.spoiled_at(end)

    def spoiled_at(self, position: int) -> ApiError:
        """The error for a corrupt file: its content is not what was written, and nothing behind it can be read."""
        return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.path()} has no whole batch at {position} of {self.size}")

    def boundary_before(self, limit: int) -> tuple[int, int] | None:
        """End position and next offset of the last batch that ends at or before `limit`; None if no batch does."""
        number = self.offset_index.floor(limit, column=1)
        start = self.offset_index.at(number)[1] if number >= 0 else 0
        first = header_at(self.file(), start, self.size) if start > 0 else None
        if first is not None and start + first.length + LOG_OVERHEAD > limit:  # usual if each batch has an entry
            return start, first.base_offset  # the batch before it ends there
        result = None
        ahead = HEADER_BYTES if first is None else READ_AHEAD
        for position, header in walk(self.file(), start, self.size, ahead):
            end = position + header.length + LOG_OVERHEAD
            if end > limit:
                break
            result = (end, header.base_offset + header.last_offset_delta + 1)
        if result is None and start > 0:  # no batch at `start`
            return start, self._offset_before(number, start)
        return result

    def _offset_before(self, number: int, position: int) -> int:
        """Next offset of the batches that end at `position`, which entry `number` points to."""
        start = self.offset_index.at(number - 1)[1] if number > 0 else 0
        result = self.base_offset
        for _, header in self.batches(start, position):
            result = header.base_offset + header.last_offset_delta + 1
        return result

    def largest_timestamp(self) -> int:
        """From memory, else from the time index's last entry; -1 if no record has a timestamp."""
        if self.max_timestamp == UNKNOWN:
            last = self.time_index.last()
            self.max_timestamp = last[0] if last else -1
            if last:
                self.offset_of_max_timestamp = self.base_offset + last[1]
        return self.max_timestamp

    def retention_timestamp(self) -> int:
        """For retention by time: the largest record timestamp, else the file's modification time."""
        timestamp = self.largest_timestamp()
        return timestamp if timestamp >= 0 else self.disk.modified_ms(self.path())

    def check_age(self) -> None:
        """Check before deleting by age: a time index that ends before the segment's first batch is corrupt."""
        if 0 <= self.largest_timestamp() < self.first_batch_timestamp():
            raise CorruptFile(f"{self.path(TIME_INDEX_SUFFIX)} ends before the log begins")

    def first_batch_timestamp(self) -> int:
        """From here rolling by time counts; -1 if there is no timestamp."""
        if self.first_timestamp == UNKNOWN and self.size:
            first = next(self.batches(), None)
            self.first_timestamp = first[1].max_timestamp if first else -1
        return self.first_timestamp if self.first_timestamp >= 0 else -1
