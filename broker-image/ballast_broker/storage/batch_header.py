"""The 61 bytes before the records of a batch (magic 2), and walking over the batches of a file.

PURE but for the file it is given. Any thread. Nothing here looks at records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ballast_broker.seams import Bytes, File

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LENGTH_END = 12  # base offset and length come before what the length counts
CRC_END = 21
MINIMUM_LENGTH = HEADER_SIZE - LENGTH_END
LEADER_EPOCH_POSITION = 12
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
NO_TIMESTAMP = -1

_READ_AHEAD = 1 << 15


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)


def header_at(buffer: Bytes, position: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_is_right(batch: Bytes) -> bool:
    view = memoryview(batch)
    return bool(crc32c(view[CRC_END:]) == int.from_bytes(view[17:21], "big"))


def walk(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch in [position, end). Ends early at the first that is not a whole batch."""
    chunk, chunk_start = b"", position
    ahead = HEADER_SIZE
    while position + HEADER_SIZE <= end:
        inside = position - chunk_start
        if inside + HEADER_SIZE > len(chunk):
            chunk, chunk_start, inside = file.pread(min(ahead, end - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = header_at(chunk, inside)
        if header.magic != 2 or header.length < MINIMUM_LENGTH or position + header.size > end:
            return
        yield position, header
        position += header.size
        ahead = _READ_AHEAD if header.size < _READ_AHEAD // 4 else HEADER_SIZE
