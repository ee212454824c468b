"""What each request does to a transactional id: every state with every request, and random lives against a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_broker.coordinator.transactions import (
    BUSY,
    FENCED,
    LAST_EPOCH,
    NEEDS_ID,
    NO_EPOCH,
    NOBODY,
    NOT_NOW,
    OTHER_ID,
    Answered,
    NeedsId,
    ProducerIdentity,
    Refused,
    Transaction,
    TransactionMetadata,
    TransactionState,
    Write,
    abort_if_too_long,
    add_partitions,
    completed,
    created,
    end,
    expire_if_unused,
    initialize,
    told,
    verify,
)
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-05")

S = TransactionState
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdentity(7, 3)
NOW = 1_000_000
TIMEOUT = 60_000
NEW_ID = 99
ENDS = {True: (S.PREPARE_COMMIT, S.COMPLETE_COMMIT), False: (S.PREPARE_ABORT, S.COMPLETE_ABORT)}


def at(state: TransactionState, epoch: int = 3, **other: Any) -> Transaction:
    open_ones = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    standing = TransactionMetadata(
        producer_id=7,
        epoch=epoch,
        timeout_ms=TIMEOUT,
        state=state,
        partitions=frozenset({A}) if open_ones else frozenset(),
        started_ms=-1 if state is S.EMPTY else NOW - 500,
        updated_ms=NOW - 500,
    )
    return Transaction("x", replace(standing, **other))


def busy(transaction: Transaction) -> Transaction:
    transaction.pending = transaction.now
    return transaction


def written(decision: object) -> TransactionMetadata:
    assert isinstance(decision, Write), decision
    return decision.standing


# -- InitProducerId -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_new_instance_gets_the_next_epoch(state: TransactionState) -> None:
    found = written(initialize(at(state), 5_000, None, None, 2, NOW))
    assert (found.producer, found.state, found.timeout_ms) == ((7, 4), S.EMPTY, 5_000)
    assert (found.last_epoch, found.started_ms, found.updated_ms) == (NO_EPOCH, -1, NOW)


def test_the_first_instance_has_epoch_zero() -> None:
    found = written(initialize(created("x", 7, 5_000, NOW), 5_000, None, None, 2, NOW))
    assert found.producer == (7, 0)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_a_new_instance_waits_for_the_end_that_is_decided(state: TransactionState) -> None:
    assert initialize(at(state), 1, None, None, 2, NOW) == BUSY
    assert initialize(busy(at(S.EMPTY)), 1, None, None, 2, NOW) == BUSY


@pytest.mark.parametrize(("version", "last_epoch"), [(0, NO_EPOCH), (1, NO_EPOCH), (2, 3)])
def test_a_new_instance_aborts_what_the_one_before_left_with_an_epoch_that_is_nobodys(
    version: int, last_epoch: int
) -> None:
    found = written(initialize(at(S.ONGOING), 1, None, None, version, NOW))
    assert (found.state, found.producer, found.last_epoch) == (S.PREPARE_ABORT, (7, 4), last_epoch)
    assert found.partitions == {A}
    assert found.timeout_ms == TIMEOUT
    ended = completed(found, NOW + 1)
    assert (ended.state, ended.producer, ended.partitions) == (S.COMPLETE_ABORT, (7, 4), frozenset())
    assert written(initialize(Transaction("x", ended), 1, None, None, version, NOW)).producer == (7, 5)


def test_one_that_goes_on_is_known_by_its_epoch() -> None:
    transaction = at(S.COMPLETE_ABORT)
    first = written(initialize(transaction, 1, ME, None, 2, NOW))
    assert (first.producer, first.last_epoch) == ((7, 4), 3)
    transaction.now = first
    again = written(initialize(transaction, 1, ME, None, 2, NOW))  # it never heard of the first answer
    assert (again.producer, again.last_epoch) == ((7, 4), 3)
    assert initialize(transaction, 1, ProducerIdentity(7, 2), None, 2, NOW) == FENCED
    assert initialize(transaction, 1, ProducerIdentity(8, 4), None, 2, NOW) == FENCED
    transaction.now = written(initialize(transaction, 1, None, None, 2, NOW))  # another instance
    assert initialize(transaction, 1, ME, None, 2, NOW) == FENCED


def test_an_exhausted_epoch_takes_a_new_id() -> None:
    exhausted = at(S.COMPLETE_COMMIT, LAST_EPOCH)
    assert initialize(exhausted, 1, None, None, 2, NOW) == NEEDS_ID
    found = written(initialize(exhausted, 1, None, NEW_ID, 2, NOW))
    assert (found.producer, found.previous_id, found.last_epoch) == ((NEW_ID, 0), 7, NO_EPOCH)
    going_on = ProducerIdentity(7, LAST_EPOCH)
    assert initialize(exhausted, 1, going_on, None, 2, NOW) == NEEDS_ID
    exhausted.now = written(initialize(exhausted, 1, going_on, NEW_ID, 2, NOW))
    assert exhausted.now.last_epoch == LAST_EPOCH
    for _ in range(3):  # no answer arrives
        exhausted.now = written(initialize(exhausted, 1, going_on, None, 2, NOW))
        assert exhausted.now.producer == (NEW_ID, 0)
    exhausted.now = written(initialize(exhausted, 1, None, None, 2, NOW))  # another instance
    assert initialize(exhausted, 1, going_on, None, 2, NOW) == FENCED


def test_the_epoch_above_the_last_is_left_to_fence_with() -> None:
    found = written(initialize(at(S.ONGOING, LAST_EPOCH), 1, None, None, 2, NOW))
    assert found.epoch == LAST_EPOCH + 1 == 2**15 - 1
    after = Transaction("x", completed(found, NOW))
    assert written(initialize(after, 1, None, NEW_ID, 2, NOW)).producer == (NEW_ID, 0)
    for new_id in (NEW_ID, None, None):  # whose transaction it was goes on, but hears of it only by the third answer
        after.now = written(initialize(after, 1, ProducerIdentity(7, LAST_EPOCH), new_id, 2, NOW))
        assert after.now.producer == (NEW_ID, 0)


# -- partitions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    found = written(add_partitions(at(state), ME, [A, B], 2, NOW))
    assert (found.state, found.partitions, found.started_ms, found.version) == (S.ONGOING, frozenset({A, B}), NOW, 2)


def test_more_partitions_do_not_begin_it_anew() -> None:
    found = written(add_partitions(at(S.ONGOING), ME, [B], 0, NOW))
    assert (found.partitions, found.started_ms, found.updated_ms) == (frozenset({A, B}), NOW - 500, NOW)
    assert add_partitions(at(S.ONGOING), ME, [A], 0, NOW) == Answered(ME)


@pytest.mark.parametrize("state", list(S))
def test_strangers_add_nothing(state: TransactionState) -> None:
    assert add_partitions(at(state), ProducerIdentity(8, 3), [A], 0, NOW) == OTHER_ID
    for epoch in (2, 4):
        assert add_partitions(at(state), ProducerIdentity(7, epoch), [A], 0, NOW) == FENCED
    assert add_partitions(busy(at(state)), ProducerIdentity(8, 3), [A], 0, NOW) == BUSY


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("epoch", [NO_EPOCH, LAST_EPOCH + 1])
def test_an_epoch_that_no_producer_has_is_nobodys(epoch: int, version: int) -> None:
    """With an id that was just made up, and with one that was fenced with the highest epoch."""
    transaction, nobody = at(S.COMPLETE_ABORT, epoch), ProducerIdentity(7, epoch)
    assert add_partitions(transaction, nobody, [A], version, NOW) == FENCED
    assert isinstance(end(transaction, nobody, True, NEW_ID, version, NOW), Refused)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_nothing_is_added_to_what_is_ending(state: TransactionState) -> None:
    assert add_partitions(at(state), ME, [A], 0, NOW) == BUSY
    assert verify(at(state), ME, [A]) == BUSY


def test_what_is_verified_must_be_in_the_transaction() -> None:
    assert verify(at(S.ONGOING), ME, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(at(S.EMPTY), ME, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(at(S.ONGOING), ProducerIdentity(8, 3), [A]) == OTHER_ID
    assert verify(at(S.ONGOING), ProducerIdentity(7, 2), [A]) == FENCED


# -- the end --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_without_a_bump(commit: bool) -> None:
    prepared, complete = ENDS[commit]
    other_prepared, other_complete = ENDS[not commit]
    found = written(end(at(S.ONGOING), ME, commit, None, 0, NOW))
    assert (found.state, found.producer, told(found), found.partitions) == (prepared, ME, ME, frozenset({A}))
    assert completed(found, NOW).state is complete
    assert completed(found, NOW).producer == ME
    assert end(at(complete), ME, commit, None, 0, NOW) == Answered(ME)
    assert end(at(prepared), ME, commit, None, 0, NOW) == BUSY
    for state in (S.EMPTY, other_prepared, other_complete):
        assert end(at(state), ME, commit, None, 0, NOW) == NOT_NOW
    assert end(busy(at(S.ONGOING)), ME, commit, None, 0, NOW) == BUSY


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_with_a_bump(commit: bool) -> None:
    """The same epoch again ends the next transaction; the epoch before the bump is a retry."""
    prepared, complete = ENDS[commit]
    found = written(end(at(S.ONGOING), ME, commit, None, 2, NOW))
    assert (found.state, found.producer, told(found)) == (prepared, (7, 4), (7, 4))
    transaction = Transaction("x", found)
    assert end(transaction, ME, commit, None, 2, NOW) == BUSY
    assert end(transaction, ME, not commit, None, 2, NOW) == NOT_NOW
    assert end(transaction, ProducerIdentity(7, 4), False, None, 2, NOW) == BUSY, "the next is over before it began"
    assert end(transaction, ProducerIdentity(7, 5), commit, None, 2, NOW) == FENCED
    transaction.now = completed(found, NOW)
    assert written(end(transaction, ProducerIdentity(7, 4), False, None, 2, NOW)).producer == (7, 5)
    assert (transaction.now.state, transaction.now.producer) == (complete, (7, 4))
    assert end(transaction, ME, commit, None, 2, NOW) == Answered(ProducerIdentity(7, 4))
    assert end(transaction, ME, not commit, None, 2, NOW) == NOT_NOW
    assert end(transaction, ProducerIdentity(7, 2), commit, None, 2, NOW) == FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_one_that_was_fenced_is_not_told_who_the_new_one_is(commit: bool) -> None:
    """The new one's client is an older one: its end bumped nothing."""
    prepared, complete = ENDS[commit]
    for state in (prepared, complete):
        assert end(at(state), ProducerIdentity(7, 2), commit, None, 2, NOW) == FENCED


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_abort_of_nothing_bumps_the_epoch_and_a_commit_of_nothing_is_refused(state: TransactionState) -> None:
    found = written(end(at(state), ME, False, None, 2, NOW))
    assert (found.state, found.producer, found.started_ms) == (S.PREPARE_ABORT, (7, 4), NOW)
    assert end(at(state), ME, True, None, 2, NOW) == NOT_NOW


def test_an_end_with_an_exhausted_epoch_gives_a_new_id() -> None:
    me = ProducerIdentity(7, LAST_EPOCH)
    transaction = at(S.ONGOING, LAST_EPOCH)
    assert end(transaction, me, True, None, 2, NOW) == NEEDS_ID
    found = written(end(transaction, me, True, NEW_ID, 2, NOW))
    assert (found.producer, told(found)) == ((7, LAST_EPOCH + 1), (NEW_ID, 0))  # the markers are the old one's
    transaction.now = completed(found, NOW)
    assert (transaction.now.producer, transaction.now.previous_id, transaction.now.next_id) == ((NEW_ID, 0), 7, -1)
    assert end(transaction, me, True, None, 2, NOW) == Answered(ProducerIdentity(NEW_ID, 0))


@pytest.mark.parametrize("commit", [True, False])
def test_who_was_told_a_new_id_waits_for_the_markers_of_the_old_one(commit: bool) -> None:
    """Otherwise it would be told that its id belongs to another, which is fatal for a producer."""
    transaction = at(S.ONGOING, LAST_EPOCH)
    transaction.now = written(end(transaction, ProducerIdentity(7, LAST_EPOCH), commit, NEW_ID, 2, NOW))
    after = told(transaction.now)
    questions: list[Callable[[ProducerIdentity], Any]] = [
        lambda who: add_partitions(transaction, who, {A}, 2, NOW),
        lambda who: verify(transaction, who, {A}),
        lambda who: end(transaction, who, False, None, 2, NOW),
        lambda who: initialize(transaction, TIMEOUT, who, None, 2, NOW),
    ]
    assert [ask(after) for ask in questions] == [BUSY] * 4
    assert BUSY not in [ask(ProducerIdentity(NEW_ID, 1)) for ask in questions]
    transaction.now = completed(transaction.now, NOW)
    assert isinstance(questions[0](after), Write)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_strangers_end_nothing(state: TransactionState, version: int) -> None:
    assert end(at(state), ProducerIdentity(8, 3), True, None, version, NOW) == OTHER_ID
    assert end(at(state), ProducerIdentity(7, 4), True, None, version, NOW) == FENCED
    assert end(at(state), ProducerIdentity(7, 1), True, None, version, NOW) == FENCED


# -- time -----------------------------------------------------------------------------------------------------------
def test_a_transaction_that_takes_too_long_is_aborted_with_a_bump() -> None:
    late = NOW - 500 + TIMEOUT
    assert abort_if_too_long(at(S.ONGOING), 2, late) is None
    found = written(abort_if_too_long(at(S.ONGOING), 2, late + 1))
    assert (found.state, found.producer) == (S.PREPARE_ABORT, (7, 4))
    assert abort_if_too_long(busy(at(S.ONGOING)), 2, late + 1) is None
    for state in set(S) - {S.ONGOING}:
        assert abort_if_too_long(at(state), 2, late + 1) is None


def test_a_clock_that_ran_ahead_lets_no_transaction_hang() -> None:
    """The clock of a previous coordinator, or this broker's own before it was corrected."""
    transaction = Transaction("x", TransactionMetadata(1000, 0, 2000, S.ONGOING, started_ms=3_600_000))
    assert abort_if_too_long(transaction, 2, 10) is None
    assert abort_if_too_long(transaction, 2, 2010) is None
    assert isinstance(abort_if_too_long(transaction, 2, 2011), Write)


def test_an_id_that_nobody_uses_expires() -> None:
    for state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        assert expire_if_unused(at(state), 1_000, NOW + 499) is None
        assert written(expire_if_unused(at(state), 1_000, NOW + 500)).state is S.DEAD
        assert expire_if_unused(busy(at(state)), 1_000, NOW + 500) is None
    for state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT):
        assert expire_if_unused(at(state), 1_000, NOW + 500) is None


# -- random lives ---------------------------------------------------------------------------------------------------
class Life:
    """A transactional id with a model beside it: who may write, what is open, and how it ended."""

    def __init__(self, epoch: int) -> None:
        self.transaction = at(S.COMPLETE_ABORT, epoch)
        self.owner = ProducerIdentity(7, epoch)
        self.before: ProducerIdentity | None = None  # who asked for the end, and may ask again
        self.earlier: ProducerIdentity | None = None  # who the owner was when it last got another epoch
        self.everybody = [self.owner]
        self.open: set[TopicPartition] = set()
        self.outcome: bool | None = False
        self.ids = 1_000

    def decide(
        self, question: Callable[[int | None], Refused | Answered | Write | NeedsId]
    ) -> Refused | Answered | Write:
        decision = question(None)
        if isinstance(decision, NeedsId):
            self.ids += 1
            decision = question(self.ids)
        assert not isinstance(decision, NeedsId)
        return decision

    def owned_by(self, producer: ProducerIdentity) -> None:
        assert producer not in self.everybody, "an identity that somebody had before"
        assert producer.epoch <= LAST_EPOCH
        self.owner = producer
        self.everybody.append(producer)

    def prepared(self, commit: bool) -> None:
        self.outcome, self.open = commit, set()

    def initialize(self, known: ProducerIdentity | None, lost: bool) -> None:
        decision = self.decide(lambda new: initialize(self.transaction, 1, known, new, 2, NOW))
        if lost or not isinstance(decision, Write):
            return
        if decision.standing.state is S.PREPARE_ABORT:
            assert self.open
            self.prepared(False)
            self.before = self.earlier = self.owner
            self.owner = NOBODY
            if decision.standing.epoch <= LAST_EPOCH:
                self.owned_by(decision.standing.producer)
        elif decision.standing.producer != self.owner:
            assert known in (None, self.owner) or self.owner == NOBODY
            self.owned_by(decision.standing.producer)
            self.before = self.earlier = known
        else:
            assert known == self.earlier
        self.transaction.now = decision.standing

    def add(self, producer: ProducerIdentity, partition: TopicPartition, lost: bool) -> None:
        decision = self.decide(lambda _: add_partitions(self.transaction, producer, [partition], 2, NOW))
        assert isinstance(decision, Refused) or producer == self.owner
        if isinstance(decision, Answered):
            assert partition in self.open
        elif isinstance(decision, Write) and not lost:
            self.open.add(partition)
            self.transaction.now = decision.standing
            self.outcome = self.before = None  # to ask for an end again is over
            assert decision.standing.partitions == self.open

    def end(self, producer: ProducerIdentity, commit: bool, version: int, lost: bool) -> None:
        decision = self.decide(lambda new: end(self.transaction, producer, commit, new, version, NOW))
        if isinstance(decision, Answered):
            assert self.outcome is commit
            assert decision.producer == self.owner
            assert producer == (self.owner if version == 0 else self.before)
        elif isinstance(decision, Write) and not lost:
            assert producer == self.owner
            assert self.open or (version == 2 and not commit)
            assert decision.standing.partitions == self.open
            self.prepared(commit)
            self.transaction.now = decision.standing
            if version == 2:
                self.owned_by(told(decision.standing))
                self.before = self.earlier = producer

    def finish(self) -> None:
        if self.transaction.now.state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
            assert self.transaction.now.is_committing is self.outcome
            self.transaction.now = completed(self.transaction.now, NOW)
            assert self.owner in (NOBODY, self.transaction.now.producer)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([0, LAST_EPOCH - 3]))
def test_only_its_owner_writes_and_every_end_is_the_one_that_was_asked_for(data: st.DataObject, epoch: int) -> None:
    life = Life(epoch)
    for _ in range(data.draw(st.integers(1, 40))):
        somebody = data.draw(st.sampled_from([life.owner, *life.everybody[-4:]]))
        lost = data.draw(st.integers(0, 9)) == 0  # the log did not take it
        match data.draw(st.sampled_from(["new", "known", "add", "add", "end", "end", "finish", "finish"])):
            case "new":
                life.initialize(None, lost)
            case "known":
                life.initialize(somebody if somebody != NOBODY else None, lost)
            case "add":
                life.add(somebody, data.draw(st.sampled_from([A, B])), lost)
            case "end":
                life.end(somebody, data.draw(st.booleans()), data.draw(st.sampled_from([0, 2])), lost)
            case "finish":
                life.finish()
