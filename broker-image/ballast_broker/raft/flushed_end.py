"""Records, in a file beside the metadata log, how far the log was flushed: if it ends earlier, its disk lost data.

A voter acknowledges what is flushed, so after each flush the end is written here, without fsync: that survives a killed
process and costs no second sync. After a power failure the file may have an earlier end, which is true as well. It
never claims more than the log has: before a truncation the lower end is written with fsync. Loop thread only.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from crc32c import crc32c

from ballast_broker.raft.terms import NOWHERE, Position
from ballast_broker.seams import Disk, File

FLUSHED_END = "flushed-end"
_SIZE = 45  # numbers are padded to full width, so that each write has the same length


class Flushed(NamedTuple):
    end: Position
    voters: int
    """The number of voters then; 0 if this node was none of them."""


NOTHING = Flushed(NOWHERE, 0)


class FlushedEnd:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{FLUSHED_END}"
        self._file: File | None = None
        self.said = self._read() if disk.exists(self.path) else NOTHING

    def _read(self) -> Flushed:
        """NOTHING if the file was torn by a power failure, or is corrupt itself."""
        data = self._disk.read_bytes(self.path)
        with contextlib.suppress(ValueError):
            numbers, _, crc = data[:_SIZE].decode("ascii").rpartition(" ")
            if int(crc, 16) == crc32c(numbers.encode("ascii")):
                epoch, offset, voters = map(int, numbers.split())
                return Flushed(Position(epoch, offset), voters)
        return NOTHING

    def say(self, flushed: Flushed, *, durably: bool = False) -> None:
        if flushed == self.said and not durably:
            return
        (epoch, offset), voters = flushed
        numbers = f"{epoch:010d} {offset:019d} {voters:05d}"
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        self._file.pwrite(f"{numbers} {crc32c(numbers.encode('ascii')):08x}\n".encode("ascii"), 0)
        self.said = flushed
        if durably:
            self._file.sync()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
