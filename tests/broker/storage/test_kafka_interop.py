"""Files are interchangeable with Apache Kafka's, in both directions, after clean shutdowns and kills, byte for byte.

Needs its jars (BALLAST_KAFKA_JARS) and Java.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.apache_java import compiled, java
from tests.broker.storage.conftest import Bench, ReadAll, state_of

from ballast_broker.storage.cleaner import clean
from ballast_broker.storage.compaction import make_job, measure, swap_in
from ballast_broker.storage.errors import OlderFormat
from ballast_broker.storage.log import Log
from ballast_broker.storage.producers import NOT_ASKED
from ballast_broker.storage.transactions import render_marker
from ballast_wire.records import Record, encode_batch, iterate_batches

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).with_name("KafkaLog.java")
START_MS = time.time_ns() // 1_000_000  # Kafka expires producers by the real clock
CONFIG = {"segment_bytes": 4000, "index_interval_bytes": 200}
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINTS = re.compile(
    r"isvalid: false|mismatch|corrupt|out of order|non-secutive|non-consecutive|duplicate|exception|error",
    re.IGNORECASE,
)


def java_says(*arguments: object, classes: Sequence[Path] = ()) -> str:
    done = subprocess.run(java(*arguments, classes=classes), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kafka_sees(
    folder: Path, *, clean: bool, append: int = 0, end: str = "close", transactions: bool = False
) -> dict[str, str]:
    more = ["transactions"] if transactions else []
    arguments = (folder, "clean" if clean else "unclean", append, end, START_MS, *more)
    said = java_says(PROGRAM.stem, *arguments, classes=[compiled(PROGRAM)])
    return dict(line.split(" ", 1) for line in said.splitlines())


def of_transactions(log: Log) -> dict[str, str]:
    """The transactions in the form of `kafka_sees`: last stable offset, aborted ones, and those of each producer."""
    log.update_high_watermark(log.log_end_offset)
    seen = {"stable": str(log.last_stable_offset)}
    for each in log.aborted_transactions(0, log.log_end_offset):
        seen[f"aborted{each.last_offset}"] = f"{each.producer_id} {each.first_offset} {each.last_stable_offset}"
    for number, state in log.producers.items():
        seen[f"transaction{number}"] = f"{state.current_txn_first_offset} {state.coordinator_epoch}"
        seen[f"producer{number}"] = f"{state.epoch} {state.last_sequence} {state.last_offset}"
    return seen


def of_kafkas(seen: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in seen.items() if key.startswith(("stable", "aborted", "transaction"))}
    for number in (key[len("transaction") :] for key in list(kept) if key.startswith("transaction")):
        kept[f"producer{number}"] = seen[f"producer{number}"]
    return kept


def dump(folder: Path) -> str:
    names = [n for n in sorted(os.listdir(folder)) if n.endswith(KINDS)]
    files = ",".join(str(folder / name) for name in names)
    return java_says("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files)


def fill(bench: Bench, log: Log) -> None:
    """Append with several segments, codecs, producers and epochs."""
    bench.clock.now_ms = START_MS
    for number in range(100):
        records = [Record(b"k%d" % (number % 9), b"value%d" % n, START_MS + 3 * number + n) for n in range(3)]
        batch = encode_batch(
            records, codec=number % 5, producer_id=number % 2, producer_epoch=3, base_sequence=number // 2 * 3
        )
        log.append_as_leader(batch, number // 20, now_ms=bench.clock.now_ms)
    log.update_high_watermark(log.log_end_offset)


def digest(records: list[Record]) -> str:
    total = sum(r.offset * 31 + r.timestamp % 1000003 + (-1 if r.value is None else len(r.value)) for r in records)
    return f"{len(records)} {total}"


@pytest.mark.spec("LOG-01")
def test_dump_log_reads_a_folder_whole_without_complaint(bench: Bench) -> None:
    log = bench.create(**CONFIG)
    fill(bench, log)
    log.close()
    output = dump(bench.folder)
    assert not COMPLAINTS.search(output), COMPLAINTS.findall(output)
    assert len(re.findall(r"^baseOffset: ", output, re.MULTILINE)) == 100
    assert len(re.findall(r"^\| offset: ", output, re.MULTILINE)) == 300
    assert len(re.findall(r"^producerId: ", output, re.MULTILINE)) == 2 * len(log.snapshots.offsets)


@pytest.mark.spec("LOG-25")
def test_dump_log_reads_a_compacted_folder(bench: Bench, read_all: ReadAll) -> None:
    log = bench.create(**CONFIG, cleanup_policy=frozenset({"compact"}))
    fill(bench, log)
    log.append_as_leader(encode_batch([Record(b"k1", None, START_MS)]), 9, now_ms=bench.clock.now_ms)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    job = make_job(log, measure(log, 0, bench.clock.now_ms), bench.clock.now_ms, 1000)
    segments = {segment.base_offset: segment for segment in log.segments}
    for group in clean(bench.disk, job).groups:
        swap_in(log, [segments[base] for base in group.replaced], group)
    kept = read_all(log)
    assert len({record.key for record in kept}) == len(kept) == 9
    log.close()
    output = dump(bench.folder)
    assert not COMPLAINTS.search(output), COMPLAINTS.findall(output)
    assert output.count("deleteHorizonMs: OptionalLong[") == 1
    assert len(re.findall(r"^\| offset: ", output, re.MULTILINE)) == 9
    seen = kafka_sees(bench.folder, clean=True)
    assert seen["records"] == digest(kept)


@pytest.mark.spec("LOG-01")
@pytest.mark.parametrize("clean_stop", [True, False])
def test_kafka_opens_what_ballast_wrote_and_ballast_goes_on_after_kafka(
    bench: Bench, read_all: ReadAll, clean_stop: bool
) -> None:
    log = bench.create(**CONFIG)
    fill(bench, log)
    expected = digest(read_all(log))
    if clean_stop:
        log.close()
    bench.release()
    seen = kafka_sees(bench.folder, clean=clean_stop, append=4)
    assert seen["first_end"] == "300"
    assert seen["end"] == "312"
    assert seen["topic_id"] == "ASNFZ4mrze8BI0VniavN7w"
    assert seen["timestamp"] == f"{START_MS + 50} 50"
    assert seen["epochs"].count("EpochEntry") == 5
    again = bench.load(clean=True, **CONFIG)
    assert again.log_end_offset == 312
    assert digest([record for record in read_all(again) if record.offset < 300]) == expected
    assert seen["records"] == digest(read_all(again))
    states = {producer: state.last_sequence for producer, state in again.producers.items()}
    assert states == {0: 149, 1: 149, 77: 11}


@pytest.mark.spec("LOG-01")
@pytest.mark.parametrize("end", ["close", "halt"])
def test_ballast_opens_what_kafka_wrote(bench: Bench, read_all: ReadAll, end: str) -> None:
    bench.folder.mkdir()
    seen = kafka_sees(bench.folder, clean=False, append=100, end=end)
    log = bench.load(clean=end == "close", **CONFIG)
    assert log.log_end_offset == 300
    assert len(log.segments) == int(seen["segments"])
    assert digest(read_all(log)) == seen["records"]
    assert log.epochs.entries == [(0, 0), (1, 60), (2, 120), (3, 180), (4, 240)]
    state = state_of(log, 77)
    assert (state.epoch, state.last_sequence, state.last_offset) == (1, 299, 299)
    assert log.offset_for_timestamp(START_MS + 50) == (START_MS + 50, 50, 0)
    bench.append(log, epoch=5)
    log.close()
    assert kafka_sees(bench.folder, clean=True)["end"] == "301"


@pytest.mark.spec("LOG-01")
@pytest.mark.spec("LOG-04")
def test_the_same_batches_make_the_same_files(bench: Bench, tmp_path: Path) -> None:
    theirs = tmp_path / "kafka" / "topic-0"
    theirs.mkdir(parents=True)
    kafka_sees(theirs, clean=False, append=100)
    log = bench.create(**CONFIG)
    for name in sorted(name for name in os.listdir(theirs) if name.endswith(".log")):
        for batch in iterate_batches(memoryview((theirs / name).read_bytes())):
            log.append_as_follower(batch.bytes_view)
    log.flush()  # until then a mark of ours stands beside each new segment (LOG-02)
    log.close()
    os.unlink(bench.folder / "partition.metadata")
    names = sorted(os.listdir(theirs))
    assert sorted(os.listdir(bench.folder)) == names
    for name in names:
        assert (bench.folder / name).read_bytes() == (theirs / name).read_bytes(), name
    shutil.rmtree(theirs)


def fill_with_transactions(bench: Bench, log: Log) -> None:
    """Append the same transactions as `KafkaLog.java`."""
    bench.clock.now_ms = START_MS
    epochs, sequences = [0, 0, 0], [0, 0, 0]
    for number in range(60):
        producer = number % 3
        batch = encode_batch(
            [Record(b"k%d" % number, b"transactional", START_MS + number)], transactional=True,
            producer_id=100 + producer, producer_epoch=epochs[producer], base_sequence=sequences[producer],
        )  # fmt: skip
        sequences[producer] += 1
        log.append_as_leader(batch, 0, now_ms=START_MS, origin="transaction", verified=NOT_ASKED)
        if number % 4 == 3 and number < 57:
            if producer == 2:
                epochs[producer], sequences[producer] = epochs[producer] + 1, 0
            marker = render_marker(
                100 + producer, epochs[producer], 7, committed=producer == 0, now_ms=START_MS + number
            )
            log.append_as_leader(marker, 0, now_ms=START_MS, origin="coordinator")


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder)) if name.endswith(KINDS)}


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("end", ["close", "halt"])
def test_transactions_that_kafka_wrote(bench: Bench, read_all: ReadAll, end: str) -> None:
    bench.folder.mkdir()
    seen = kafka_sees(bench.folder, clean=False, append=60, end=end, transactions=True)
    theirs = files_of(bench.folder)
    log = bench.load(clean=end == "close", **CONFIG)
    assert len(log.segments) > 1
    assert of_transactions(log) == of_kafkas(seen)
    assert sum(key.startswith("aborted") for key in seen) >= 5
    assert int(seen["stable"]) < log.log_end_offset
    assert digest(read_all(log)) == seen["records"]
    for name in theirs:
        if name.endswith(".txnindex"):
            assert (bench.folder / name).read_bytes() == theirs[name], name


@pytest.mark.spec("CLI-05")
def test_the_same_transactions_make_the_same_files(bench: Bench, tmp_path: Path) -> None:
    theirs = tmp_path / "kafka" / "topic-0"
    theirs.mkdir(parents=True)
    kafka_sees(theirs, clean=False, append=60, transactions=True)
    log = bench.create(**CONFIG)
    fill_with_transactions(bench, log)
    log.close()
    ours = files_of(bench.folder)
    assert any(name.endswith(".txnindex") for name in ours)
    assert list(ours) == list(files_of(theirs))
    for name, data in files_of(theirs).items():
        if not name.endswith(".snapshot"):  # those are in an order of their own
            assert ours[name] == data, name
    shutil.rmtree(theirs)


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("clean_stop", [True, False])
def test_kafka_goes_on_with_transactions_that_ballast_wrote(bench: Bench, clean_stop: bool) -> None:
    log = bench.create(**CONFIG)
    fill_with_transactions(bench, log)
    expected = of_transactions(log)
    if clean_stop:
        log.close()
    bench.release()
    assert of_kafkas(kafka_sees(bench.folder, clean=clean_stop)) == expected
    again = bench.load(clean=True, **CONFIG)
    assert of_transactions(again) == expected


@pytest.mark.spec("CLI-05")
@pytest.mark.spec("CLI-02")
def test_dump_log_shows_markers_and_aborted_transactions(bench: Bench) -> None:
    log = bench.create(**CONFIG, cleanup_policy=frozenset({"compact"}))
    fill_with_transactions(bench, log)
    log.close()
    output = dump(bench.folder)
    assert not COMPLAINTS.search(output), COMPLAINTS.findall(output)
    assert output.count("endTxnMarker: ABORT coordinatorEpoch: 7") == 9
    assert output.count("endTxnMarker: COMMIT coordinatorEpoch: 7") == 5
    entries = re.findall(r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) ", output, re.MULTILINE)
    told = log.aborted_transactions(0, log.log_end_offset)
    assert [tuple(map(int, entry)) for entry in entries] == [each[:3] for each in told]


@pytest.mark.spec("LOG-25")
def test_kafka_opens_what_is_left_of_transactions(bench: Bench, read_all: ReadAll) -> None:
    """After their data is cleaned, after their markers are, and with only empty batches left of their producers."""
    log = bench.create(**CONFIG, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)
    fill_with_transactions(bench, log)
    for producer in range(3):
        epoch = state_of(log, 100 + producer).epoch + (producer == 1)
        marker = render_marker(100 + producer, epoch, 8, committed=producer == 0, now_ms=START_MS)
        log.append_as_leader(marker, 0, now_ms=START_MS, origin="coordinator")
    log.roll()
    end_offset = log.log_end_offset
    for later_ms in (0, 0, 1000):
        log.update_high_watermark(end_offset)
        job = make_job(log, measure(log, 0, START_MS), START_MS + later_ms, 1000)
        segments = {segment.base_offset: segment for segment in log.segments}
        for group in clean(bench.disk, job).groups:
            swap_in(log, [segments[base] for base in group.replaced], group)
        log.close()
        bench.release()
        output = dump(bench.folder)
        assert not COMPLAINTS.search(output), COMPLAINTS.findall(output)
        shutil.copytree(bench.folder, bench.root / "theirs" / "topic-0", dirs_exist_ok=True)
        seen = kafka_sees(bench.root / "theirs" / "topic-0", clean=True)
        shutil.rmtree(bench.root / "theirs")
        log = bench.load(clean=True, **CONFIG, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)
        assert of_transactions(log) == of_kafkas(seen)
        assert (seen["end"], seen["stable"]) == (str(end_offset), str(end_offset))
        assert digest(read_all(log)) == seen["records"]


def older_message(offset: int, timestamp: int, value: bytes) -> bytes:
    """A message of magic 1, as before Kafka 0.11."""
    body = struct.pack(">bbqii", 1, 0, timestamp, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.spec("LOG-40", "CLI-05")
@pytest.mark.parametrize("clean_stop", [True, False])
def test_what_only_kafka_can_read_is_not_cut_off(bench: Bench, clean_stop: bool) -> None:
    bench.folder.mkdir()
    file = bench.folder / f"{0:020d}.log"
    content = b"".join(older_message(offset, START_MS + offset, b"value") for offset in range(5))
    file.write_bytes(content)
    with pytest.raises(OlderFormat, match="a format from before Kafka"):
        bench.load(clean=clean_stop)
    assert file.read_bytes() == content
    seen = kafka_sees(bench.folder, clean=clean_stop)
    assert (seen["end"], seen["records"].split()[0]) == ("5", "5")
    file.write_bytes(content[:-1])  # a torn one is like any other
    with pytest.raises(OlderFormat):
        bench.load(clean=clean_stop)
    file.write_bytes(content[:10])
    assert bench.load(clean=clean_stop).log_end_offset == 0
