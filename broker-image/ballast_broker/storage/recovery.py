"""Scans a segment's batches: finds how much of it is valid, and rebuilds its indexes from that.

Any thread; each call opens what it needs and closes it. `scan` checks every batch (with its CRC unless told otherwise)
and stops at the first invalid one, where the log is to be truncated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

from crc32c import crc32c

from ballast_broker.seams import File
from ballast_broker.storage.batch_header import MINIMUM_LENGTH
from ballast_broker.storage.errors import OlderFormat
from ballast_broker.storage.segment import MAXIMUM_RELATIVE_OFFSET, Segment
from ballast_wire.records import CONTROL_MASK, CRC_FROM, HEADER, HEADER_BYTES, LOG_OVERHEAD, Header

_CHUNK = 1 << 20
_OLDER_HEADER = struct.Struct(">qiIb")
_OLDER_MAGIC = (0, 1)
_CRC_BYTES = 4
_MAGIC = b"\x02"
_MAGIC_AT = 16


@dataclass(slots=True)
class Scan:
    """The result of scanning a segment. Picklable: a scan may run in another process."""

    base_offset: int
    next_offset: int
    valid_bytes: int = 0
    max_timestamp: int = -1
    offset_of_max_timestamp: int = -1
    first_timestamp: int | None = None
    bytes_since_index_entry: int = 0
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    ends_transactions: bool = False
    older_format: bool = False  # next comes a message that Kafka can read, but Ballast cannot

    def add(self, position: int, header: Header, interval: int) -> None:
        last = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, last
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp
        if self.bytes_since_index_entry > interval:
            self.offset_entries.append((last - self.base_offset, position))
            self.add_time_entry()
            self.bytes_since_index_entry = 0
        size = header.length + LOG_OVERHEAD
        self.bytes_since_index_entry += size
        if header.leader_epoch >= 0 and (not self.epochs or header.leader_epoch > self.epochs[-1][0]):
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.attributes & CONTROL_MASK and header.producer_id >= 0:
            self.ends_transactions = True
        self.valid_bytes = position + size
        self.next_offset = last + 1

    def add_time_entry(self) -> None:
        if self.max_timestamp > (self.time_entries[-1][0] if self.time_entries else -1):
            self.time_entries.append((self.max_timestamp, self.offset_of_max_timestamp - self.base_offset))


def scan(file: File, size: int, base_offset: int, interval: int, *, check_crc: bool = True) -> Scan:
    """Scan the batches from the beginning up to the first that is incomplete or invalid."""
    result = Scan(base_offset, base_offset, offset_of_max_timestamp=base_offset)
    for position, header, batch in _whole_batches(file, size):
        if not base_offset <= result.next_offset <= header.base_offset or header.last_offset_delta < 0:
            break
        if header.base_offset + header.last_offset_delta - base_offset > MAXIMUM_RELATIVE_OFFSET:
            break
        if check_crc and crc32c(batch[CRC_FROM:]) != header.crc:
            break
        result.add(position, header, interval)
    result.older_format = _is_older_format(file, result.valid_bytes, size)
    return result


def _is_older_format(file: File, position: int, size: int) -> bool:
    """Whether a complete message from before Kafka 0.11 is there: offset, length, CRC of what follows, magic."""
    head = file.pread(_OLDER_HEADER.size, position) if position + _OLDER_HEADER.size <= size else b""
    if len(head) < _OLDER_HEADER.size:
        return False
    _, length, crc, magic = _OLDER_HEADER.unpack(head)
    if magic not in _OLDER_MAGIC or not 0 < length <= size - position - LOG_OVERHEAD:
        return False
    return bool(crc32(file.pread(length, position + LOG_OVERHEAD)[_CRC_BYTES:]) == crc)


def _whole_batches(file: File, size: int) -> Iterator[tuple[int, Header, memoryview]]:
    position = 0
    while position + HEADER_BYTES <= size:
        chunk = memoryview(file.pread(min(_CHUNK, size - position), position))
        inside = 0
        while inside + HEADER_BYTES <= len(chunk):
            header = Header._make(HEADER.unpack_from(chunk, inside))
            length = header.length + LOG_OVERHEAD
            if header.magic != 2 or header.length < MINIMUM_LENGTH or position + length > size:
                return
            if inside + length > len(chunk):
                if inside:
                    break  # read on from this batch
                chunk = memoryview(file.pread(length, position))
                if len(chunk) < length:
                    return
            yield position, header, chunk[inside : inside + length]
            inside += length
            position += length
        if inside == 0:
            return


def scan_segment(segment: Segment, interval: int, *, check_crc: bool = True) -> Scan:
    file = segment.disk.open(segment.path(), writable=False)
    try:
        size = min(file.size(), segment.size) if segment.size else file.size()
        return scan(file, size, segment.base_offset, interval, check_crc=check_crc)
    finally:
        file.close()


def adopt_scan(segment: Segment, found: Scan) -> None:
    """Write the indexes that the scan produced, and take over its other results."""
    found_time_entries = list(found.time_entries)
    segment.offset_index.replace(found.offset_entries)
    segment.time_index.replace(found_time_entries)
    segment.max_timestamp = found.max_timestamp
    segment.offset_of_max_timestamp = found.offset_of_max_timestamp
    segment.first_timestamp = found.first_timestamp if found.first_timestamp is not None else -2
    segment.bytes_since_index_entry = found.bytes_since_index_entry


def has_sound_batch(segment: Segment, position: int, below_offset: int) -> bool:
    """Whether anywhere from `position` on lies a valid batch of an offset below this one. What is before it may be
    damaged in its length as well, so batches are looked for at every byte."""
    file = segment.disk.open(segment.path(), writable=False)
    try:
        return any(
            _is_sound_batch(file, start + at, header, below_offset)
            for start in range(position, file.size(), _CHUNK)
            for at, header in _possible_headers(file.pread(_CHUNK + HEADER_BYTES - 1, start))
        )
    finally:
        file.close()


def _possible_headers(data: bytes) -> Iterator[tuple[int, Header]]:
    at = data.find(_MAGIC, _MAGIC_AT) - _MAGIC_AT
    while 0 <= at <= len(data) - HEADER_BYTES:
        yield at, Header._make(HEADER.unpack_from(data, at))
        at = data.find(_MAGIC, at + 1 + _MAGIC_AT) - _MAGIC_AT


def _is_sound_batch(file: File, position: int, header: Header, below_offset: int) -> bool:
    size = header.length + LOG_OVERHEAD
    if header.length < MINIMUM_LENGTH or not 0 <= header.base_offset < below_offset or position + size > file.size():
        return False
    return crc32c(memoryview(file.pread(size, position))[CRC_FROM:]) == header.crc


def rebuild_indexes(segment: Segment, interval: int, *, active: bool) -> None:
    """An index is corrupt or missing; the batches are trusted."""
    found = scan_segment(segment, interval, check_crc=False)
    if not active:
        found.add_time_entry()
    adopt_scan(segment, found)
    if active:
        segment.resume()


def cut(segment: Segment, found: Scan) -> int:
    """Truncate the file after the last valid batch; returns how many bytes went. `OlderFormat` for old messages."""
    if found.older_format:
        raise OlderFormat(segment.path())
    file = segment.disk.open(segment.path())
    try:
        surplus = file.size() - found.valid_bytes
        if surplus:
            file.truncate(found.valid_bytes)
            file.sync()
    finally:
        file.close()
    segment.size = found.valid_bytes
    return surplus
