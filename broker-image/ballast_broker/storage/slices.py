"""Defines the results of appending and reading."""

from __future__ import annotations

from typing import NamedTuple

from ballast_broker.seams import File, Threads
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.segment import Segment


class AppendInfo(NamedTuple):
    """`log_append_time_ms` is -1 for CreateTime. A duplicate has the offsets of the batch already stored."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    size_bytes: int
    duplicate: bool = False


class LogSlice:
    """Whole batches in one file, which stays open and readable, even if deleted, until `release`."""

    __slots__ = ("_directory", "_segment", "file", "next_offset", "position", "size")

    def __init__(
        self, segment: Segment | None, position: int, size: int, next_offset: int, directory: LogDirectory
    ) -> None:
        self._segment = segment
        self.file: File | None = segment.hold() if segment is not None else None
        self.position = position
        self.size = size
        self.next_offset = next_offset
        self._directory = directory

    @property
    def threads(self) -> Threads:
        """The directory's threads, for reads that may wait for the disk."""
        return self._directory.threads

    def failed(self, error: OSError) -> None:
        """Report that a sendfile could not read the file."""
        self._directory.failure_for(error)

    def read(self) -> bytes:
        """May be called from a thread while the slice is held."""
        if self.file is None:
            return b""
        data = self.file.pread(self.size, self.position)
        if len(data) != self.size:
            raise OSError(f"{self.size} bytes expected at {self.position}, {len(data)} read")
        return data

    def release(self) -> None:
        segment, self._segment, self.file = self._segment, None, None
        if segment is not None:
            segment.release()
