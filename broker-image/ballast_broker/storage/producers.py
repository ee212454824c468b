"""Tracks a partition's idempotent and transactional producers: the last five batches of each, to recognise retries.

PURE. Guarantees: a batch is accepted once; a duplicate within the window is answered with the first one's offsets;
a sequence gap is refused. Snapshots (Kafka's binary format) hold the last batch of each producer. A producer is
forgotten only by `producer.id.expiration.ms`. Of transactions: those that are open, and those whose marker is not known
to be committed; the last stable offset is where the first of both begins. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from ballast_broker.storage.errors import CorruptFile
from ballast_wire.errors import ApiError, ErrorCode

WINDOW = 5
MAXIMUM_SEQUENCE: Final = 2**31 - 1
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NEVER: Final = 2**63 - 1  # larger than any offset

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_END: Final = 6
_new_tuple: Final = tuple.__new__  # half the cost of a NamedTuple's own constructor


class SentBatch(NamedTuple):
    """One batch of a producer, as written to the log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return sequence_before(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def sequence_after(sequence: int, count: int) -> int:
    """Sequences wrap from 2^31-1 to 0."""
    result = sequence + count
    return result - MAXIMUM_SEQUENCE - 1 if result > MAXIMUM_SEQUENCE else result


def sequence_before(sequence: int, count: int) -> int:
    result = sequence - count
    return result + MAXIMUM_SEQUENCE + 1 if result < 0 else result


def sequence_is_ahead(sequence: int, of: int) -> bool:
    return 0 < (sequence - of) & MAXIMUM_SEQUENCE <= MAXIMUM_SEQUENCE // 2


class ProducerState:
    __slots__ = (
        "batches", "coordinator_epoch", "current_txn_first_offset", "epoch", "first_offset",
        "has_complete_window", "last_timestamp", "transactional",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.first_offset = NO_OFFSET  # the first offset of its first batch; unknown if it came from a snapshot
        self.transactional = False  # has ever written in a transaction, as far as known
        self.batches: list[SentBatch] = []
        self.has_complete_window = True  # `batches` lacks none of the last five; a snapshot has only one
        self.coordinator_epoch = -1
        self.current_txn_first_offset = NO_OFFSET
        self.last_timestamp = -1

    def copy(self) -> ProducerState:
        result = ProducerState()
        result.epoch, result.batches, result.has_complete_window = (
            self.epoch,
            self.batches.copy(),
            self.has_complete_window,
        )
        result.coordinator_epoch, result.last_timestamp = self.coordinator_epoch, self.last_timestamp
        result.current_txn_first_offset = self.current_txn_first_offset
        result.first_offset, result.transactional = self.first_offset, self.transactional
        return result

    def sent(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        batches = self.batches
        batches.append(_new_tuple(SentBatch, (last_sequence, last_offset, offset_delta, timestamp)))
        if len(batches) > WINDOW:
            del batches[0]
            self.has_complete_window = True
        self.last_timestamp = timestamp

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


class Verification:
    """A token for asking the coordinator about a producer's transaction: its holder may begin the transaction here as
    long as the partition has the same token. A marker, or the transaction's first batch, removes it."""

    __slots__ = ("adds", "began_ms", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, adds: bool, now_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.adds = adds  # transactions v2: asking the coordinator adds the partition
        self.began_ms = now_ms


NOT_ASKED: Final = Verification(NO_EPOCH, NO_SEQUENCE, False, 0)  # `transaction.partition.verification.enable` is false
GOING_ON: Final = Verification(
    NO_EPOCH, NO_SEQUENCE, False, 0
)  # was open when checked: must not begin one after that has ended


class ProducerStates:
    """All producers of one partition. `map_end_offset`: the state reflects the log up to here."""

    __slots__ = ("_open", "_states", "ended", "first_unstable", "map_end_offset", "verifications")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.map_end_offset = 0
        self._open: dict[int, int] = {}  # producer id → first offset of its open transaction, oldest first
        self.ended: list[tuple[int, int]] = []  # (first offset, marker offset), marker not known to be committed
        self.first_unstable = NEVER
        self.verifications: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __bool__(self) -> bool:
        """True even when empty: `producers or load()` must not take it for None."""
        return True

    def items(self) -> Iterable[tuple[int, ProducerState]]:
        return self._states.items()

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def find_duplicate(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> SentBatch | None:
        state = self._states.get(producer_id)
        if state is None or state.epoch != epoch:
            return None
        last_sequence = sequence_after(base_sequence, last_offset_delta)
        for batch in state.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == base_sequence:
                return batch
        return None

    def going_on(self, producer_id: int, epoch: int, base_sequence: int, offset_delta: int) -> ProducerState | None:
        """The fast path: the producer's state if this is its very next batch, which is no duplicate and passes `check`.
        None for any other, at a wrap of sequences and in a transaction: then ask `find_duplicate` and `check`."""
        state = self._states.get(producer_id)
        if state is None or state.epoch != epoch or state.current_txn_first_offset >= 0:
            return None
        batches = state.batches
        is_next = batches and batches[-1][0] + 1 == base_sequence <= MAXIMUM_SEQUENCE - offset_delta
        return state if is_next else None

    def reaches(self, producer_id: int, epoch: int, sequence: int) -> bool:
        """Whether this sequence, or a later one of the same producer epoch, was written."""
        state = self._states.get(producer_id)
        if state is None or state.epoch != epoch or not state.batches:
            return False
        return not sequence_is_ahead(sequence, state.last_sequence)

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, offset: int, partition: object,
        *, transactional: bool = False,
    ) -> None:  # fmt: skip
        """Refuse a fenced epoch or a sequence gap; `offset` is where the batch would go."""
        state = self._states.get(producer_id)
        if state is None:
            return  # unknown (never seen, or expired): may begin with any sequence
        if epoch < state.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} at offset {offset} in {partition} is {epoch}, "
                f"which is smaller than the last seen epoch {state.epoch}",
            )
        if state.current_txn_first_offset >= 0 and not transactional:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {producer_id} at offset {offset} in partition {partition}",
            )
        if base_sequence < 0 or state.epoch == NO_EPOCH:
            return
        if epoch != state.epoch:
            if base_sequence != 0:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for new epoch of producer {producer_id} at offset {offset} in partition "
                    f"{partition}: {epoch} (request epoch), {base_sequence} (seq. number), "
                    f"{state.epoch} (current producer epoch)",
                )
            return
        last = state.last_sequence
        if base_sequence != last + 1 and not (base_sequence == 0 and last == MAXIMUM_SEQUENCE):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {producer_id} at offset {offset} in partition {partition}: "
                f"{base_sequence} (incoming seq. number), {last} (current end sequence number)",
            )

    def record(
        self, producer_id: int, epoch: int, base_sequence: int, offset_delta: int, last_offset: int, timestamp: int,
        *, transactional: bool = False,
    ) -> None:  # fmt: skip
        """A data batch was written. Offsets that a group coordinator commits in a transaction have no sequence."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState()
            state.first_offset = last_offset - offset_delta
        if epoch != state.epoch:
            state.epoch = epoch
            state.batches = []
            state.has_complete_window = True
        if base_sequence >= 0:
            state.sent(sequence_after(base_sequence, offset_delta), last_offset, offset_delta, timestamp)
        state.last_timestamp = timestamp
        if transactional:
            state.transactional = True
            self.verifications.pop(producer_id, None)
            if state.current_txn_first_offset == NO_OFFSET:
                first = state.current_txn_first_offset = self._open[producer_id] = last_offset - offset_delta
                self.first_unstable = min(self.first_unstable, first)

    def record_end_of_transaction(
        self, producer_id: int, epoch: int, marker_offset: int, coordinator_epoch: int, timestamp: int
    ) -> tuple[int, int]:
        """A marker was written. Returns where the transaction began (-1: it had no data here), and where the oldest one
        still open began: if there is none, the offset after the marker."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState()
            state.first_offset = marker_offset
        if epoch != state.epoch:
            state.epoch = epoch
            state.batches = []
            state.has_complete_window = True
        state.transactional = True
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = timestamp
        self.verifications.pop(producer_id, None)
        first, state.current_txn_first_offset = state.current_txn_first_offset, NO_OFFSET
        if first >= 0:
            self._open.pop(producer_id, None)
            self.ended.append((first, marker_offset))
        return first, min(self._open.values(), default=marker_offset + 1)

    def record_epoch(self, producer_id: int, epoch: int, offset: int, timestamp: int) -> None:
        """The log has a marker that the cleaner has emptied: only the producer epoch is left."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState()
            state.first_offset = offset
        if epoch > state.epoch:
            state.epoch, state.batches, state.has_complete_window = epoch, [], True
        state.transactional = True
        state.last_timestamp = max(timestamp, state.last_timestamp)

    # Transactions

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction here."""
        state = self._states.get(producer_id)
        return state is not None and state.current_txn_first_offset >= 0 and state.epoch == epoch

    def committed(self, high_watermark: int) -> None:
        """The high watermark has moved: transactions whose markers lie before it are decided for good."""
        self.ended = [(first, last) for first, last in self.ended if last >= high_watermark]
        self._find_unstable()

    def _find_unstable(self) -> None:
        ended = min(self.ended, default=(NEVER, NEVER))[0]
        self.first_unstable = min(ended, min(self._open.values(), default=NEVER))

    def _look_at_all(self) -> None:
        """Recompute what is derived, after states were loaded or copied."""
        going_on = [
            (state.current_txn_first_offset, producer_id)
            for producer_id, state in self._states.items()
            if state.current_txn_first_offset >= 0
        ]
        self._open = {producer_id: first for first, producer_id in sorted(going_on)}
        self._find_unstable()

    def verify(self, producer_id: int, epoch: int, sequence: int, *, adds: bool, now_ms: int) -> Verification | None:
        """The token to hold while the coordinator is asked; None if the transaction is open: nothing to verify."""
        if self.is_open(producer_id, epoch):
            return None
        known = self.verifications.get(producer_id)
        if known is None:
            known = self.verifications[producer_id] = Verification(epoch, sequence, adds, now_ms)
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence, known.adds = epoch, sequence, adds
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known

    def check_verified(
        self, producer_id: int, base_sequence: int, offset: int, partition: object, held: Verification | None
    ) -> None:
        """Check before a transaction begins here: its coordinator has confirmed it, and the batch is its first."""
        known = self.verifications.get(producer_id)
        if known is None or known is not held:
            if held is not None and held.adds:
                # The coordinator adds a partition once the previous transaction has all its markers, and the one for us
                # came only while it was asked. The producer is right: let it retry, and the coordinator be asked again.
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "A marker was written while the coordinator was asked")
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        state = self._states.get(producer_id)
        if known.adds and base_sequence > 0 and (state is None or not state.batches):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for producer {producer_id} at offset {offset} in partition {partition}: "
                f"{base_sequence} (incoming seq. number). Expected sequence 0 for transactions v2 idempotent producer "
                "with no existing state.",
            )
        if base_sequence > known.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {producer_id} at offset {offset} in partition {partition}: "
                f"{base_sequence} (incoming seq. number), {known.lowest_sequence} (earliest seen sequence)",
            )

    def check_marker(self, producer_id: int, coordinator_epoch: int, offset: int, partition: object) -> None:
        """Refuse the marker of a fenced coordinator."""
        state = self._states.get(producer_id)
        if state is not None and state.coordinator_epoch > coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {producer_id} at offset {offset} in partition {partition}: "
                f"{coordinator_epoch} (zombie), {state.coordinator_epoch} (current)",
            )

    def check_ends_earlier(self, producer_id: int, epoch: int, offset: int, partition: object) -> None:
        """Refuse a late duplicate of a marker: an open transaction with the marker's epoch, which the producer got
        only by that end, is already the next one. If none is open a duplicate does no harm."""
        if self.is_open(producer_id, epoch):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} at offset {offset} in {partition} is {epoch}, with which its next "
                "transaction has begun: the marker ends the one before",
            )

    def expire(self, now_ms: int, expiration_ms: int) -> Generator[None, None, None]:
        """Forget producers that wrote nothing for `producer.id.expiration.ms` and have no open transaction; in steps,
        between which anything may happen to the states."""
        for producer_id, known in list(self.verifications.items()):
            if now_ms - known.began_ms >= expiration_ms:
                del self.verifications[producer_id]
        for producer_id in list(self._states):
            state = self._states.get(producer_id)
            if (
                state is not None
                and state.current_txn_first_offset < 0
                and now_ms - state.last_timestamp >= expiration_ms
            ):
                del self._states[producer_id]
            yield

    def cut_back(self, offset: int) -> set[int]:
        """The log was truncated: forget batches that end at or after `offset`. Returns the producers whose earlier
        state is not known here; their states are left unchanged."""
        unknown = set()
        for producer_id, state in list(self._states.items()):
            kept = [batch for batch in state.batches if batch.last_offset < offset]
            if len(kept) == len(state.batches) and not state.transactional:
                continue
            if state.first_offset >= offset:
                del self._states[producer_id]
            elif not kept or state.transactional:
                unknown.add(producer_id)
            else:
                state.has_complete_window = state.has_complete_window and len(state.batches) < WINDOW
                state.batches, state.last_timestamp = kept, kept[-1].timestamp
        self.ended = [(first, last) for first, last in self.ended if last < offset]
        self._look_at_all()
        return unknown

    def replace(self, producer_id: int, state: ProducerState) -> None:
        self._states[producer_id] = state

    def clear(self, end_offset: int) -> None:
        self._states.clear()
        self.ended.clear()
        self._look_at_all()
        self.map_end_offset = end_offset

    def copy(self) -> ProducerStates:
        """A full copy, with the whole window of each producer: a snapshot has less."""
        result = ProducerStates()
        result.replace_by(self, self.map_end_offset)
        return result

    def replace_by(self, other: ProducerStates, end_offset: int) -> None:
        """Become a copy of the other one, which reflects the log up to `end_offset`."""
        self._states = {producer_id: state.copy() for producer_id, state in other.items()}
        self.ended = other.ended.copy()
        self.verifications = dict(other.verifications)
        self._look_at_all()
        self.map_end_offset = end_offset

    # Snapshots

    def render(self) -> bytes:
        body = bytearray()
        for producer_id, state in self._states.items():
            last = state.batches[-1] if state.batches else SentBatch(NO_SEQUENCE, NO_OFFSET, 0, state.last_timestamp)
            body += _SNAPSHOT_ENTRY.pack(
                producer_id, state.epoch, last.last_sequence, last.last_offset, last.offset_delta,
                state.last_timestamp, state.coordinator_epoch, state.current_txn_first_offset,
            )  # fmt: skip
        counted = struct.pack(">i", len(self._states)) + bytes(body)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(counted)) + counted

    def load(self, data: bytes, end_offset: int) -> None:
        """Replace everything by a snapshot; `CorruptFile` if that is damaged."""
        if len(data) < _SNAPSHOT_HEADER.size:
            raise CorruptFile("producer snapshot is cut")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        if version != _SNAPSHOT_VERSION or crc32c(memoryview(data)[_CRC_END:]) != crc:
            raise CorruptFile("producer snapshot has a wrong version or checksum")
        if len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptFile("producer snapshot has a wrong length")
        states: dict[int, ProducerState] = {}
        for entry in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEADER.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first = entry
            state = states[producer_id] = ProducerState()
            state.epoch, state.coordinator_epoch = epoch, coordinator_epoch
            state.last_timestamp, state.current_txn_first_offset = timestamp, first
            state.transactional = coordinator_epoch >= 0 or first >= 0
            if last_offset >= 0:
                state.batches.append(SentBatch(last_sequence, last_offset, delta, timestamp))
                state.has_complete_window = False
        self._states = states
        self.ended = []
        self._look_at_all()
        self.map_end_offset = end_offset
