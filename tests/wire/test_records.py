"""Record batches: what kafka-python writes we read, what we write it reads, and lies are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from ballast_wire.compression import Codec, CompressionError, compress, decompress
from ballast_wire.records import CorruptBatch, Record, RecordHeader, decode_records, encode_batch, iterate_batches

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200),
        timestamp=st.integers(0, 2**41),
        offset=st.just(-1),
        headers=st.lists(
            st.builds(RecordHeader, key=st.text(max_size=5), value=st.none() | st.binary(max_size=5)), max_size=2
        ).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def written_by_kafka_python(records: list[Record]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, r in enumerate(records):
        assert builder.append(i, r.timestamp, r.key, r.value, list(r.headers))
    return bytes(builder.build())


@pytest.mark.spec("LOG-03")
@given(RECORDS)
def test_batches_are_the_same_bytes_as_kafka_pythons(records: list[Record]) -> None:
    assert bytes(encode_batch(records, leader_epoch=0)) == written_by_kafka_python(records)


@given(RECORDS, st.sampled_from(list(Codec)))
def test_what_is_written_is_read_again(records: list[Record], codec: Codec) -> None:
    data = encode_batch(records, base_offset=7, leader_epoch=3, codec=codec)
    (batch,) = iterate_batches(memoryview(data))
    assert batch.crc_is_right()
    assert batch.last_offset == 7 + len(records) - 1
    assert list(decode_records(batch)) == [r._replace(offset=7 + i) for i, r in enumerate(records)]
    theirs = [(r.offset, r.timestamp, r.key, r.value) for r in DefaultRecordBatch(bytes(data))]
    assert theirs == [(7 + i, r.timestamp, r.key, r.value) for i, r in enumerate(records)]


@pytest.mark.spec("CLI-07")
@given(st.binary(max_size=100_000), st.sampled_from(list(Codec)))
def test_codecs_round_trip(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_small_input_that_becomes_huge_is_refused(codec: Codec) -> None:
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, bytes(1_000_000)), limit=100_000)


@pytest.mark.spec("CLI-08")
@given(RECORDS, st.data())
def test_a_changed_byte_is_noticed(records: list[Record], data: st.DataObject) -> None:
    raw = encode_batch(records)
    position = data.draw(st.integers(16, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    try:
        batches = list(iterate_batches(memoryview(raw)))
    except CorruptBatch:
        return
    assert not all(batch.crc_is_right() for batch in batches)


@pytest.mark.spec("CLI-08")
@given(st.binary(max_size=300))
def test_noise_is_refused_or_empty(noise: bytes) -> None:
    try:
        for batch in iterate_batches(memoryview(noise)):
            list(decode_records(batch))
    except CorruptBatch:
        pass


def test_stamping_keeps_the_crc_right() -> None:
    data = encode_batch([Record(b"k", b"v", 5)])
    (batch,) = iterate_batches(memoryview(data))
    batch.stamp(100, 9)
    (again,) = iterate_batches(memoryview(data))
    assert again.crc_is_right()
    assert (again.base_offset, again.header.leader_epoch) == (100, 9)
    again.stamp_append_time(77)
    (last,) = iterate_batches(memoryview(data))
    assert last.crc_is_right()
    assert [r.timestamp for r in decode_records(last)] == [77]
