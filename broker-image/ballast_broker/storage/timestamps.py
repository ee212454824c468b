"""Which records of a batch have a time that their topic does not take; the client is told of each (LOG-03).

PURE. Records are looked at where the topic has a lower bound, else only after a header has said that one is too new.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NoReturn

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage.errors import InvalidRecords
from ballast_broker.storage.opening import opened
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import NO_TIMESTAMP, BatchView, CorruptBatch, OversizedBatch, Record

MOST_NAMED = 1000  # a compressed batch may have millions
_REJECTED = "One or more records have been rejected due to invalid timestamp"


def refuse_times(records: Iterable[Record], config: LogConfig, now_ms: int) -> None:
    """Where a time is out of the topic's range: which ones are."""
    earliest = max(now_ms - config.message_timestamp_before_max_ms, -(2**63))
    latest = min(now_ms + config.message_timestamp_after_max_ms, 2**63 - 1)
    refused = (
        (
            index,
            f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
            f"The timestamp should be within [{earliest}, {latest}]",
        )
        for index, record in enumerate(records)
        if record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest
    )
    errors = list(islice(refused, MOST_NAMED))
    if errors:
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, _REJECTED, errors)


def refuse_too_new(batch: memoryview, newest: int, config: LogConfig, partition: object, now_ms: int) -> NoReturn:
    """The header says that its newest record is."""
    try:
        refuse_times(opened(BatchView(batch)), config, now_ms)
    except OversizedBatch as error:
        text = f"Timestamp {newest} in the append to {partition} is out of range, and {error}"
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, text) from error
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from error
    raise ApiError(
        ErrorCode.INVALID_TIMESTAMP, f"No record in the append to {partition} is of {newest}, as its batch says"
    )


def refuse_append_time(count: int, partition: object) -> NoReturn:
    """A producer's batch that claims the time at which it is appended."""
    text = f"Invalid timestamp type in message {partition}. Producer should not set timestamp type to LogAppendTime."
    errors = [(index, text) for index in range(min(count, MOST_NAMED))]
    raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, _REJECTED, errors)
