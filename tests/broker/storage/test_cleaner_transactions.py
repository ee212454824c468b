"""Compaction and transactions: aborted records go, markers go last, producers stay known (LOG-25)."""

from __future__ import annotations

import os
import random
import shutil

import pytest
from tests.broker.storage.conftest import Bench
from tests.broker.storage.test_cleaner import COMPACT, DyingDisk, compact
from tests.broker.storage.test_transactions import end, told

from ballast_broker.storage.cleaner_process import CleanerProcess
from ballast_broker.storage.compaction import make_job, measure, swap_in
from ballast_broker.storage.log import Log
from ballast_broker.storage.producers import NOT_ASKED
from ballast_broker.storage.slices import AppendInfo
from ballast_wire.records import BatchView, Record, decode_records, encode_batch, iterate_batches

RETENTION_MS = 1000


def put(
    bench: Bench, log: Log, producer: int, sequence: int, *keys: int, epoch: int = 0, value: bytes = b"v"
) -> AppendInfo:
    records = [Record(b"k%d" % key, value, bench.clock.now_ms) for key in keys]
    batch = encode_batch(
        records, transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms, origin="transaction", verified=NOT_ASKED)


def settle(log: Log) -> None:
    log.roll()
    log.update_high_watermark(log.log_end_offset)


def batches(log: Log) -> list[BatchView]:
    found: list[BatchView] = []
    for segment in log.segments:
        data = segment.file().pread(segment.size, 0)
        found += iterate_batches(memoryview(data))
    return found


def shape(log: Log) -> list[tuple[int, int, str, int]]:
    """The batches in the log: (last offset, producer, c(ontrol) or d(ata), number of records)."""
    return [
        (b.last_offset, b.header.producer_id, "c" if b.is_control else "d", b.header.record_count) for b in batches(log)
    ]


def committed(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of what a read_committed consumer sees."""
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    shown = []
    for batch in batches(log):
        producer, first = batch.header.producer_id, batch.base_offset
        if batch.is_control or (
            batch.is_transactional
            and any(e.producer_id == producer and e.first_offset <= first <= e.last_offset for e in aborted)
        ):
            continue
        shown += [(record.offset, record.key, record.value) for record in decode_records(batch)]
    return shown


@pytest.mark.spec("LOG-25")
def test_what_was_aborted_goes_and_its_marker_after_it(bench: Bench) -> None:
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=RETENTION_MS)
    put(bench, log, 7, 0, 1, 2)
    end(bench, log, 7, committed=True)
    put(bench, log, 7, 2, 1, 3)
    put(bench, log, 8, 0, 9)
    end(bench, log, 7, committed=False)
    put(bench, log, 7, 4, 4)
    end(bench, log, 7, committed=True)
    end(bench, log, 8, committed=False, epoch=1)
    settle(log)
    compact(bench, log)
    # The later write of key 1 was aborted. Of producer 8, which ended with another epoch, only the marker is left.
    first_pass = [(1, 7, "d", 2), (2, 7, "c", 1), (6, 7, "c", 1), (7, 7, "d", 1), (8, 7, "c", 1), (9, 8, "c", 1)]
    assert shape(log) == first_pass
    assert told(log, 0, 10) == [(7, 3), (8, 5)]
    compact(bench, log)
    assert shape(log) == first_pass
    assert told(log, 0, 10) == []
    assert not list(bench.folder.glob("*.txnindex"))
    compact(bench, log, now_ms=bench.clock.now_ms + RETENTION_MS - 1)
    assert shape(log) == first_pass
    compact(bench, log, now_ms=bench.clock.now_ms + RETENTION_MS)
    assert shape(log) == [(1, 7, "d", 2), (2, 7, "c", 1), (7, 7, "d", 1), (8, 7, "c", 1), (9, 8, "c", 0)]
    assert [key for _, key, _ in committed(log)] == [b"k1", b"k2", b"k4"]
    compact(bench, log, now_ms=bench.clock.now_ms + 2 * RETENTION_MS)
    assert shape(log)[-1] == (9, 8, "c", 0), "what is empty is not emptied again, and stays"


@pytest.mark.spec("LOG-25")
def test_a_marker_goes_when_its_data_was_written_anew(bench: Bench) -> None:
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=RETENTION_MS)
    put(bench, log, 7, 0, 1)
    end(bench, log, 7, committed=True)
    put(bench, log, 7, 1, 1)
    end(bench, log, 7, committed=True)
    settle(log)
    compact(bench, log)
    assert shape(log) == [(1, 7, "c", 1), (2, 7, "d", 1), (3, 7, "c", 1)]
    compact(bench, log)
    compact(bench, log, now_ms=bench.clock.now_ms + RETENTION_MS)
    assert shape(log) == [(2, 7, "d", 1), (3, 7, "c", 1)]
    bench.release()
    again = bench.load(clean=False, cleanup_policy=COMPACT)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == 4


@pytest.mark.spec("LOG-25")
def test_nothing_of_an_open_transaction_is_touched(bench: Bench) -> None:
    log = bench.create(cleanup_policy=COMPACT)
    put(bench, log, 7, 0, 1)
    put(bench, log, 8, 0, 1)
    end(bench, log, 8, committed=True)
    settle(log)
    put(bench, log, 8, 1, 1)
    end(bench, log, 8, committed=True)
    settle(log)
    assert measure(log, 0, bench.clock.now_ms).end_offset == 0
    end(bench, log, 7, committed=False)
    settle(log)
    compact(bench, log)
    assert committed(log) == [(3, b"k1", b"v")]


@pytest.mark.spec("LOG-25")
async def test_the_process_is_told_of_transactions_too(bench: Bench) -> None:
    log = bench.create(cleanup_policy=COMPACT)
    put(bench, log, 7, 0, 1)
    end(bench, log, 7, committed=False)
    settle(log)
    job = make_job(log, measure(log, 0, bench.clock.now_ms), bench.clock.now_ms, 1000)
    process = CleanerProcess()
    try:
        result = await process.run(job)
    finally:
        await process.close()
    swap_in(log, log.segments[:1], result.groups[0])
    assert shape(log) == [(0, 7, "d", 0), (1, 7, "c", 1)]
    assert told(log, 0, 2) == [(7, 0)]
    bench.release()
    again = bench.load(clean=False)
    assert told(again, 0, 2) == [(7, 0)]


@pytest.mark.spec("LOG-02")
@pytest.mark.spec("LOG-25")
def test_a_crash_at_any_step_of_the_swap_shows_nothing_that_was_aborted(bench: Bench) -> None:
    """The disk dies at its n-th rename, for every n; beyond the map aborted records are still there."""

    bench.disk = bench.context.disk = disk = DyingDisk()
    steps, died, left_behind = 0, True, set()
    while died:
        shutil.rmtree(bench.folder, ignore_errors=True)
        disk.left = 10**9
        log = bench.create(cleanup_policy=COMPACT, segment_bytes=500)
        for number in range(6):
            put(bench, log, 7, 2 * number, number, number + 1)
            put(bench, log, 8, number, 3)
            end(bench, log, 7, committed=number % 2 == 0)
            end(bench, log, 8, committed=False)
        settle(log)
        log.flush()
        log.update_config(log.config.__class__(cleanup_policy=COMPACT, segment_bytes=100_000))
        expected = {key: offset for offset, key, _ in committed(log)}
        disk.left = steps
        try:
            compact(bench, log, entries=3)
            died = False
        except KeyboardInterrupt:
            pass
        left_behind |= {path.suffix for path in bench.folder.glob("*.txnindex.*")}
        bench.release()
        disk.left = 10**9
        end_offset = log.log_end_offset
        again = bench.load(clean=False, recovery_point=end_offset, cleanup_policy=COMPACT)
        again.update_high_watermark(end_offset)
        assert again.last_stable_offset == end_offset
        assert {key: offset for offset, key, _ in committed(again)} == expected
        assert again.aborted_transactions(0, end_offset)
        assert not [name for name in os.listdir(bench.folder) if name.endswith((".swap", ".cleaned", ".deleted"))]
        bench.release()
        steps += 1
    assert steps > 15
    assert left_behind == {".cleaned", ".swap", ".deleted"}


KINDS = ["data"] * 8 + ["commit"] * 3 + ["abort"] * 3 + ["bump", "roll", "roll", "clean", "clean"]


@pytest.mark.spec("LOG-25")
@pytest.mark.parametrize("seed", range(40))
def test_random_transactions_read_the_same_before_and_after(bench: Bench, seed: int) -> None:
    """The newest committed record of each key and the producer state stay, also over a start without indexes."""
    dice = random.Random(seed)
    entries = dice.choice([2, 5, 12, 1000])
    steps = [
        (dice.choice(KINDS), dice.randint(1, 3), [dice.randrange(6) for _ in range(dice.randint(1, 3))])
        for _ in range(70)
    ]
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=RETENTION_MS, segment_bytes=600)
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    open_ones: set[int] = set()
    cleaned_to = 0
    newest: dict[bytes, int] = {}
    pending: dict[int, list[tuple[bytes, int]]] = {}
    for what, producer, keys in [*steps, ("end", 0, [])]:
        if what == "data":
            info = put(bench, log, producer, sequences.get(producer, 0), *keys, epoch=epochs.get(producer, 0))
            sequences[producer] = sequences.get(producer, 0) + len(keys)
            places = [(b"k%d" % key, info.first_offset + n) for n, key in enumerate(keys)]
            pending.setdefault(producer, []).extend(places)
            open_ones.add(producer)
        elif what in ("commit", "abort", "bump"):
            if what == "bump":
                epochs[producer], sequences[producer] = epochs.get(producer, 0) + 1, 0
            end(bench, log, producer, committed=what == "commit", epoch=epochs.get(producer, 0))
            for key, offset in pending.pop(producer, []) if what == "commit" else ():
                newest[key] = max(offset, newest.get(key, -1))
            pending.pop(producer, None)
            open_ones.discard(producer)
        elif what == "roll":
            settle(log)
        elif what == "clean":
            log.update_high_watermark(log.log_end_offset)
            bench.clock.now_ms += RETENTION_MS // 2
            result = compact(bench, log, cleaned_to=cleaned_to, entries=entries)
            cleaned_to = max(cleaned_to, result.end_offset)
        else:
            for left in list(open_ones):
                end(bench, log, left, committed=False, epoch=epochs.get(left, 0))
            settle(log)
    expected = {(offset, key) for key, offset in newest.items()}
    known = {number: (s.epoch, s.last_sequence) for number, s in log.producers.items()}
    for _ in range(3):
        shown = {(offset, key or b"") for offset, key, _ in committed(log)}
        assert expected <= shown
        for offset, key in shown:
            assert offset <= newest[key], "an aborted record is shown"
        compact(bench, log)
        bench.clock.now_ms += RETENTION_MS
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == log.log_end_offset
    assert {(offset, key) for offset, key, _ in committed(log)} == expected
    bench.release()
    for snapshot in bench.folder.glob("*.snapshot"):
        snapshot.unlink()
    again = bench.load(clean=False, cleanup_policy=COMPACT)
    again.update_high_watermark(again.log_end_offset)
    assert {(offset, key) for offset, key, _ in committed(again)} == expected
    assert again.last_stable_offset == again.log_end_offset
    assert {number: (s.epoch, s.last_sequence) for number, s in again.producers.items()} == known
    bench.release()


@pytest.mark.spec("LOG-25", "CLI-05")
def test_an_aborted_offset_of_a_group_does_not_take_the_one_before_it_along(bench: Bench) -> None:
    """A group coordinator's writes in a transaction have no sequence numbers."""
    log = bench.create(cleanup_policy=COMPACT, delete_retention_ms=RETENTION_MS)

    def write(value: bytes, producer: int = -1) -> None:
        batch = encode_batch(
            [Record(b"group", value, bench.clock.now_ms)], transactional=producer >= 0, producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
        )  # fmt: skip
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms, origin="coordinator")

    write(b"committed")
    write(b"aborted", 7)
    end(bench, log, 7, committed=False)
    settle(log)
    compact(bench, log)
    assert [value for _, _, value in committed(log)] == [b"committed"]
    assert [record.value for each in batches(log) if not each.is_control for record in decode_records(each)] == [
        b"committed"
    ]
