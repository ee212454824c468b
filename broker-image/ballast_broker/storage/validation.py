"""Validates batches before they are appended: their headers, not their records (see `conversion` and
`refused_records`).

PURE. Refusals are `ApiError` with Kafka's code and message.
"""

from __future__ import annotations

from typing import Final, NoReturn

from crc32c import crc32c

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage.refused_records import refuse_append_time, refuse_too_new
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import (
    CODEC_MASK,
    CONTROL_MASK,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Header,
)

LAST_CODEC: Final = 4
# Where a batch comes from: a client, a client with a transactional id, or a coordinator that ends a transaction with a
# bumped producer epoch; any other origin is a coordinator, too.
CLIENT: Final = "client"
TRANSACTION: Final = "transaction"
END_WITH_NEW_EPOCH: Final = "end with a new epoch"
CLIENTS: Final = (CLIENT, TRANSACTION)


def split(buffer: memoryview, partition: object) -> list[tuple[int, Header]]:
    """Positions and headers of the batches that make up the whole buffer."""
    result = []
    position, end = 0, len(buffer)
    while position < end:
        if end - position < HEADER_BYTES:
            raise _illegal_length(end - position, partition)
        header = Header._make(HEADER.unpack_from(buffer, position))
        if header.length < HEADER_BYTES - LOG_OVERHEAD or position + header.length + LOG_OVERHEAD > end:
            raise _illegal_length(header.length, partition)
        result.append((position, header))
        position += header.length + LOG_OVERHEAD
    if not result:
        raise _illegal_length(0, partition)
    return result


def _illegal_length(length: int, partition: object) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE,
        f"Cannot append record batch with illegal length {length} to log for {partition}. "
        "A possible cause is a corrupted produce request.",
    )


def check_crc(batch: memoryview, header: Header, partition: object) -> None:
    if crc32c(batch[CRC_FROM:]) != header.crc:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record is corrupt (stored crc = {header.crc}) in topic partition {partition}.",
        )


def is_plain(batch: memoryview, header: tuple[int, ...], config: LogConfig, now_ms: int) -> bool:
    """The fast path for the most common batch: True only if `check_leader_batch` accepts it from any origin.

    False for everything else, valid or not: then that function decides. Fields are in the order of `Header`.
    """
    base_offset, length, _, magic, crc, attributes, delta, _, max_timestamp, producer_id, _, sequence, count = header
    return (
        magic == MAGIC
        and (producer_id < 0 or sequence >= 0)
        and 0 <= attributes <= LAST_CODEC
        and count == delta + 1
        and count > 0
        and base_offset == 0
        and length + LOG_OVERHEAD <= config.max_message_bytes
        and max_timestamp - now_ms <= config.message_timestamp_after_max_ms
        and crc32c(batch[CRC_FROM:]) == crc
    )


def check_leader_batch(
    batch: memoryview, header: Header, config: LogConfig, partition: object, origin: str, now_ms: int
) -> None:
    """Check a batch as a producer (or a coordinator) sent it, before offsets are assigned."""
    if header.magic != 2:
        raise _magic_refused(header.magic)
    size = header.length + LOG_OVERHEAD
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {partition} is {size} bytes "
            f"which exceeds the maximum configured value of {config.max_message_bytes}).",
        )
    if crc32c(batch[CRC_FROM:]) != header.crc:
        check_crc(batch, header, partition)
    attributes, delta, count = header.attributes, header.last_offset_delta, header.record_count
    if count != delta + 1 or count <= 0 or attributes & CODEC_MASK > LAST_CODEC:
        _refuse_shape(header, partition)
    if origin in CLIENTS:
        _check_client_batch(header, partition)
        if origin == CLIENT and attributes & TRANSACTIONAL_MASK:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (
        header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        and config.message_timestamp_type == "CreateTime"
    ):
        refuse_too_new(batch, header.max_timestamp, config, partition, now_ms)
    if attributes & TIMESTAMP_TYPE_MASK:
        refuse_append_time(count, partition)


def refuse_larger_than_segment(size: int, config: LogConfig, partition: object) -> NoReturn:
    """Only for a leader's appends: followers copy stored batches even if `segment.bytes` is smaller by now."""
    raise ApiError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"Message batch size is {size} bytes in append to partition {partition}, "
        f"which exceeds the maximum configured segment size of {config.segment_bytes}.",
    )


def _check_client_batch(header: Header, partition: object) -> None:
    if header.base_offset != 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"The baseOffset of the record batch in the append to {partition} should be 0, "
            f"but it is {header.base_offset}",
        )
    if header.attributes & CONTROL_MASK:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"Clients are not allowed to write control records in topic partition {partition}"
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id} "
            f"in topic partition {partition}",
        )


def _magic_refused(magic: int) -> ApiError:
    if magic in (0, 1):
        return ApiError(ErrorCode.INVALID_RECORD, f"Message format {magic} is no longer written; 2 is expected")
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"Unknown magic {magic}")


def _refuse_shape(header: Header, partition: object) -> None:
    last = header.base_offset + header.last_offset_delta
    if header.last_offset_delta < 0:
        message = f"Batch has an invalid offset range: [{header.base_offset}, {last}] in topic partition {partition}"
    elif header.record_count <= 0:
        message = f"Invalid reported count for record batch: {header.record_count} in topic partition {partition}"
    elif header.record_count != header.last_offset_delta + 1:
        message = (
            f"Inconsistent batch offset range [{header.base_offset}, {last}] and count of records "
            f"{header.record_count} in topic partition {partition}"
        )
    else:
        codec = header.attributes & CODEC_MASK
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Unknown compression type id: {codec}")
    raise ApiError(ErrorCode.INVALID_RECORD, message)


def check_follower_batch(batch: memoryview, header: Header, partition: object) -> None:
    """Check a batch that a leader has stored: offsets may have gaps (compaction), so counts are not compared."""
    if header.magic != 2:
        raise _magic_refused(header.magic)
    if header.last_offset_delta < 0:
        _refuse_shape(header, partition)
    check_crc(batch, header, partition)
