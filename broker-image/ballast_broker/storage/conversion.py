"""Inspects or rewrites batches where a topic's configuration needs it: append time, keys, another compression type.

PURE. Everything else is stored as it came (LOG-03). `inspects_records` says, once per configuration, whether any of
this is needed at all.
"""

from __future__ import annotations

import struct

from ballast_broker.config.logs import LONG_MAX, LogConfig
from ballast_broker.storage.bounded_decoding import decode_bounded
from ballast_broker.storage.refused_records import refuse_records
from ballast_broker.storage.validation import CLIENTS
from ballast_wire.compression import Codec
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import BatchView, CorruptBatch, OversizedBatch, Record, encode_batch

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def inspects_records(config: LogConfig) -> bool:
    return (
        "compact" in config.cleanup_policy
        or config.compression_type != "producer"
        or config.message_timestamp_type != "CreateTime"
        or config.message_timestamp_before_max_ms != LONG_MAX
    )


def prepare(batch: memoryview, config: LogConfig, partition: object, origin: str, now_ms: int) -> memoryview:
    """The batch as it will be stored: the same memory, changed in place, or a new one if it is recompressed."""
    view = BatchView(batch)
    wanted = _CODECS.get(config.compression_type, Codec(view.codec))
    append_time = config.message_timestamp_type == "LogAppendTime"
    if not view.is_control and (wanted != view.codec or _checks_records(config, origin)):
        records = _checked_records(view, config, partition, origin, now_ms)
        if wanted != view.codec:
            batch = memoryview(_encode_again(view, records, wanted, _level(config, wanted)))
            if len(batch) > config.max_message_bytes:
                raise ApiError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"Message batch size is {len(batch)} bytes in append to partition {partition} "
                    f"which exceeds the maximum configured size of {config.max_message_bytes}.",
                )
            view = BatchView(batch)
    if append_time:
        view.stamp_append_time(now_ms)
    return batch


def _checks_records(config: LogConfig, origin: str) -> bool:
    if origin not in CLIENTS:
        return False
    return "compact" in config.cleanup_policy or (
        config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms != LONG_MAX
    )


def _checked_records(view: BatchView, config: LogConfig, partition: object, origin: str, now_ms: int) -> list[Record]:
    try:
        records = list(decode_bounded(view))
    except OversizedBatch as error:  # on this error Java's producer splits the batch
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} in topic partition {partition}") from error
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}") from error
    if not _checks_records(config, origin):
        return records
    refuse_records(records, config, partition, now_ms)
    return records


def _level(config: LogConfig, codec: Codec) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def _encode_again(view: BatchView, records: list[Record], codec: Codec, level: int | None) -> bytearray:
    header = view.header
    try:
        return encode_batch(
            [record._replace(offset=-1) for record in records],  # renumbered, whatever the sender wrote
            base_offset=header.base_offset,
            codec=codec,
            level=level,
            transactional=view.is_transactional,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    except struct.error as error:  # base + delta from the sender may exceed a timestamp's range
        raise ApiError(ErrorCode.INVALID_RECORD, f"A record's number is out of its range: {error}.") from error
