"""The records of a batch that clients have written, while all others wait for the loop.

PURE. A few hundred bytes unpack to a million records, which take ten seconds to read, and to all of a pod's memory.
So what a batch may have in it is bounded by its size: what is made of real records is far from that.
"""

from __future__ import annotations

from collections.abc import Iterator

from ballast_wire.compression import MAX_DECOMPRESSED_BYTES
from ballast_wire.records import BatchView, OversizedBatch, Record, decode_records

MOST_RECORDS = 100_000  # a second's work
RECORDS_OF_ANY = 10_000  # however few bytes they come in; beyond, no more than one for a byte
BYTES_OF_ANY, BYTES_OF_A_BYTE = 16 * 1024 * 1024, 32


def opened(batch: BatchView) -> Iterator[Record]:
    """OversizedBatch where there is too much in it; it may be told late, as CorruptBatch is."""
    count, most = batch.header.record_count, min(MOST_RECORDS, RECORDS_OF_ANY + batch.size_bytes)
    if count > most:
        raise OversizedBatch(f"it has {count} records, and {most} are the most that are looked at in its size")
    limit = min(MAX_DECOMPRESSED_BYTES, BYTES_OF_ANY + BYTES_OF_A_BYTE * batch.size_bytes)
    return decode_records(batch, limit=limit)
