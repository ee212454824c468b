"""Transactions in a log: markers, aborted transactions, and the last stable offset (CLI-05, REP-12)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.storage.conftest import Bench, state_of

from ballast_broker.storage.aborted import AbortedIndex
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.log import Log
from ballast_broker.storage.producers import NEVER, NOT_ASKED, ProducerStates, Verification
from ballast_broker.storage.slices import AppendInfo
from ballast_broker.storage.transactions import EndedTransaction, check_entries, read_marker, render_marker
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import Record, encode_batch, iterate_batches

TRANSACTION, COORDINATOR, CLIENT = "transaction", "coordinator", "client"


def batch_of(
    bench: Bench, producer: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = True
) -> bytearray:
    return encode_batch(
        [Record(b"k", b"v" * 20, bench.clock.now_ms)] * count, producer_id=producer, producer_epoch=epoch,
        base_sequence=sequence, transactional=transactional,
    )  # fmt: skip


def send(
    bench: Bench,
    log: Log,
    producer: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    verified: Verification | None = NOT_ASKED,
    origin: str = TRANSACTION,
) -> AppendInfo:
    batch = batch_of(bench, producer, sequence, count, epoch=epoch)
    return log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms, origin=origin, verified=verified)


def end(
    bench: Bench, log: Log, producer: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> AppendInfo:
    marker = render_marker(producer, epoch, coordinator_epoch, committed=committed, now_ms=bench.clock.now_ms)
    return log.append_as_leader(marker, 0, now_ms=bench.clock.now_ms, origin=COORDINATOR)


def refused(append: Callable[..., object], *args: Any, **keywords: Any) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        append(*args, **keywords)
    return error.value.code


def told(log: Log, offset: int, upper_offset: int) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in log.aborted_transactions(offset, upper_offset)]


@pytest.mark.spec("CLI-05")
def test_a_transaction_is_stable_when_its_marker_is_committed(bench: Bench) -> None:
    log = bench.create()
    bench.append(log)
    send(bench, log, 7, 0, 2)
    bench.append(log)
    log.update_high_watermark(4)
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    end(bench, log, 7, committed=True)
    assert log.last_stable_offset == 1, "the marker is written, but may still be lost"
    log.update_high_watermark(4)
    assert log.last_stable_offset == 1
    log.update_high_watermark(5)
    assert log.last_stable_offset == 5
    assert told(log, 0, 5) == []


@pytest.mark.spec("CLI-05")
def test_the_first_of_several_transactions_counts(bench: Bench) -> None:
    log = bench.create()
    for producer in (1, 2, 3):
        send(bench, log, producer, 0)
    log.update_high_watermark(3)
    end(bench, log, 2, committed=False)
    log.update_high_watermark(4)
    assert log.last_stable_offset == 0
    end(bench, log, 1, committed=True)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 2
    assert told(log, 0, 2) == [(2, 1)]
    assert told(log, 0, 1) == []
    end(bench, log, 3, committed=False)
    log.update_high_watermark(6)
    assert log.last_stable_offset == 6
    assert told(log, 0, 6) == [(2, 1), (3, 2)]
    assert told(log, 4, 6) == [(3, 2)]


@pytest.mark.spec("CLI-05")
def test_what_is_stored_is_kafkas_format(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 0x0102, 0, 3)
    end(bench, log, 0x0102, committed=False, coordinator_epoch=9)
    index = (bench.folder / "00000000000000000000.txnindex").read_bytes()
    assert index.hex() == "0000" + f"{0x0102:016x}" + f"{0:016x}" + f"{3:016x}" + f"{4:016x}"
    *_, marker = iterate_batches(memoryview((bench.folder / "00000000000000000000.log").read_bytes()))
    assert marker.is_control
    assert marker.is_transactional
    assert (marker.header.base_sequence, marker.header.record_count) == (-1, 1)
    # One record: length, attributes, deltas, the key (version 0, ABORT), the value (version 0, epoch 9), no headers.
    assert bytes(marker.payload).hex() == "20" + "000000" + "08" + "00000000" + "0c" + "000000000009" + "00"
    assert read_marker(marker.bytes_view) == (False, 9)


@pytest.mark.spec("CLI-05")
def test_no_index_where_nothing_was_aborted_or_no_data_was_there(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=True)
    end(bench, log, 8, committed=False)
    assert not list(bench.folder.glob("*.txnindex"))
    assert state_of(log, 8).coordinator_epoch == 0


@pytest.mark.spec("CLI-05")
def test_a_transaction_begins_only_where_the_coordinator_was_asked(bench: Bench) -> None:
    log = bench.create()
    assert refused(send, bench, log, 7, 0, verified=None) is ErrorCode.INVALID_TXN_STATE
    held = log.producers.verify(7, 0, 0, adds=False, now_ms=0)
    send(bench, log, 7, 0, verified=held)
    assert log.producers.verify(7, 0, 1, adds=False, now_ms=0) is None, "it is going on"
    send(bench, log, 7, 1, verified=None)
    end(bench, log, 7, committed=True)
    assert refused(send, bench, log, 7, 2, verified=held) is ErrorCode.INVALID_TXN_STATE
    # Verification was requested before a marker and answered after it: the answer was about another transaction.
    old = log.producers.verify(7, 0, 2, adds=False, now_ms=0)
    end(bench, log, 7, committed=False)
    assert refused(send, bench, log, 7, 2, verified=old) is ErrorCode.INVALID_TXN_STATE
    new = log.producers.verify(7, 0, 2, adds=False, now_ms=0)
    assert refused(send, bench, log, 7, 2, verified=old) is ErrorCode.INVALID_TXN_STATE
    send(bench, log, 7, 2, verified=new)
    assert send(bench, log, 7, 2, verified=None).duplicate


@pytest.mark.spec("CLI-05")
def test_who_begins_while_the_marker_before_is_on_its_way_sends_again(bench: Bench) -> None:
    """With version 2 the coordinator adds the partition only after that marker: the producer has made no mistake."""
    log = bench.create()
    send(bench, log, 7, 0, verified=log.producers.verify(7, 0, 0, adds=True, now_ms=0))
    early = log.producers.verify(7, 1, 0, adds=True, now_ms=0)
    end(bench, log, 7, epoch=1, committed=True)
    assert refused(send, bench, log, 7, 0, epoch=1, verified=early) is ErrorCode.NOT_ENOUGH_REPLICAS
    again = log.producers.verify(7, 1, 0, adds=True, now_ms=0)
    send(bench, log, 7, 0, epoch=1, verified=again)


@pytest.mark.spec("CLI-05")
def test_the_first_batch_to_be_asked_for_is_the_first_to_be_written(bench: Bench) -> None:
    log = bench.create()
    first = log.producers.verify(7, 0, 0, adds=False, now_ms=0)
    second = log.producers.verify(7, 0, 1, adds=False, now_ms=0)
    assert first is second
    assert refused(send, bench, log, 7, 1, verified=second) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(bench, log, 7, 0, verified=first)
    assert refused(send, bench, log, 8, 0, verified=first) is ErrorCode.INVALID_TXN_STATE
    adding = log.producers.verify(9, 0, 4, adds=True, now_ms=0)
    assert refused(send, bench, log, 9, 4, verified=adding) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.spec("CLI-05")
def test_only_requests_with_a_transactional_id_carry_transactions(bench: Bench) -> None:
    log = bench.create()
    assert refused(send, bench, log, 7, 0, origin=CLIENT) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    send(bench, log, 7, 0)
    assert refused(send, bench, log, 7, 1, origin=CLIENT) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    plain = batch_of(bench, 7, 1, transactional=False)
    now_ms = bench.clock.now_ms
    assert refused(log.append_as_leader, plain, 0, now_ms=now_ms) is ErrorCode.INVALID_TXN_STATE
    marker = render_marker(7, 0, 0, committed=True, now_ms=now_ms)
    for origin in (CLIENT, TRANSACTION):
        assert refused(log.append_as_leader, marker, 0, now_ms=now_ms, origin=origin) is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 1


@pytest.mark.spec("CLI-05")
def test_markers_fence_producers_and_coordinators(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0, epoch=3)
    assert refused(end, bench, log, 7, committed=True, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(bench, log, 7, committed=True, epoch=3, coordinator_epoch=5)
    stale = {"committed": False, "epoch": 3, "coordinator_epoch": 4}
    assert refused(end, bench, log, 7, **stale) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    send(bench, log, 7, 1, epoch=3)  # the same epoch: sequences go on
    end(bench, log, 7, committed=False, epoch=4, coordinator_epoch=5)
    assert refused(send, bench, log, 7, 2, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(send, bench, log, 7, 2, epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(bench, log, 7, 0, epoch=4)  # a higher one: they begin anew
    assert state_of(log, 7).coordinator_epoch == 5


@pytest.mark.spec("CLI-05")
def test_coordinators_number_nothing(bench: Bench) -> None:
    """Offsets committed in a transaction: all batches of such a producer have sequence 0."""
    log = bench.create()
    for _ in range(3):
        assert not send(bench, log, 7, 0, origin=COORDINATOR, verified=None).duplicate
    assert log.log_end_offset == 3
    log.update_high_watermark(3)
    assert log.last_stable_offset == 0


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_restart(bench: Bench, clean: bool) -> None:
    log = bench.create()
    send(bench, log, 7, 0, 5)
    log.roll()
    send(bench, log, 8, 0, 5)
    end(bench, log, 8, committed=False, coordinator_epoch=2)
    if clean:
        log.close()
    bench.release()
    again = bench.load(clean=clean)
    again.update_high_watermark(again.log_end_offset)
    assert (again.log_end_offset, again.last_stable_offset) == (11, 0)
    assert state_of(again, 8).coordinator_epoch == 2
    assert told(again, 0, 11) == [(8, 5)]
    turning.at_one_go(again.producers.expire(bench.clock.now_ms + 10**9, 1000))
    assert [producer_id for producer_id, _ in again.producers.items()] == [7], "its transaction is open"
    end(bench, again, 7, committed=False)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == 12
    assert told(again, 0, 12) == [(8, 5), (7, 0)]


@pytest.mark.spec("CLI-05")
def test_an_index_that_lies_is_made_anew_at_the_start(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0, 5)
    end(bench, log, 7, committed=False)
    log.roll()
    send(bench, log, 7, 5)
    log.close()
    bench.release()
    path = bench.folder / "00000000000000000000.txnindex"
    right = path.read_bytes()
    for wrong in (right[:-3], right * 2, b"\0\7" + right[2:]):
        path.write_bytes(wrong)
        again = bench.load(clean=True)
        assert path.read_bytes() == right
        assert told(again, 0, 6) == [(7, 0)]
        bench.release()


@pytest.mark.spec("CLI-05", "LOG-40")
@pytest.mark.parametrize("then", ["goes on", "a new segment", "a new segment that is flushed"])
@pytest.mark.parametrize("seed", range(10))
def test_what_was_aborted_below_the_recovery_point_survives_a_loss_of_power(bench: Bench, seed: int, then: str) -> None:
    """Nothing below it is scanned again: read_committed consumers would see what the index has lost there."""
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create()
    bench.append(log)
    log.flush()
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=False)
    log.flush()
    if then != "goes on":
        log.roll()
        bench.append(log)
    if then == "a new segment that is flushed":
        log.flush()
    point = log.recovery_point
    store.lose_power()
    again = bench.load(clean=False, recovery_point=point)
    assert told(again, 0, again.log_end_offset) == [(7, 1)]


@pytest.mark.spec("CLI-05", "LOG-40")
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_flush_at_each_record_has_the_index_of_what_was_aborted_with_it(
    bench: Bench, seed: int, follows: bool
) -> None:
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create(flush_messages=1)
    send(bench, log, 7, 0)
    if follows:
        marker = render_marker(7, 0, 0, committed=False, now_ms=bench.clock.now_ms)
        struct.pack_into(">q", marker, 0, 1)  # its offset, which no checksum covers
        log.append_as_follower(memoryview(marker))
    else:
        end(bench, log, 7, committed=False)
    assert log.recovery_point == log.log_end_offset == 2
    log.roll()
    bench.append(log)
    point = log.recovery_point
    store.lose_power()
    again = bench.load(clean=False, recovery_point=point)
    assert told(again, 0, again.log_end_offset) == [(7, 0)]


@pytest.mark.spec("CLI-05")
def test_a_flush_beside_a_marker_does_not_pass_it_before_its_index(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    send(bench, log, 7, 0)
    seen = []

    def append(index: AbortedIndex, entry: Any) -> Any:
        log.flush()  # as if from another thread, at just this moment
        seen.append(log.recovery_point)
        return written(index, entry)

    written = AbortedIndex.append
    monkeypatch.setattr(AbortedIndex, "append", append)
    end(bench, log, 7, committed=False)
    log.flush()
    assert (seen, log.recovery_point) == ([1], 2)


@pytest.mark.spec("CLI-05")
def test_what_is_replayed_from_an_older_snapshot_is_stable_as_far_as_it_is_committed(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=True)
    log.close()
    bench.release()
    [snapshot] = bench.folder.glob("*.snapshot")
    snapshot.write_bytes(b"spoilt")
    again = bench.load(clean=True)
    again.update_high_watermark(2)
    assert again.last_stable_offset == 2


@pytest.mark.spec("CLI-05")
def test_a_marker_that_was_lost_has_aborted_nothing(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=False)
    bench.release()
    path = bench.folder / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])
    again = bench.load(clean=False)
    again.update_high_watermark(1)
    assert (again.log_end_offset, again.last_stable_offset, told(again, 0, 1)) == (1, 0, [])
    assert not list(bench.folder.glob("*.txnindex"))


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_that_is_cut_off_after_a_restart_has_ended_nothing(bench: Bench, committed: bool) -> None:
    log = bench.create()
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=committed)
    log.close()
    bench.release()
    again = bench.load(clean=True)
    assert state_of(again, 7).current_txn_first_offset == -1
    again.truncate_to(1)
    again.update_high_watermark(1)
    assert (again.last_stable_offset, told(again, 0, 1)) == (0, [])
    assert state_of(again, 7).current_txn_first_offset == 0


def test_entries_that_no_transactions_left() -> None:
    for data in (b"x", b"\0" * 33, b"\0\1" + b"\0" * 32):
        with pytest.raises(CorruptFile):
            check_entries(data, 0)


@pytest.mark.spec("CLI-05")
def test_an_aborted_transaction_goes_with_its_segment(bench: Bench) -> None:
    log = bench.create(retention_ms=-1, retention_bytes=-1)
    send(bench, log, 7, 0)
    end(bench, log, 7, committed=False)
    log.roll()
    bench.append(log)
    log.advance_log_start_offset(2)
    log.delete_old_segments(bench.clock.now_ms)
    assert [name for name in bench.removed if ".txnindex" in name]
    assert not list(bench.folder.glob("*.txnindex"))
    assert told(log, 2, 3) == []


@pytest.mark.spec("CLI-05")
def test_what_is_deleted_below_an_open_transaction_is_not_unstable(bench: Bench) -> None:
    log = bench.create()
    send(bench, log, 7, 0, 4)
    log.update_high_watermark(4)
    log.advance_log_start_offset(2)
    assert log.last_stable_offset == 2


# Against a naive model


@dataclass
class Batch:
    first: int
    last: int
    producer: int
    epoch: int
    sequence: int  # -1: a marker
    committed: bool = False
    transactional: bool = True


class Model:
    """A naive model: the log as a list of batches, from which everything is computed each time."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = self.high_watermark = 0

    def epoch_and_sequence(self, producer: int) -> tuple[int, int]:
        epoch, sequence = 0, 0
        for batch in self.batches:
            if batch.producer == producer:
                if batch.epoch != epoch:
                    epoch, sequence = batch.epoch, 0
                if batch.sequence >= 0:
                    sequence = batch.sequence + batch.last - batch.first + 1
        return epoch, sequence

    def transactions(self) -> tuple[list[tuple[int, int, int, bool]], list[int]]:
        """(producer, first, marker or None, committed) in the order of the markers, open transactions last."""
        open_ones: dict[int, int] = {}
        ended = []
        for batch in self.batches:
            if batch.sequence < 0:
                if batch.producer in open_ones:
                    ended.append((batch.producer, open_ones.pop(batch.producer), batch.last, batch.committed))
            elif batch.transactional:
                open_ones.setdefault(batch.producer, batch.first)
        return ended, sorted(open_ones.values())

    def aborted(self, offset: int, upper: int) -> list[tuple[int, int, int]]:
        ended, _ = self.transactions()
        return [(p, first, last) for p, first, last, committed in ended if not committed
                and last >= offset and first < upper]  # fmt: skip

    def stable(self) -> int:
        ended, open_ones = self.transactions()
        undecided = [first for _, first, last, _ in ended if last >= self.high_watermark]
        return min([self.high_watermark, *undecided, *open_ones])


KINDS = ["data"] * 9 + ["end"] * 7 + ["commit"] * 2 + ["roll"] * 2 + ["plain", "truncate", "truncate", "restart"]
STEPS = 120


class History:
    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.dice, self.model = bench, random.Random(seed), Model()
        self.log = bench.create()

    def step(self) -> None:
        getattr(self, self.dice.choice(KINDS))()
        self.model.high_watermark = self.log.high_watermark
        self.compare()

    def data(self) -> None:
        producer, count = self.dice.randrange(4), self.dice.randint(1, 3)
        epoch, sequence = self.model.epoch_and_sequence(producer)
        info = send(self.bench, self.log, producer, sequence, count, epoch=epoch)
        self.model.batches.append(Batch(info.first_offset, info.last_offset, producer, epoch, sequence))

    def plain(self) -> None:
        batch = encode_batch([Record(None, b"x", self.bench.clock.now_ms)] * 2)
        info = self.log.append_as_leader(batch, 0, now_ms=self.bench.clock.now_ms)
        self.model.batches.append(Batch(info.first_offset, info.last_offset, -1, -1, 0, transactional=False))

    def end(self) -> None:
        producer, committed = self.dice.randrange(4), self.dice.random() < 0.4
        epoch = self.model.epoch_and_sequence(producer)[0] + (self.dice.random() < 0.2)
        info = end(self.bench, self.log, producer, committed=committed, epoch=epoch)
        self.model.batches.append(Batch(info.first_offset, info.last_offset, producer, epoch, -1, committed))

    def commit(self) -> None:
        self.log.update_high_watermark(max(self.log.high_watermark, self.log.log_end_offset - self.dice.randrange(12)))

    def roll(self) -> None:
        self.log.roll()

    def truncate(self) -> None:
        offset = max(self.log.high_watermark, self.log.log_end_offset - self.dice.randrange(20))
        self.log.truncate_to(offset)
        self.model.batches = [batch for batch in self.model.batches if batch.last < offset]

    def restart(self) -> None:
        """Restart after a clean shutdown, or with a scan from the flushed offset, with indexes as they may be then."""
        clean = self.dice.random() < 0.4
        recovery_point = max(0, self.log.log_end_offset - self.dice.randrange(30))
        if clean:
            self.log.close()
        self.bench.release()
        if not clean:
            index = max(self.bench.folder.glob("*.log")).with_suffix(".txnindex")
            there = index.read_bytes() if index.exists() else b""
            left = self.dice.choice([b"", there, there[34:], there[:34], self.dice.randbytes(34)])
            index.write_bytes(left)
            if not left:
                index.unlink()
        self.log = self.bench.load(clean=clean, recovery_point=recovery_point)
        # A gap that a truncation left, in what was not flushed, looks like one that a power loss left.
        self.model.batches = [batch for batch in self.model.batches if batch.last < self.log.log_end_offset]
        self.log.update_high_watermark(self.log.log_end_offset)

    def compare(self) -> None:
        log, model = self.log, self.model
        assert log.last_stable_offset == model.stable()
        ended, open_ones = model.transactions()
        marks = {0, log.log_end_offset, *[batch.first for batch in model.batches][-8:], *open_ones}
        marks |= {offset for entry in ended[-4:] for offset in entry[1:3]}
        for offset in marks:
            for upper in marks:
                if offset < upper:
                    found = [each[:3] for each in log.aborted_transactions(offset, upper)]
                    assert found == model.aborted(offset, upper)


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("seed", range(40))
def test_random_histories_are_told_as_a_naive_model_tells_them(bench: Bench, seed: int) -> None:
    history = History(bench, seed)
    for _ in range(STEPS):
        history.step()
    log = history.log
    for producer in range(4):
        state = log.producers.get(producer)
        if state is not None:
            assert (state.epoch, state.last_sequence + 1) == history.model.epoch_and_sequence(producer)


def test_a_copy_knows_what_is_open() -> None:
    states = ProducerStates()
    states.record(7, 0, 0, 0, 10, 1, transactional=True)
    states.record(8, 0, 0, 0, 11, 1, transactional=True)
    states.record_end_of_transaction(7, 0, 12, 0, 1)
    copy = states.copy()
    assert (states.first_unstable, copy.first_unstable) == (10, 10)
    copy.committed(13)
    assert (states.first_unstable, copy.first_unstable) == (10, 11)
    states.clear(0)
    assert states.first_unstable == NEVER
    assert EndedTransaction(1, 2, 3, 4).aborted
