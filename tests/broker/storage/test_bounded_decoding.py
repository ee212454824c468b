"""Decompression bombs: a few bytes that expand to a large batch cost no more than a batch of the maximum size."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from tests.broker.storage.conftest import Bench

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import bounded_decoding
from ballast_broker.storage.bounded_decoding import BYTES_OF_ANY, MOST_RECORDS, RECORDS_OF_ANY, decode_bounded
from ballast_broker.storage.conversion import prepare
from ballast_broker.storage.refused_records import refuse_too_new
from ballast_broker.storage.validation import CLIENT
from ballast_wire.compression import Codec, compress
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import (
    CRC_FROM,
    CRC_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchView,
    OversizedBatch,
    Record,
    decode_records,
    encode_batch,
)

pytestmark = pytest.mark.spec("CLI-08")
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
NOW_MS = 1_700_000_000_000


def swollen(count: int, codec: Codec = Codec.ZSTD, newest_ms: int = NOW_MS) -> memoryview:
    """A batch with `count` equal records in a few bytes."""
    first = encode_batch([Record(b"k", b"v", NOW_MS)])[HEADER_BYTES:]
    payload = compress(codec, bytes(first) * count)
    batch = bytearray(HEADER_BYTES) + payload
    HEADER.pack_into(
        batch, 0, 0, len(batch) - LOG_OVERHEAD, -1, 2, 0, codec, count - 1, NOW_MS, newest_ms, -1, -1, -1, count
    )
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(bytes(batch[CRC_FROM:])))
    return memoryview(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_records_beyond_those_of_its_size_are_not_looked_at(codec: Codec) -> None:
    batch = swollen(2 * MOST_RECORDS, codec)
    with pytest.raises(ApiError, match=r"200000 records, and \d+ are the most") as refused:
        prepare(batch, COMPACTED, "t-0", CLIENT, NOW_MS)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    "codec", [each for each in CODECS if each is not Codec.SNAPPY]
)  # which makes little of nothing
def test_a_record_that_becomes_huge_is_not_unpacked(codec: Codec) -> None:
    batch = encode_batch([Record(b"k", bytes(2 * BYTES_OF_ANY), NOW_MS)], codec=codec)
    with pytest.raises(ApiError) as refused:
        prepare(memoryview(batch), COMPACTED, "t-0", CLIENT, NOW_MS)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_what_producers_send_is_opened() -> None:
    small = swollen(RECORDS_OF_ANY)
    assert prepare(small, COMPACTED, "t-0", CLIENT, NOW_MS) is small
    several = encode_batch([Record(b"%d" % n, bytes(100), NOW_MS) for n in range(2_000)], codec=Codec.GZIP)
    assert len(list(decode_bounded(BatchView(memoryview(several))))) == 2_000
    plain = encode_batch([Record(b"k", bytes(1_000_000), NOW_MS)])
    assert len(list(decode_bounded(BatchView(memoryview(plain))))) == 1


def test_more_than_a_second_takes_are_too_many_in_any_size() -> None:
    batch = bytearray(10 * MOST_RECORDS)
    HEADER.pack_into(
        batch, 0, 0, len(batch) - LOG_OVERHEAD, -1, 2, 0, 0, MOST_RECORDS, NOW_MS, NOW_MS, -1, -1, -1, MOST_RECORDS + 1
    )
    with pytest.raises(OversizedBatch, match="100001 records, and 100000 are the most"):
        decode_bounded(BatchView(memoryview(batch)))


def test_whose_newest_record_is_too_new_is_refused_without_a_look_at_all_of_them() -> None:
    newest_ms = NOW_MS + 10 * COMPACTED.message_timestamp_after_max_ms
    with pytest.raises(ApiError, match="out of range, and it has 200000 records") as refused:
        refuse_too_new(swollen(2 * MOST_RECORDS, newest_ms=newest_ms), newest_ms, LogConfig(), "t-0", NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def test_of_what_is_stored_already_the_header_says_the_time(bench: Bench) -> None:
    log = bench.create(message_timestamp_after_max_ms=2**63 - 1)
    bench.append(log, timestamp=NOW_MS - 1)
    log.append_as_leader(bytearray(swollen(2 * MOST_RECORDS)), 0, now_ms=NOW_MS)
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 1, 0)


def test_one_body_that_lies_about_its_newest_time_is_opened_and_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create(message_timestamp_after_max_ms=2**63 - 1)
    for _ in range(20):
        log.append_as_leader(bytearray(swollen(10, newest_ms=NOW_MS + 1_000)), 0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    seen: list[BatchView] = []

    def decode(batch: BatchView, *, limit: int = 0) -> Iterator[Record]:
        seen.append(batch)
        return decode_records(batch, limit=limit)

    monkeypatch.setattr(bounded_decoding, "decode_records", decode)
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1_000, 0, 0)
    log.advance_log_start_offset(5)
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1_000, 10, 0), "of the first, part of the records are gone"
    assert len(seen) == 3
