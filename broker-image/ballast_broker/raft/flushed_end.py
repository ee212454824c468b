"""How far the metadata log once was on stable storage, beside the log: what is missing from it was not lost by a crash.

A voter acknowledges what is flushed, so after each flush the end is written here, into the page cache and no further:
that outlives a process that is killed, and costs no second sync. A machine that loses power may bring back an earlier
end, which is as true. It never says more than what is there: before the log is cut it is on stable storage that it
says less. Loop thread only.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from crc32c import crc32c

from ballast_broker.raft.terms import NOWHERE, Position
from ballast_broker.seams import Disk, File

FLUSHED_END = "flushed-end"
_SIZE = 45  # all numbers have their full width: what is written over another is as long


class Flushed(NamedTuple):
    end: Position
    voters: int
    """How many voters the log named then."""


NOTHING = Flushed(NOWHERE, 0)


class FlushedEnd:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{FLUSHED_END}"
        self._file: File | None = None
        self.said = self._read() if disk.exists(self.path) else NOTHING

    def _read(self) -> Flushed:
        """NOTHING where it was torn by a loss of power, or is spoilt itself."""
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
