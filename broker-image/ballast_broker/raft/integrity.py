"""Verifies metadata from the disk or from another node: every CRC, and a snapshot's header and footer. PURE.

A record that is once misread is in every later snapshot; and a truncated snapshot, even an empty file, would pass for a
cluster that has nothing.
"""

from __future__ import annotations

from ballast_broker.raft.control_records import SNAPSHOT_FOOTER, SNAPSHOT_HEADER, control_kind
from ballast_wire.records import CorruptBatch, iterate_batches


class CorruptMetadata(Exception):
    """The metadata on this node's disk is unusable; the message names the file."""


def check_batches(batches: bytes | memoryview) -> None:
    """Raise CorruptBatch if any of these whole batches is corrupt."""
    for batch in iterate_batches(memoryview(batches)):
        batch.check_crc()


class SnapshotPieces:
    """Checks the bytes of a snapshot piece by piece; raises CorruptBatch as soon as they cannot be one."""

    def __init__(self) -> None:
        self._held = b""
        self._begun = False
        self._ended = False

    def feed(self, piece: bytes) -> bytes:
        """Add a piece; returns the batches that are complete now."""
        data = self._held + piece
        size = 0
        for batch in iterate_batches(memoryview(data), whole=False):
            batch.check_crc()
            kind = control_kind(batch)
            if self._begun is (kind == SNAPSHOT_HEADER) or self._ended:
                raise CorruptBatch(f"the batch at offset {batch.base_offset} is not what comes next in a snapshot")
            self._begun = True
            self._ended = kind == SNAPSHOT_FOOTER
            size += batch.size_bytes
        self._held = data[size:]
        return data[:size]

    def end(self) -> None:
        if self._held or not self._ended:
            raise CorruptBatch("it does not end as a snapshot ends")
