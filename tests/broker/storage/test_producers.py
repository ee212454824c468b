"""Idempotent producers (CLI-05)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker import turning
from tests.broker.storage.conftest import Bench, state_of

from ballast_broker.storage.disk import RealFile
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.log import Log
from ballast_broker.storage.producer_snapshots import replay
from ballast_broker.storage.producers import (
    MAXIMUM_SEQUENCE,
    ProducerState,
    ProducerStates,
    sequence_after,
    sequence_before,
)
from ballast_broker.storage.slices import AppendInfo
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import Record, encode_batch


def send(bench: Bench, log: Log, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> AppendInfo:
    batch = encode_batch(
        [Record(None, b"x", bench.clock.now_ms)] * count, producer_id=producer, producer_epoch=epoch,
        base_sequence=sequence,
    )  # fmt: skip
    return log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)


def known(states: ProducerStates, producer: int) -> ProducerState:
    state = states.get(producer)
    assert state is not None
    return state


def refused(bench: Bench, log: Log, *args: Any, **keywords: Any) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        send(bench, log, *args, **keywords)
    return error.value.code


@pytest.mark.spec("CLI-05")
def test_a_repeated_batch_is_answered_with_its_first_offset_within_five(bench: Bench) -> None:
    log = bench.create()
    for number in range(7):
        send(bench, log, number * 2, 2)
    for number in range(2, 7):
        again = send(bench, log, number * 2, 2)
        assert again.duplicate
        assert (again.first_offset, again.last_offset) == (number * 2, number * 2 + 1)
    assert log.log_end_offset == 14
    assert refused(bench, log, 2, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.spec("CLI-05")
def test_gaps_zombies_and_new_epochs(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 0)
    assert refused(bench, log, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(bench, log, 0, epoch=1)
    assert refused(bench, log, 1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(bench, log, 5, epoch=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(bench, log, 100, producer=8)  # nothing is known of it: any sequence begins
    assert log.log_end_offset == 3


@pytest.mark.spec("CLI-05")
def test_sequences_wrap(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, MAXIMUM_SEQUENCE - 1, 4)
    assert state_of(log, 7).last_sequence == 1
    assert send(bench, log, MAXIMUM_SEQUENCE - 1, 4).duplicate
    send(bench, log, 2)
    send(bench, log, MAXIMUM_SEQUENCE, 1, producer=9)
    send(bench, log, 0, 1, producer=9)


@pytest.mark.spec("CLI-05")
def test_the_last_batch_of_each_survives_restarts(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 0)
    send(bench, log, 1)
    log.close()
    bench.release()
    again = bench.load(clean=True)
    assert send(bench, again, 1).duplicate
    assert send(bench, again, 2).first_offset == 2
    bench.release()
    killed = bench.load(clean=False)
    assert send(bench, killed, 2).duplicate
    assert refused(bench, killed, 9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("segment_bytes", [200, 1 << 20])
def test_batches_before_the_last_are_known_after_a_restart_as_well(bench: Bench, segment_bytes: int) -> None:
    """A snapshot has only the last one; a producer that got no response retries all batches in flight."""
    log = bench.create(segment_bytes=segment_bytes)
    send(bench, log, 0, epoch=3)
    for number in range(8):
        send(bench, log, number * 2, 2, epoch=4)
        send(bench, log, number, producer=8, epoch=4)
    log.close()
    bench.release()
    again = bench.load(clean=True, segment_bytes=segment_bytes)
    assert len(state_of(again, 7).batches) == 1
    for number in range(3, 8):
        repeated = send(bench, again, number * 2, 2, epoch=4)
        assert repeated.duplicate
        assert (repeated.first_offset, repeated.last_offset) == (1 + number * 3, 2 + number * 3)
    assert refused(bench, again, 4, 2, epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(bench, again, 5, 2, epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(bench, again, 99, producer=8, epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(bench, again, 16, epoch=4).first_offset == 25
    assert send(bench, again, 7, producer=8, epoch=4).duplicate


@pytest.mark.spec("CLI-05")
def test_only_time_makes_a_producer_forgotten(bench: Bench) -> None:
    log = bench.create(segment_bytes=200, retention_bytes=0)
    for number in range(10):
        send(bench, log, number)
    log.update_high_watermark(10)
    assert log.delete_old_segments(bench.clock.now_ms) > 0
    assert log.log_start_offset == 10
    assert refused(bench, log, 77) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    turning.at_one_go(log.producers.expire(bench.clock.now_ms + 999, 1000))
    assert len(log.producers) == 1
    turning.at_one_go(log.producers.expire(bench.clock.now_ms + 1000, 1000))
    assert send(bench, log, 77).first_offset == 10


@pytest.mark.spec("CLI-05")
def test_a_producer_that_writes_while_others_are_forgotten_is_kept(bench: Bench) -> None:
    log = bench.create()
    for producer in range(4):
        send(bench, log, 0, producer=producer)
    bench.clock.now_ms += 1000
    forgetting = log.producers.expire(bench.clock.now_ms, 1000)
    next(forgetting)
    assert len(log.producers) == 3
    send(bench, log, 1, producer=2)
    send(bench, log, 0, producer=9)
    turning.at_one_go(forgetting)
    assert {producer_id for producer_id, _ in log.producers.items()} == {2, 9}
    forgetting = log.producers.expire(bench.clock.now_ms + 1000, 1000)
    next(forgetting)
    log.producers.clear(0)
    turning.at_one_go(forgetting)
    assert not len(log.producers)


@pytest.mark.spec("CLI-05", "LOG-32")
@pytest.mark.parametrize("count", [1, 3000])
def test_a_large_snapshot_is_read_while_the_log_is_loaded_and_a_small_one_when_needed(bench: Bench, count: int) -> None:
    log = bench.create()
    send(bench, log, 0)
    for producer_id in range(100, 99 + count):
        log.producers.record(producer_id, 0, 0, 0, 0, bench.clock.now_ms)
    log.close()
    bench.release()
    again = bench.load(clean=True)
    assert again.producers_are_loaded is (count == 3000)
    assert len(again.producers) == count
    assert send(bench, again, 0).duplicate


@pytest.mark.spec("CLI-05")
def test_truncation_takes_producers_back(bench: Bench) -> None:
    log = bench.create()
    for number in range(6):
        send(bench, log, number)
    log.truncate_to(3)
    assert state_of(log, 7).last_sequence == 2
    assert send(bench, log, 3).first_offset == 3


@pytest.mark.spec("CLI-05", "LOG-41")
def test_a_snapshot_of_what_was_cut_off_goes_with_it(bench: Bench) -> None:
    """Once other records are there, it would list producers that never wrote them."""
    log = bench.create()
    for number in range(4):
        send(bench, log, number)
        log.roll()
    log.truncate_to(2)
    assert max(int(path.stem) for path in bench.folder.glob("*.snapshot")) <= 2
    for number in range(2):
        send(bench, log, number, producer=8)
    bench.release()
    again = bench.load(clean=False)
    assert [state_of(again, producer).last_sequence for producer in (7, 8)] == [1, 1]


NEXT = -2
SEQUENCES = st.sampled_from([NEXT, NEXT, NEXT, 0, 1, 2, 3, 4, MAXIMUM_SEQUENCE - 2, MAXIMUM_SEQUENCE])


@pytest.mark.spec("CLI-05")
@given(st.lists(st.tuples(st.integers(7, 8), st.integers(0, 1), SEQUENCES, st.integers(0, 3), st.booleans())))
def test_what_goes_on_repeats_nothing_and_passes_the_check(batches: list[tuple[int, int, int, int, bool]]) -> None:
    """The fast path for a producer's next batch has the same result and effects as the full check."""
    short, long = ProducerStates(), ProducerStates()
    for offset, (producer, epoch, sequence, delta, transactional) in enumerate(batches):
        if sequence == NEXT:
            state = long.get(producer)
            sequence = MAXIMUM_SEQUENCE - 5 if state is None else sequence_after(state.last_sequence, 1)
        following = None if transactional else short.going_on(producer, epoch, sequence, delta)
        duplicate = long.find_duplicate(producer, epoch, sequence, delta)
        try:
            long.check(producer, epoch, sequence, offset, "topic-0", transactional=transactional)
        except ApiError:
            assert following is None
            continue
        if duplicate is not None:
            assert following is None
            continue
        long.record(producer, epoch, sequence, delta, offset, offset, transactional=transactional)
        if following is None:
            short.record(producer, epoch, sequence, delta, offset, offset, transactional=transactional)
        else:
            following.sent(sequence + delta, offset, delta, offset)
        assert short.render() == long.render()
        assert known(short, producer).batches == known(long, producer).batches


@given(st.integers(0, MAXIMUM_SEQUENCE), st.integers(0, 1 << 20))
def test_before_undoes_after(sequence: int, count: int) -> None:
    assert sequence_before(sequence_after(sequence, count), count) == sequence
    assert 0 <= sequence_after(sequence, count) <= MAXIMUM_SEQUENCE


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, MAXIMUM_SEQUENCE), st.integers(0, 99)
        ),
        unique_by=lambda entry: entry[0],
    ),
    st.data(),
)
def test_snapshots_are_read_as_written_and_never_when_damaged(
    entries: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    states = ProducerStates()
    for number, (producer, epoch, sequence, delta) in enumerate(entries):
        states.record(producer, epoch, sequence, delta, 1000 + number, 5)
    raw = states.render()
    again = ProducerStates()
    again.load(raw, 77)
    assert again.render() == raw
    assert again.map_end_offset == 77
    broken = bytearray(raw)
    broken[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(broken), raw[: data.draw(st.integers(0, len(raw) - 1))]):
        with pytest.raises(CorruptFile):
            ProducerStates().load(damaged, 0)


@pytest.mark.spec("CLI-05", "LOG-32")
def test_a_cut_reads_little_of_a_long_segment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for it, and an active segment may have a GiB of batches."""
    log = bench.create()
    send(bench, log, 0, producer=8)
    for number in range(300):
        bench.append(log, size=10_000, producer_id=7, producer_epoch=0, base_sequence=number)
    for sequence in range(3):
        send(bench, log, sequence, producer=9)
    reads = []
    pread = RealFile.pread

    def counted(file: RealFile, size: int, position: int) -> bytes:
        reads.append((size, position))
        return pread(file, size, position)

    monkeypatch.setattr(RealFile, "pread", counted)
    log.truncate_to(299)
    assert len(reads) < 10
    assert log.producers.get(9) is None
    assert state_of(log, 7).last_sequence == 297
    assert send(bench, log, 0, producer=8).duplicate
    for number in range(298, 301):
        bench.append(log, size=10_000, producer_id=7, producer_epoch=0, base_sequence=number)


@pytest.mark.spec("CLI-05")
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_after_a_cut_as_much_is_known_as_the_log_says(new_bench: Callable[[], Bench], data: st.DataObject) -> None:
    """Whatever producers wrote, in whatever epochs and segments; also after a start from a snapshot."""
    bench = new_bench()
    log = bench.create()
    written: dict[int, tuple[int, int]] = {}  # producer: (epoch, next sequence)
    for _ in range(data.draw(st.integers(1, 25), "steps")):
        producer = data.draw(st.integers(0, 3), "producer")
        epoch, sequence = written.get(producer, (0, 0))
        what = data.draw(st.sampled_from(["write", "write", "write", "write", "bump", "roll", "plain", "again"]))
        if what == "bump":
            epoch, sequence = epoch + 1, 0
        if what in ("write", "bump"):
            count = data.draw(st.integers(1, 2))
            send(bench, log, sequence, count, producer=producer, epoch=epoch)
            written[producer] = epoch, sequence + count
        elif what == "plain":
            bench.append(log)
        elif what == "roll":
            log.roll()
        else:
            log.close()
            log = bench.load(clean=True)
    offset = data.draw(st.integers(0, log.log_end_offset), "cut")
    log.truncate_to(offset)
    said = ProducerStates()
    replay(said, log.segments, offset)
    assert {number for number, _ in log.producers.items()} == {number for number, _ in said.items()}
    for number, state in said.items():
        known = state_of(log, number)
        assert (known.epoch, known.last_timestamp) == (state.epoch, state.last_timestamp)
        assert known.batches == state.batches[-len(known.batches) :]
        assert not known.has_complete_window or known.batches == state.batches
    bench.release()
