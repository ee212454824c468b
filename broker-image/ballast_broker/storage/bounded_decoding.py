"""Decodes the records of a batch that came from a client, on the event loop, within limits.

PURE. A few hundred bytes may decompress to a million records, which take ten seconds and all of a pod's memory. So the
content of a batch is bounded by its size; batches of real records are far from that limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from ballast_wire.compression import MAX_DECOMPRESSED_BYTES
from ballast_wire.records import BatchView, OversizedBatch, Record, decode_records

MOST_RECORDS = 100_000  # a second's work
RECORDS_OF_ANY = 10_000  # allowed at any size; beyond that, one more for each byte
BYTES_OF_ANY, BYTES_OF_A_BYTE = 16 * 1024 * 1024, 32


def decode_bounded(batch: BatchView) -> Iterator[Record]:
    """Raises OversizedBatch if the batch holds too much; like CorruptBatch perhaps only during iteration."""
    count, most = batch.header.record_count, min(MOST_RECORDS, RECORDS_OF_ANY + batch.size_bytes)
    if count > most:
        raise OversizedBatch(f"it has {count} records, and {most} are the most that are looked at in its size")
    limit = min(MAX_DECOMPRESSED_BYTES, BYTES_OF_ANY + BYTES_OF_A_BYTE * batch.size_bytes)
    return decode_records(batch, limit=limit)
