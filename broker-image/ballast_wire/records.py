"""Encodes and decodes record batches of magic 2: a view of the header, iteration over batches, and records if needed.

The broker moves batches as opaque bytes; it reads and stamps only the 61-byte header. Decoding records is for the
cleaner, the coordinators, the metadata log and old timestamps, not for the hot path of produce and fetch.
Input comes from disk or network: anything wrong with it raises `CorruptBatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ballast_wire.compression import MAX_DECOMPRESSED_BYTES, Codec, CompressionError, TooLarge, compress, decompress
from ballast_wire.varint import read_varint, write_varint

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 61
LOG_OVERHEAD: Final = 12
MAGIC: Final = 2
CRC_POSITION: Final = 17
CRC_FROM: Final = 21
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
EPOCH_POSITION: Final = 12

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1


class CorruptBatch(ValueError):
    """The bytes are not a complete, valid record batch of magic 2."""


class OversizedBatch(CorruptBatch):
    """The batch holds more than the caller's limit."""


class Header(NamedTuple):
    base_offset: int
    length: int  # of everything after this field
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


class RecordHeader(NamedTuple):
    key: str
    value: bytes | None


class Record(NamedTuple):
    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    offset: int = -1
    headers: tuple[RecordHeader, ...] = ()


class BatchView:
    """A view of one batch in a buffer that it does not own. Stamping changes the buffer, which must be writable."""

    __slots__ = ("buffer", "header", "position")

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.header = Header._make(HEADER.unpack_from(buffer, position))

    @property
    def size_bytes(self) -> int:
        return self.header.length + LOG_OVERHEAD

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def codec(self) -> int:
        return self.header.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.header.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON_MASK else None

    @property
    def bytes_view(self) -> memoryview:
        return self.buffer[self.position : self.position + self.size_bytes]

    @property
    def payload(self) -> memoryview:
        """The records' bytes: compressed, if the batch is."""
        return self.buffer[self.position + HEADER_BYTES : self.position + self.size_bytes]

    def crc_is_right(self) -> bool:
        end = self.position + self.size_bytes
        return crc32c(self.buffer[self.position + CRC_FROM : end]) == self.header.crc

    def check_crc(self) -> None:
        if not self.crc_is_right():
            raise CorruptBatch(f"the batch at offset {self.base_offset} has another CRC than it says")

    def stamp(self, base_offset: int, leader_epoch: int) -> None:
        """Set both fields. The CRC does not cover them, so a broker can stamp without reading the records."""
        struct.pack_into(">q", self.buffer, self.position, base_offset)
        struct.pack_into(">i", self.buffer, self.position + EPOCH_POSITION, leader_epoch)
        self.header = self.header._replace(base_offset=base_offset, leader_epoch=leader_epoch)

    def stamp_append_time(self, now_ms: int) -> None:
        """LogAppendTime: set the timestamp type and the maximum timestamp, and recompute the CRC."""
        attributes = self.header.attributes | TIMESTAMP_TYPE_MASK
        struct.pack_into(">h", self.buffer, self.position + ATTRIBUTES_POSITION, attributes)
        struct.pack_into(">q", self.buffer, self.position + MAX_TIMESTAMP_POSITION, now_ms)
        crc = crc32c(self.buffer[self.position + CRC_FROM : self.position + self.size_bytes])
        struct.pack_into(">I", self.buffer, self.position + CRC_POSITION, crc)
        self.header = self.header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def iterate_batches(buffer: memoryview, *, whole: bool = True) -> Iterator[BatchView]:
    """The batches of a buffer. `whole`: bytes left over at the end are an error; otherwise they are ignored."""
    position, end = 0, len(buffer)
    while position < end:
        if end - position < HEADER_BYTES:
            break
        batch = BatchView(buffer, position)
        header = batch.header
        if header.magic != MAGIC:
            raise CorruptBatch(f"magic {header.magic} at {position}")
        if header.length < HEADER_BYTES - LOG_OVERHEAD:
            raise CorruptBatch(f"length {header.length} at {position}")
        if position + batch.size_bytes > end:
            break
        yield batch
        position += batch.size_bytes
    if whole and position != end:
        raise CorruptBatch(f"{end - position} bytes are left over")


def decode_records(batch: BatchView, *, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of a batch with their absolute offsets and timestamps."""
    try:
        body = decompress(batch.codec, batch.payload, limit=limit)
    except TooLarge as error:
        raise OversizedBatch(str(error)) from error
    except CompressionError as error:
        raise CorruptBatch(str(error)) from error
    position = 0
    for _ in range(batch.header.record_count):
        try:
            record, position = _decode_record(body, position, batch)
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise CorruptBatch(f"record at {position}: {error}") from error
        yield record


def _decode_record(body: bytes, position: int, batch: BatchView) -> tuple[Record, int]:
    size, position = read_varint(body, position)
    end = position + size
    if size < 0 or end > len(body):
        raise ValueError("record reaches past its batch")
    position += 1  # attributes, unused
    timestamp_delta, position = read_varint(body, position)
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    count, position = read_varint(body, position)
    if not 0 <= count <= end - position:
        raise ValueError("more headers than bytes")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position)
        header_value, position = _read_bytes(body, position)
        headers.append(RecordHeader((name or b"").decode(), header_value))
    if position != end:
        raise ValueError("record length and content differ")
    header = batch.header
    timestamp = header.max_timestamp if batch.is_log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, timestamp, header.base_offset + offset_delta, tuple(headers)), position


def _read_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(body, position)
    if size < 0:
        return None, position
    if position + size > len(body):
        raise ValueError("bytes reach past their record")
    return body[position : position + size], position + size


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    codec: int = Codec.NONE,
    level: int | None = None,
    control: bool = False,
    transactional: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    delete_horizon_ms: int | None = None,
    append_time_ms: int | None = None,
    last_offset: int | None = None,
    newest_ms: int | None = None,
) -> bytearray:
    """Encode a batch. Offsets count up from `base_offset` unless records have their own (the cleaner's do).

    `last_offset` preserves the end of a batch that lost its last records, `newest_ms` the maximum timestamp of one
    that lost all of them.
    """
    offsets = [r.offset if r.offset >= 0 else base_offset + i for i, r in enumerate(records)]
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    body = bytearray()
    for record, offset in zip(records, offsets, strict=True):
        _encode_record(body, record, offset - base_offset, record.timestamp - base_timestamp)
    attributes = codec | (TRANSACTIONAL_MASK if transactional else 0) | (CONTROL_MASK if control else 0)
    attributes |= DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0
    attributes |= TIMESTAMP_TYPE_MASK if append_time_ms is not None else 0
    newest = max((r.timestamp for r in records), default=NO_TIMESTAMP) if newest_ms is None else newest_ms
    end = last_offset if last_offset is not None else (offsets[-1] if offsets else base_offset)
    payload = compress(codec, body, level)
    out = bytearray(HEADER_BYTES + len(payload))
    out[HEADER_BYTES:] = payload
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        end - base_offset,
        base_timestamp,
        newest if append_time_ms is None else append_time_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    struct.pack_into(">I", out, CRC_POSITION, crc32c(memoryview(out)[CRC_FROM:]))
    return out


def _encode_record(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    write_varint(out, -1 if value is None else len(value))
    if value is not None:
        out += value
