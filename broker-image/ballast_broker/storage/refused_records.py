"""Refuses records that their topic does not accept: without a key, or with a timestamp out of range. The client is told
of each (LOG-03).

PURE. Records are decoded if the topic needs keys or has a lower bound of timestamps, else only after the batch header
says that one is too new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NoReturn

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage.bounded_decoding import decode_bounded
from ballast_broker.storage.errors import InvalidRecords
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import NO_TIMESTAMP, BatchView, CorruptBatch, OversizedBatch, Record

MOST_NAMED = 1000  # a compressed batch may have millions
ERRORS_SHOWN = 3
_REJECTED = "One or more records have been rejected due to invalid timestamp"


def refuse_records(records: Iterable[Record], config: LogConfig, partition: object, now_ms: int) -> None:
    """Name all invalid records, for any reason: a client that drops those named is not refused again for others.

    The code is INVALID_TIMESTAMP if any record has an invalid timestamp.
    """
    refused = [*islice(_refused(records, config, partition, now_ms), MOST_NAMED)]
    errors = [(index, text) for index, _, text in refused]
    if any(code is ErrorCode.INVALID_TIMESTAMP for _, code, _ in refused):
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, _REJECTED, errors)
    if errors:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, _rejected(errors), errors)


def _refused(
    records: Iterable[Record], config: LogConfig, partition: object, now_ms: int
) -> Iterator[tuple[int, ErrorCode, str]]:
    keyless = f"Compacted topic cannot accept message without key in topic partition {partition}"
    needs_key = "compact" in config.cleanup_policy
    has_times = config.message_timestamp_type == "CreateTime"
    earliest = max(now_ms - config.message_timestamp_before_max_ms, -(2**63))
    latest = min(now_ms + config.message_timestamp_after_max_ms, 2**63 - 1)
    for index, record in enumerate(records):
        if needs_key and record.key is None:
            yield index, ErrorCode.INVALID_RECORD, keyless
        elif has_times and record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
            text = (
                f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
                f"The timestamp should be within [{earliest}, {latest}]"
            )
            yield index, ErrorCode.INVALID_TIMESTAMP, text


def _rejected(errors: list[tuple[int, str]]) -> str:
    first = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:ERRORS_SHOWN])
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{first}]"
    )


def refuse_too_new(batch: memoryview, newest: int, config: LogConfig, partition: object, now_ms: int) -> NoReturn:
    """The header says that the batch's newest record is too new: find the records to name."""
    try:
        refuse_records(decode_bounded(BatchView(batch)), config, partition, now_ms)
    except OversizedBatch as error:
        text = f"Timestamp {newest} in the append to {partition} is out of range, and {error}"
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, text) from error
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from error
    raise ApiError(
        ErrorCode.INVALID_TIMESTAMP, f"No record in the append to {partition} is of {newest}, as its batch says"
    )


def refuse_append_time(count: int, partition: object) -> NoReturn:
    """Refuse a producer's batch whose header claims LogAppendTime."""
    text = f"Invalid timestamp type in message {partition}. Producer should not set timestamp type to LogAppendTime."
    errors = [(index, text) for index in range(min(count, MOST_NAMED))]
    raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, _REJECTED, errors)
