"""The state machine of one transactional id: its producer, its state, and what each request does. PURE.

A request results in a record to write (`Write`) or in an immediate answer. Nothing changes here before the record is
committed: until then the service keeps it as `pending`, and concurrent requests have to retry. If a new producer id is
needed and none was given, the result is `NeedsId`: allocate one and try again.

Version 2 (KIP-890) bumps the producer's epoch at every end of a transaction, so that delayed messages of one
transaction cannot get into the next. A request tells whether its client knows version 2; the coordinator's own aborts
(of transactions that timed out, or whose producer was restarted) follow the cluster's version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
LAST_EPOCH = 2**15 - 2  # the last given to producers: one more is left to fence them
BUMPS_EPOCH = 2  # the first transaction.version in which every end bumps the epoch


class TransactionState(Enum):
    """In the order of Kafka's numeric codes, which are stored."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


S = TransactionState
STORED_STATES = tuple(S)[:6]  # Dead is a tombstone, PrepareEpochFence is never stored
PREPARED = frozenset({S.PREPARE_COMMIT, S.PREPARE_ABORT})
COMPLETE = frozenset({S.COMPLETE_COMMIT, S.COMPLETE_ABORT})
AT_REST = COMPLETE | {S.EMPTY}


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


NOBODY = ProducerIdentity(NO_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """What the log records of a transactional id; `last_epoch` is not stored, as in Kafka."""

    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = S.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    version: int = 0  # transaction.version of the client that wrote last
    previous_id: int = NO_ID
    next_id: int = NO_ID  # the producer's new id once all markers are written
    last_epoch: int = NO_EPOCH

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH

    @property
    def is_nobodys(self) -> bool:
        """No producer has this epoch: either it fenced one that had the last epoch, or the id has no epoch yet."""
        return self.epoch > LAST_EPOCH or self.epoch == NO_EPOCH

    @property
    def is_committing(self) -> bool:
        return self.state is S.PREPARE_COMMIT


@dataclass(slots=True)
class Transaction:
    transactional_id: str
    now: TransactionMetadata
    pending: TransactionMetadata | None = None

    def settle(self, committed: bool) -> None:
        """The pending record's outcome is known."""
        assert self.pending is not None
        if committed:
            self.now = self.pending
        self.pending = None

    def mark(self, partitions: Collection[TopicPartition]) -> None:
        """The markers of these partitions are written."""
        self.now = replace(self.now, partitions=self.now.partitions.difference(partitions))


class Refused(NamedTuple):
    error: ErrorCode


class Answered(NamedTuple):
    """Already the case: nothing to write."""

    producer: ProducerIdentity


class NeedsId(NamedTuple):
    """Try again with a fresh producer id."""


class Write(NamedTuple):
    standing: TransactionMetadata


NEEDS_ID = NeedsId()
BUSY = Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
FENCED = Refused(ErrorCode.PRODUCER_FENCED)
OTHER_ID = Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
NOT_NOW = Refused(ErrorCode.INVALID_TXN_STATE)


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A new transactional id; it has no epoch until its first InitProducerId is written."""
    return Transaction(transactional_id, TransactionMetadata(producer_id, timeout_ms=timeout_ms, updated_ms=now_ms))


# -- InitProducerId -------------------------------------------------------------------------------------------------
def initialize(
    transaction: Transaction,
    timeout_ms: int,
    known: ProducerIdentity | None,
    new_id: int | None,
    cluster_version: int,
    now_ms: int,
) -> Refused | NeedsId | Write:
    """`known` is the identity a continuing producer claims. A `Write` of an abort: do that first, then try again."""
    now = transaction.now
    if transaction.pending is not None:
        return BUSY
    if known is not None and not _may_be(now, known):
        return FENCED
    if now.state in PREPARED:
        return BUSY
    if now.state is S.ONGOING:
        return _fence(now, cluster_version, now_ms)
    asks_again = known is not None and known.epoch == now.last_epoch != NO_EPOCH
    if now.is_exhausted and (known is None or known.epoch == now.epoch or (asks_again and now.is_nobodys)):
        if new_id is None:
            return NEEDS_ID
        last_epoch = NO_EPOCH if known is None else known.epoch
        return Write(_begun(now, new_id, 0, last_epoch, timeout_ms, now_ms))
    return _next_epoch(now, known, timeout_ms, now_ms)


def _may_be(now: TransactionMetadata, known: ProducerIdentity) -> bool:
    """Whether the claimed identity may be the current producer. Last case: a retry that never got its new id."""
    return (
        now.epoch == NO_EPOCH
        or known.producer_id == now.producer_id
        or _is_to_be(now, known)
        or (known.producer_id == now.previous_id and known.epoch >= LAST_EPOCH)
    )


def _is_to_be(now: TransactionMetadata, producer: ProducerIdentity) -> bool:
    """The producer was told its new id already, but markers of its transaction are still being written."""
    return now.state in PREPARED and now.next_id != NO_ID and producer == (now.next_id, 0)


def _next_epoch(
    now: TransactionMetadata, known: ProducerIdentity | None, timeout_ms: int, now_ms: int
) -> Refused | Write:
    epoch, last_epoch = now.epoch + 1, now.epoch
    if known is None:
        last_epoch = NO_EPOCH
    elif now.epoch not in (NO_EPOCH, known.epoch):
        if known.epoch != now.last_epoch:
            return FENCED
        # A retry; keep previous_id, for it may retry once more. No other producer came in between.
        again = _begun(now, now.producer_id, now.epoch, now.last_epoch, timeout_ms, now_ms)
        return Write(replace(again, previous_id=now.previous_id))
    return Write(_begun(now, now.producer_id, epoch, last_epoch, timeout_ms, now_ms))


def _begun(
    now: TransactionMetadata, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    return replace(
        now,
        producer_id=producer_id,
        previous_id=now.producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=S.EMPTY,
        partitions=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now_ms,
    )


def _fence(now: TransactionMetadata, cluster_version: int, now_ms: int) -> Write:
    """Abort with an epoch no producer knows; in version 2 the previous producer may still ask for it and continue."""
    bumps = cluster_version >= BUMPS_EPOCH
    return Write(
        replace(
            now,
            previous_id=now.producer_id,
            next_id=NO_ID,
            epoch=now.epoch + 1,
            last_epoch=now.epoch if bumps else NO_EPOCH,
            state=S.PREPARE_ABORT,
            updated_ms=now_ms,
            version=cluster_version if bumps else 0,
        )
    )


# -- partitions -----------------------------------------------------------------------------------------------------
def add_partitions(
    transaction: Transaction,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Refused | Answered | Write:
    now = transaction.now
    if transaction.pending is not None or _is_to_be(now, producer):
        return BUSY
    if producer.producer_id != now.producer_id:
        return OTHER_ID
    if producer.epoch != now.epoch or now.is_nobodys:
        return FENCED
    if now.state in PREPARED:
        return BUSY
    if now.state is S.ONGOING and now.partitions.issuperset(partitions):
        return Answered(now.producer)
    return Write(
        replace(
            now,
            previous_id=now.producer_id,
            state=S.ONGOING,
            partitions=now.partitions.union(partitions),
            started_ms=now_ms if now.state in AT_REST else now.started_ms,
            updated_ms=now_ms,
            version=client_version,
        )
    )


def verify(
    transaction: Transaction, producer: ProducerIdentity, partitions: Collection[TopicPartition]
) -> Refused | dict[TopicPartition, ErrorCode]:
    """Whether these partitions are in the transaction. Pending additions do not count: the leaders will ask again."""
    now = transaction.now
    if _is_to_be(now, producer):
        return BUSY
    if producer.producer_id != now.producer_id:
        return OTHER_ID
    if producer.epoch != now.epoch:
        return FENCED
    if now.state in PREPARED:
        return BUSY
    return {p: ErrorCode.NONE if p in now.partitions else ErrorCode.TRANSACTION_ABORTABLE for p in partitions}


# -- the end --------------------------------------------------------------------------------------------------------
def end(
    transaction: Transaction,
    producer: ProducerIdentity,
    commit: bool,
    new_id: int | None,
    client_version: int,
    now_ms: int,
) -> Refused | Answered | NeedsId | Write:
    if client_version >= BUMPS_EPOCH:
        return _end_with_bump(transaction, producer, commit, new_id, client_version, now_ms)
    now = transaction.now
    if producer.producer_id != now.producer_id:
        return OTHER_ID
    if producer.epoch != now.epoch:
        return FENCED
    if transaction.pending is not None:
        return BUSY
    if now.state is S.ONGOING:
        return Write(replace(now, previous_id=now.producer_id, next_id=NO_ID, state=_prepared(commit),
                             updated_ms=now_ms, version=0))  # fmt: skip
    if now.state is _completed(commit):
        return Answered(now.producer)
    return BUSY if now.state is _prepared(commit) else NOT_NOW


def _end_with_bump(
    transaction: Transaction,
    producer: ProducerIdentity,
    commit: bool,
    new_id: int | None,
    client_version: int,
    now_ms: int,
) -> Refused | Answered | NeedsId | Write:
    now = transaction.now
    # A producer that missed the response still has the epoch or producer id from before the bump. If the last end came
    # from an older client there was no bump, and a producer with the previous epoch was fenced.
    after_bump = now.version >= BUMPS_EPOCH and now.epoch == producer.epoch + 1
    after_new_id = now.previous_id == producer.producer_id and producer.epoch == LAST_EPOCH and now.epoch == 0
    again = after_bump or after_new_id
    if transaction.pending is not None or _is_to_be(now, producer):
        return BUSY
    if producer.producer_id != now.producer_id and not after_new_id:
        return OTHER_ID
    if now.state in PREPARED:
        if producer.epoch == now.epoch:  # told already, it ends the next transaction while markers are in flight
            return BUSY
        if not after_bump:
            return FENCED
        return BUSY if now.state is _prepared(commit) else NOT_NOW
    if producer.epoch != now.epoch and not (again and now.state in COMPLETE):
        return FENCED
    if now.is_nobodys:
        return FENCED
    if again:
        return Answered(now.producer) if now.state is _completed(commit) else NOT_NOW
    if commit and now.state is not S.ONGOING:
        return NOT_NOW
    if now.is_exhausted and new_id is None:
        return NEEDS_ID
    return Write(
        replace(
            now,
            previous_id=now.producer_id,
            next_id=new_id if now.is_exhausted and new_id is not None else NO_ID,
            epoch=now.epoch + 1,
            last_epoch=now.epoch,
            state=_prepared(commit),
            started_ms=now.started_ms if now.state is S.ONGOING else now_ms,  # aborting nothing, just to bump the epoch
            updated_ms=now_ms,
            version=client_version,
        )
    )


def told(prepared: TransactionMetadata) -> ProducerIdentity:
    """The producer's identity after the prepared end of its transaction."""
    return completed(prepared, prepared.updated_ms).producer


def completed(prepared: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The state after all markers are written."""
    new_id = prepared.version >= BUMPS_EPOCH and prepared.next_id != NO_ID
    return replace(
        prepared,
        producer_id=prepared.next_id if new_id else prepared.producer_id,
        epoch=0 if new_id else prepared.epoch,
        previous_id=prepared.producer_id,
        next_id=NO_ID,
        state=_completed(prepared.is_committing),
        partitions=frozenset(),
        updated_ms=now_ms,
    )


def _prepared(commit: bool) -> TransactionState:
    return S.PREPARE_COMMIT if commit else S.PREPARE_ABORT


def _completed(commit: bool) -> TransactionState:
    return S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT


# -- time -----------------------------------------------------------------------------------------------------------
def abort_if_too_long(transaction: Transaction, cluster_version: int, now_ms: int) -> Write | None:
    now = transaction.now
    if now.state is not S.ONGOING or transaction.pending is not None:
        return None
    if now.started_ms > now_ms:  # some coordinator's clock ran ahead: count from now
        now = transaction.now = replace(now, started_ms=now_ms)
    return _fence(now, cluster_version, now_ms) if now.started_ms + now.timeout_ms < now_ms else None


def expire_if_unused(transaction: Transaction, expiration_ms: int, now_ms: int) -> Write | None:
    """A tombstone to write if the id expired; its next producer gets a new producer id."""
    now = transaction.now
    unused = now.state in AT_REST and now.updated_ms <= now_ms - expiration_ms
    return Write(replace(now, state=S.DEAD)) if unused and transaction.pending is None else None
