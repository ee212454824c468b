"""Appending to and reading from one log on real files."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.storage.conftest import NOW_MS, PARTITION, Bench, ReadAll, position_of

from ballast_broker.config.logs import LONG_MAX, LogConfig
from ballast_broker.storage.conversion import prepare
from ballast_broker.storage.disk import RealFile
from ballast_broker.storage.errors import InvalidRecords, LogDirectoryFailure, UnexpectedAppendOffset
from ballast_broker.storage.refused_records import MOST_NAMED
from ballast_broker.storage.validation import CLIENT
from ballast_wire.compression import Codec
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import NO_TIMESTAMP, BatchView, Record, decode_records, encode_batch


@pytest.mark.spec("LOG-03")
def test_offsets_and_epoch_are_stamped_and_the_rest_is_stored_as_it_came(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create()
    for _ in range(3):
        sent = encode_batch([Record(b"k", b"v" * 100, bench.clock.now_ms)] * 4, codec=4)
        body = bytes(sent[21:])
        info = log.append_as_leader(sent, 7, now_ms=bench.clock.now_ms)
        found = log.read(info.first_offset, 1 << 20, upper_offset=log.log_end_offset)
        stored = found.read()
        found.release()
        assert struct.unpack_from(">q", stored)[0] == info.first_offset
        assert struct.unpack_from(">i", stored, 12)[0] == 7
        assert stored[21:] == body
    assert [record.offset for record in read_all(log)] == list(range(12))
    assert log.latest_epoch == 7


@pytest.mark.spec("LOG-01")
def test_files_have_kafkas_names(bench: Bench) -> None:
    log = bench.create(segment_bytes=400)
    for _ in range(10):
        bench.append(log, 2)
    log.close()
    names = set(os.listdir(bench.folder))
    assert {"00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"} <= names
    assert {"partition.metadata", "leader-epoch-checkpoint", "00000000000000000020.snapshot"} <= names
    assert (bench.folder / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (bench.folder / "partition.metadata").read_text() == "version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w"


@pytest.mark.spec("LOG-10")
def test_a_segment_ends_where_the_next_batch_would_pass_its_size(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(segment_bytes=500)
    for _ in range(50):
        bench.append(log)
    assert len(log.segments) > 5
    assert all(segment.size <= 500 for segment in log.segments)
    assert [record.offset for record in read_all(log, max_bytes=150)] == list(range(50))


@pytest.mark.spec("LOG-10")
def test_a_segment_ends_by_the_age_of_its_records(bench: Bench) -> None:
    log = bench.create(segment_ms=1000)
    start = bench.clock.now_ms
    bench.append(log, timestamp=start)
    bench.append(log, timestamp=start + 1000)
    assert len(log.segments) == 1
    bench.append(log, timestamp=start + 1001)
    assert log.bases == [0, 2]


@pytest.mark.spec("LOG-10")
def test_a_segment_ends_when_an_index_is_full(bench: Bench) -> None:
    log = bench.create(segment_index_bytes=8 * 5, index_interval_bytes=1)
    for number in range(30):
        bench.append(log, timestamp=bench.clock.now_ms + number)
    assert len(log.segments) > 5
    assert all(segment.offset_index.count <= 5 for segment in log.segments)
    assert all(segment.time_index.count <= 8 * 5 // 12 for segment in log.segments)


@pytest.mark.spec("LOG-10")
def test_a_segment_ends_when_offsets_no_longer_fit(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create()
    bench.append(log)
    far = encode_batch([Record(None, b"far", 5)], base_offset=2**31 + 10)
    log.append_as_follower(memoryview(far))
    assert log.bases == [0, 11]
    assert [record.offset for record in read_all(log)] == [0, 2**31 + 10]


@pytest.mark.spec("LOG-04")
def test_indexes_are_preallocated_sparse_and_trimmed_at_roll_and_close(bench: Bench) -> None:
    log = bench.create(segment_index_bytes=8 * 120, index_interval_bytes=4096)
    for number in range(40):
        bench.append(log, size=2000, timestamp=bench.clock.now_ms + number)
    index = bench.folder / "00000000000000000000.index"
    assert index.stat().st_size == 960
    log.close()
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    assert 10 < len(entries) < 20
    assert entries == sorted(entries)
    stored = (bench.folder / "00000000000000000000.log").read_bytes()
    for relative_offset, position in entries:
        (base,) = struct.unpack_from(">q", stored, position)
        assert base == relative_offset
    times = list(struct.iter_unpack(">qi", (bench.folder / "00000000000000000000.timeindex").read_bytes()))
    assert times[-1] == (bench.clock.now_ms + 39, 39)


@pytest.mark.spec("LOG-05")
def test_every_offset_is_found_with_and_without_index(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(segment_bytes=20_000, index_interval_bytes=500)
    for number in range(200):
        bench.append(log, 1 + number % 3, size=number % 400)
    log.close()
    log = bench.load(clean=True, index_interval_bytes=500)
    for offset in range(log.log_end_offset):
        log.known_positions.clear()
        found = log.read(offset, 1, upper_offset=log.log_end_offset)
        (base,) = struct.unpack_from(">q", found.read())
        assert base <= offset < found.next_offset
        found.release()


@pytest.mark.spec("LOG-05")
def test_a_slice_is_whole_batches_up_to_the_limits(bench: Bench) -> None:
    log = bench.create()
    for _ in range(10):
        bench.append(log, 2, size=100)
    size = log.read(0, 1, upper_offset=20).size
    whole = log.read(0, size * 3 + 5, upper_offset=20)
    assert (whole.size, whole.next_offset) == (size * 3, 6)
    limited = log.read(0, 1 << 20, upper_offset=8)
    assert (limited.size, limited.next_offset) == (size * 4, 8)
    one = log.read(0, 1, upper_offset=20)
    assert (one.size, one.next_offset) == (size, 2)
    none = log.read(0, 1, upper_offset=20, min_one=False)
    assert none.size == 0
    for found in (whole, limited, one, none):
        found.release()
    with pytest.raises(ApiError) as refused:
        log.read(21, 1, upper_offset=21)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.spec("LOG-05")
def test_timestamps_lead_to_the_first_record_that_is_late_enough(bench: Bench) -> None:
    log = bench.create(segment_bytes=3000, index_interval_bytes=200)
    start = bench.clock.now_ms
    for number in range(100):
        bench.append(log, 1, timestamp=start + 10 * number, size=100)
    log.close()
    log = bench.load(clean=True)
    assert log.offset_for_timestamp(0) == (start, 0, 0)
    for number in range(1, 100):
        assert log.offset_for_timestamp(start + 10 * number - 5) == (start + 10 * number, number, 0)
        assert log.offset_for_timestamp(start + 10 * number) == (start + 10 * number, number, 0)
    assert log.offset_for_timestamp(start + 991) is None
    assert log.offset_of_max_timestamp() == (start + 990, 99, 0)


@pytest.mark.spec("LOG-05")
def test_the_latest_timestamp_is_that_of_a_kept_segment_also_where_its_record_was_deleted(bench: Bench) -> None:
    """As in Apache Kafka; a lookup by a timestamp that only a deleted record has finds nothing."""
    log = bench.create()
    latest = bench.clock.now_ms + 9000
    bench.append(log, timestamp=latest)
    bench.append(log, 3)
    log.advance_log_start_offset(2)
    assert log.offset_of_max_timestamp() == (latest, 0, 0)
    assert log.offset_for_timestamp(latest) is None
    assert log.offset_for_timestamp(0) == (bench.clock.now_ms, 2, 0)


@pytest.mark.spec("LOG-05", "LOG-41")
def test_the_latest_timestamp_is_found_though_the_index_lies(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=100)
    for number in range(20):
        bench.append(log, timestamp=bench.clock.now_ms + number)
    log.close()
    log = bench.load(clean=True)
    path = f"{bench.folder}/{0:020d}.index"
    Path(path).write_bytes(b"\x00\x00\x00\x01\x7f\xff\xff\x00" * (bench.disk.size(path) // 8))
    assert log.offset_of_max_timestamp() == (bench.clock.now_ms + 19, 19, 0)


@pytest.mark.spec("LOG-05")
def test_a_timestamp_does_not_lead_past_what_the_disk_has_spoilt(bench: Bench) -> None:
    log = bench.create()
    start = bench.clock.now_ms
    for number in range(4):
        bench.append(log, timestamp=start + number)
    log.roll()
    bench.append(log, timestamp=start + 4)
    with open(log.segments[0].path(), "r+b") as file:
        file.seek(position_of(log, 2) + 16)  # its magic
        file.write(b"\x07")
    assert log.offset_for_timestamp(start + 1) == (start + 1, 1, 0)
    with pytest.raises(ApiError) as error:
        log.offset_for_timestamp(start + 2)
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.offset_for_timestamp(start + 4) == (start + 4, 4, 0)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda b: b[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:60], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:16] + b"\0" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\1" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\3" + b[17:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: struct.pack(">q", 5) + b[8:], ErrorCode.INVALID_RECORD),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b"", ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:8] + struct.pack(">i", -5) + b[12:], ErrorCode.CORRUPT_MESSAGE),
    ],
)
@pytest.mark.spec("LOG-03")
def test_what_is_no_sound_batch_is_refused_and_changes_nothing(
    bench: Bench, damage: Callable[[bytes], bytes], code: ErrorCode
) -> None:
    log = bench.create()
    bench.append(log)
    batch = damage(bytes(encode_batch([Record(b"k", b"value", bench.clock.now_ms)])))
    with pytest.raises(ApiError) as refused:
        log.append_as_leader(bytearray(batch), 0, now_ms=bench.clock.now_ms)
    assert refused.value.code is code
    assert log.log_end_offset == 1
    assert log.size_bytes == os.path.getsize(bench.folder / "00000000000000000000.log")


def test_too_large_and_too_late_are_refused(bench: Bench) -> None:
    log = bench.create(max_message_bytes=200, segment_bytes=150)
    with pytest.raises(ApiError) as large:
        bench.append(log, size=300)
    assert large.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ApiError) as larger_than_segment:
        bench.append(log, size=100)
    assert larger_than_segment.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    with pytest.raises(ApiError) as late:
        bench.append(log, timestamp=bench.clock.now_ms + 3_600_001)
    assert late.value.code is ErrorCode.INVALID_TIMESTAMP


def test_append_time_keys_and_compression_are_seen_to_where_the_topic_asks(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(
        message_timestamp_type="LogAppendTime", compression_type="zstd", cleanup_policy=frozenset({"compact"})
    )
    info = log.append_as_leader(encode_batch([Record(b"k", b"v" * 500, 5)] * 20), 0, now_ms=99)
    assert info.log_append_time_ms == 99
    assert log.size_bytes < 500
    assert {record.timestamp for record in read_all(log)} == {99}
    with pytest.raises(ApiError) as refused:
        log.append_as_leader(encode_batch([Record(b"k", b"v", 5), Record(None, b"v", 5)]), 0, now_ms=99)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert isinstance(refused.value, InvalidRecords)
    assert [index for index, _ in refused.value.record_errors] == [1]


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("before_max_ms", [LONG_MAX, 3_600_000])
def test_every_record_whose_time_is_out_of_range_is_named(bench: Bench, codec: Codec, before_max_ms: int) -> None:
    log = bench.create(message_timestamp_before_max_ms=before_max_ms)
    now_ms = bench.clock.now_ms
    times = [now_ms + 3_600_001, now_ms, NO_TIMESTAMP, now_ms - 3_600_001, now_ms + 3_600_002]
    batch = encode_batch([Record(b"k", b"v", each) for each in times], codec=codec)
    with pytest.raises(InvalidRecords) as refused:
        log.append_as_leader(batch, 0, now_ms=now_ms)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    too_old = [3] if before_max_ms != LONG_MAX else []
    assert [index for index, _ in refused.value.record_errors] == [0, *too_old, 4]
    assert str(times[4]) in refused.value.record_errors[-1][1]
    assert log.log_end_offset == 0


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("before_max_ms", [LONG_MAX, 3_600_000])
@pytest.mark.parametrize("others_ms", [3_600_001, -3_600_001])
def test_records_without_a_key_and_those_of_a_wrong_time_are_named_at_once(
    bench: Bench, before_max_ms: int, others_ms: int
) -> None:
    """Otherwise a producer that leaves out the reported records would be refused again."""
    log = bench.create(cleanup_policy=frozenset({"compact"}), message_timestamp_before_max_ms=before_max_ms)
    now_ms = bench.clock.now_ms
    records = [Record(b"k", b"v", now_ms), Record(None, b"v", now_ms), Record(b"k", b"v", now_ms + others_ms)]
    with pytest.raises(InvalidRecords) as refused:
        log.append_as_leader(encode_batch(records), 0, now_ms=now_ms)
    out_of_range = others_ms > 0 or before_max_ms != LONG_MAX
    assert refused.value.code is (ErrorCode.INVALID_TIMESTAMP if out_of_range else ErrorCode.INVALID_RECORD)
    assert [index for index, _ in refused.value.record_errors] == ([1, 2] if out_of_range else [1])


def test_a_bounded_number_of_records_is_named(bench: Bench) -> None:
    log = bench.create(cleanup_policy=frozenset({"compact"}))
    now_ms = bench.clock.now_ms
    for record in (Record(b"k", b"v", now_ms + 3_600_001), Record(None, b"v", now_ms)):
        with pytest.raises(InvalidRecords) as refused:
            log.append_as_leader(encode_batch([record] * (MOST_NAMED + 1)), 0, now_ms=now_ms)
        assert len(refused.value.record_errors) == MOST_NAMED


def test_a_batch_that_lies_about_its_newest_record_is_refused(bench: Bench) -> None:
    log = bench.create()
    batch = encode_batch([Record(b"k", b"v", bench.clock.now_ms)], newest_ms=bench.clock.now_ms + 3_600_001)
    with pytest.raises(ApiError) as refused:
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_producer_that_claims_the_time_of_appending_is_refused(bench: Bench, timestamp_type: str) -> None:
    log, now_ms = bench.create(message_timestamp_type=timestamp_type), bench.clock.now_ms
    records = [Record(b"k", b"v", now_ms)] * 2
    with pytest.raises(InvalidRecords) as refused:
        log.append_as_leader(encode_batch(records, append_time_ms=now_ms), 0, now_ms=now_ms)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.value.record_errors] == [0, 1]
    log.append_as_leader(encode_batch(records), 0, now_ms=now_ms)
    assert log.log_end_offset == 2


@pytest.mark.spec("LOG-03", "CLI-07")
@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
def test_what_the_topics_compression_makes_too_large_is_refused(bench: Bench, codec: str) -> None:
    """As in Kafka: no consumer gets a batch that is larger than the topic allows."""
    log = bench.create(compression_type=codec, max_message_bytes=1000)
    batch = encode_batch([Record(b"k", b"v" * 600, bench.clock.now_ms)] * 3, codec=Codec.ZSTD)
    assert len(batch) < 1000
    if codec == "gzip":
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)
        return
    with pytest.raises(ApiError) as refused:
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.end_offset == 0
    assert (refused.value.message or "").endswith("which exceeds the maximum configured size of 1000.")


@pytest.mark.spec("CLI-07")
@pytest.mark.parametrize(("codec", "least", "most"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -131_072, 22)])
def test_a_topic_says_how_hard_it_is_compressed(codec: str, least: int, most: int) -> None:
    values = [b"%d squared is %d" % (number, number * number) for number in range(10_000)]
    batch = encode_batch([Record(None, value, 5) for value in values])
    sizes = []
    for level in (least, most):
        given: dict[str, Any] = {f"compression_{codec}_level": level}
        config = LogConfig(compression_type=codec, **given)
        stored = prepare(memoryview(batch), config, PARTITION, CLIENT, 5)
        assert [record.value for record in decode_records(BatchView(stored))] == values
        sizes.append(len(stored))
    assert sizes[1] < sizes[0]


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("offsets", [[5, 0], [0, 1000], [0, 0]])
def test_records_that_are_compressed_anew_are_numbered_anew(
    bench: Bench, read_all: ReadAll, offsets: list[int]
) -> None:
    """As in Kafka: some clients set no offset deltas, or wrong ones, and offsets would overlap or have gaps."""
    log = bench.create(compression_type="gzip")
    for _ in range(2):
        batch = encode_batch([Record(b"k", b"v", bench.clock.now_ms, offset) for offset in offsets], last_offset=1)
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)
    assert log.log_end_offset == 4
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]


def test_a_follower_keeps_offsets_and_refuses_a_step_back(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create()
    batches = b"".join(
        bytes(encode_batch([Record(None, b"x", 5)], base_offset=offset, leader_epoch=epoch))
        for offset, epoch in ((0, 1), (1, 1), (7, 3))
    )
    info = log.append_as_follower(memoryview(batches))
    assert (info.first_offset, info.last_offset) == (0, 7)
    assert [record.offset for record in read_all(log)] == [0, 1, 7]
    assert log.epochs.entries == [(1, 0), (3, 7)]
    assert log.epoch_end_offset(1) == (1, 7)
    assert log.epoch_end_offset(2) == (1, 7)
    assert [log.epoch_end_offset(epoch) for epoch in (0, -2, -1)] == [(0, 0), (-2, 0), (-1, -1)]
    assert log.epoch_end_offset(3) == (3, 8)
    assert log.epoch_end_offset(4) == (-1, -1)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(memoryview(bytes(encode_batch([Record(None, b"x", 5)], base_offset=7))))


def test_only_an_empty_log_takes_a_batch_that_lies_across_its_start(bench: Bench, read_all: ReadAll) -> None:
    def batch(base: int, count: int = 4) -> memoryview:
        return memoryview(bytes(encode_batch([Record(None, b"x", 5)] * count, base_offset=base, leader_epoch=1)))

    log = bench.create()
    log.truncate_fully_and_start_at(10)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batch(6))
    log.append_as_follower(batch(8))
    assert (log.bases, log.log_start_offset, log.log_end_offset) == ([8], 10, 12)
    assert log.high_watermark == 10
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batch(11))
    log.append_as_follower(batch(12))
    log.close()
    again = bench.load(clean=False, start_offset=10)
    assert (again.log_start_offset, again.log_end_offset) == (10, 16)
    assert [record.offset for record in read_all(again)] == list(range(10, 16))


def test_truncation_and_a_restart_give_the_same_log(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(segment_bytes=1000, index_interval_bytes=100)
    for number in range(50):
        bench.append(log, epoch=number // 10)
    log.truncate_to(23)
    assert log.log_end_offset == 23
    assert log.latest_epoch == 2
    assert [record.offset for record in read_all(log)] == list(range(23))
    bench.append(log, epoch=9)
    assert [record.offset for record in read_all(log)] == list(range(24))
    log.close()
    again = bench.load(clean=True)
    assert again.log_end_offset == 24
    assert again.epochs.entries == [(0, 0), (1, 10), (2, 20), (9, 23)]
    again.truncate_fully_and_start_at(500)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (500, 500, 0)
    bench.append(again)
    assert [record.offset for record in read_all(again)] == [500]


@pytest.mark.spec("LOG-20", "LOG-41")
def test_a_log_truncated_to_a_gap_between_segments_keeps_what_is_young(bench: Bench) -> None:
    """Nothing is cut from the segment before the gap, which becomes the active one and gets a record of an old time."""
    log = bench.create()
    bench.append(log)
    bench.append(log, 5)
    log.truncate_to(3)  # all five go
    log.roll()
    bench.append(log)
    log.close()
    again = bench.load(clean=True)
    again.truncate_to(2)
    bench.append(again, timestamp=NOW_MS - again.config.retention_ms - 1)
    assert again.offset_for_timestamp(NOW_MS) == (NOW_MS, 0, 0)
    assert again.delete_old_segments(NOW_MS) == 0


@pytest.mark.parametrize("sizes", [[5000] * 12, [100] * 90, [5000, 100, 100, 9000, 100, 5000, 5000, 100]])
def test_an_answer_ends_where_a_batch_does(bench: Bench, sizes: list[int]) -> None:
    """Wherever the limit is: before, at or after a batch that the index points to."""
    log = bench.create(index_interval_bytes=4096)
    ends = [0]
    for size in sizes:
        bench.append(log, 2, size=size // 2)
        ends.append(log.size_bytes)
    for start in range(0, len(sizes), 3):
        for limit in range(1, log.size_bytes + 2000, 613):
            found = log.read(start * 2, limit, upper_offset=log.end_offset, min_one=False)
            fitting = max(n for n, end in enumerate(ends) if n == start or end - ends[start] <= limit)
            assert found.size == ends[fitting] - ends[start]
            if found.size:
                assert (found.position, found.next_offset) == (ends[start], fitting * 2)
            found.release()


def test_a_reader_keeps_its_file_when_the_first_append_after_a_start_opens_it_for_writing(bench: Bench) -> None:
    log = bench.create()
    bench.append(log, 3)
    log.close()
    again = bench.load(clean=True)
    readers = [again.read(0, 1 << 20, upper_offset=3) for _ in range(2)]
    bench.append(again, 3)
    later = again.read(0, 1 << 20, upper_offset=6)
    first, second = (reader.read() for reader in readers)
    assert first == second
    assert later.read()[: len(first)] == first
    opened = readers[0].file
    assert opened is not None
    for reader in (*readers, later):
        reader.release()
    assert opened.descriptor() == -1, "closed when nobody reads from it any more"
    bench.append(again, 3)


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("damage", ["odd", "gone"])
def test_a_follower_is_cut_back_though_an_index_lies(bench: Bench, read_all: ReadAll, damage: str) -> None:
    log = bench.create(index_interval_bytes=100)
    for _ in range(20):
        bench.append(log)
    log.close()
    bench.release()
    again = bench.load(clean=True, index_interval_bytes=100)
    path = again.active.path(".index")
    if damage == "odd":
        with open(path, "ab") as file:
            file.write(b"x")
    else:
        os.unlink(path)
    again.truncate_to(12)
    assert again.directory.online
    bench.append(again)
    assert [record.offset for record in read_all(again)] == list(range(13))


@pytest.mark.spec("LOG-05", "LOG-41")
def test_an_index_that_points_between_two_batches_is_built_again(bench: Bench) -> None:
    log = bench.create(segment_bytes=2000, index_interval_bytes=100)
    for _ in range(60):
        bench.append(log)
    log.close()
    bench.release()
    path = bench.folder / "00000000000000000000.index"
    entries = [(offset, position + 1) for offset, position in struct.iter_unpack(">ii", path.read_bytes())]
    assert len(entries) > 3
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    again = bench.load(clean=True, segment_bytes=2000, index_interval_bytes=100)
    for offset in range(again.bases[1]):
        again.known_positions.clear()
        found = again.read(offset, 1, upper_offset=again.log_end_offset)
        assert struct.unpack_from(">q", found.read()) == (offset,)
        found.release()


@pytest.mark.spec("DIR-41", "REP-07")
def test_a_disk_that_fails_where_an_empty_log_begins_anew_takes_its_directory_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch begins before the log start offset: an error without a directory stops the whole fetcher."""
    log = bench.create()
    log.truncate_fully_and_start_at(5)

    def broken(old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error", new)

    monkeypatch.setattr(bench.disk, "rename", broken)
    sent = encode_batch([Record(b"k", b"v", bench.clock.now_ms)] * 4, base_offset=3, leader_epoch=0)
    with pytest.raises(LogDirectoryFailure):
        log.append_as_follower(memoryview(sent))
    assert not bench.directory.online


@pytest.mark.spec("REP-02", "LOG-10")
def test_a_follower_takes_what_its_leader_has_however_short_segments_are_to_be_by_now(
    bench: Bench, read_all: ReadAll
) -> None:
    """`segment.bytes` was lowered since: a leader refuses such a batch, but stored ones must be replicated."""
    log = bench.create(segment_bytes=1000)
    large = [Record(b"k", b"v" * 2000, bench.clock.now_ms)]
    with pytest.raises(ApiError) as refused:
        log.append_as_leader(encode_batch(large), 0, now_ms=bench.clock.now_ms)
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == log.size_bytes == 0
    for offset in range(3):
        log.append_as_follower(memoryview(encode_batch(large, base_offset=offset, leader_epoch=0)))
    assert log.bases == [0, 1, 2]
    assert [record.offset for record in read_all(log)] == [0, 1, 2]
    log.close()
    assert bench.load(clean=True, segment_bytes=1000).log_end_offset == 3


@pytest.mark.spec("DIR-41")
def test_a_slice_that_could_not_be_sent_takes_its_directory_offline(bench: Bench) -> None:
    log = bench.create()
    bench.append(log)
    part = log.read(0, 1000, upper_offset=1)
    part.failed(OSError(5, "Input/output error"))
    part.release()
    assert not bench.directory.online


@pytest.mark.spec("LOG-31")
def test_who_has_read_is_not_told_that_the_file_could_not_be_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was open for reading only, so nothing is lost; a client's connection would stay half closed."""
    log = bench.create()
    bench.append(log)
    log.active.close()
    found = log.read(0, 1 << 20, upper_offset=1)
    bench.append(log)  # opens the file for writing
    close, refused = RealFile.close, []

    def refuse(file: RealFile) -> None:
        close(file)
        refused.append(file)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(RealFile, "close", refuse)
    found.release()
    assert len(refused) == 1
    monkeypatch.undo()
    bench.append(log)
    assert log.directory.online
