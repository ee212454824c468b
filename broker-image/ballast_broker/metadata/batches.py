"""Encodes and decodes record batches of the metadata log and of snapshots. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_broker.metadata.records import decode_record, encode_record
from ballast_wire.records import Record, decode_records, encode_batch, iterate_batches

SNAPSHOT_BATCH_RECORDS = 250  # each batch is encoded or decoded in one go


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """One batch, decoded. A control batch has no records."""

    last_offset: int
    epoch: int
    timestamp_ms: int
    records: Sequence[Any]


def data_batch(records: Iterable[Any], now_ms: int, *, base_offset: int = 0, epoch: int = -1) -> bytearray:
    wire_records = [Record(value=encode_record(each), timestamp=now_ms) for each in records]
    return encode_batch(wire_records, base_offset=base_offset, leader_epoch=epoch)


def read_batches(data: bytes | memoryview) -> Iterator[CommittedBatch]:
    """Decode complete batches; raise `CorruptBatch` or `MalformedRecord` if they are invalid."""
    for batch in iterate_batches(memoryview(data)):
        batch.check_crc()
        records: list[Any] = []
        if not batch.is_control:
            records = [decode_record(each.value or b"") for each in decode_records(batch)]
        header = batch.header
        yield CommittedBatch(batch.last_offset, header.leader_epoch, header.max_timestamp, records)
