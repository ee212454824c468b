"""A coordinator's access to its topic: appends with acks=all, and reads the whole log on load.

What belongs together is appended as one batch, however long: if it were two, the next leader, or a restart after a
crash, might find only the first. A batch longer than the topic allows is rejected, as by Apache Kafka; only entries
that are independent of each other are split.

Loading reads up to the log end offset at the time this broker became leader; its own log cannot lose that while it
leads.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ballast_broker.replication.replicas import Replicas
from ballast_broker.seams import Clock
from ballast_broker.seldom import Seldom
from ballast_broker.storage.producers import GOING_ON, Verification
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import (
    HEADER_BYTES,
    NO_SEQUENCE,
    BatchView,
    CorruptBatch,
    Record,
    decode_records,
    encode_batch,
    iterate_batches,
)

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.slices import AppendInfo

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

CLIENT_ERROR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

# All in-sync replicas have it, so it is committed, even if there are too few of them for the next append.
COMMITTED = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
NO_TIMEOUT_MS = 2**31 - 1
RECORD_OVERHEAD = 32  # upper bound of a record's size without its key and value

KeyValue = tuple[bytes, bytes | None]
Settled = Callable[[bool], None]
PieceSettled = Callable[[slice, bool], None]
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
Producer = tuple[int, int]  # id and epoch of a transactional producer
OUTSIDE = (-1, -1)
_control_key = struct.Struct(">hh")  # version, kind
ABORT, COMMIT = 0, 1


class Marker(NamedTuple):
    """A transaction marker: a producer's transaction ended here."""

    producer_id: int
    committed: bool


class Stored(NamedTuple):
    """A transactional record: it takes effect if its marker commits."""

    producer_id: int
    key: bytes
    value: bytes | None


Found = KeyValue | Stored | Marker


class _Write:
    """An appended batch: its outcome, and who is told once the outcome of all earlier batches is known."""

    __slots__ = ("error", "settled", "told")

    def __init__(self, settled: Settled, told: asyncio.Future[ErrorCode]) -> None:
        self.settled = settled
        self.told = told
        self.error: ErrorCode | None = None


class _Appending:
    """Awaitable outcome of an append already made; if nobody awaits it, nothing is left pending."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, ErrorCode]]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, ErrorCode]:
        return self._answer().__await__()


class CoordinatorStore:
    def __init__(self, topic: str, replicas: Replicas, clock: Clock, *, timeout_ms: int, load_bytes: int) -> None:
        self._topic = topic
        self._replicas = replicas
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._load_bytes = load_bytes
        self._too_large = Seldom()  # clients try again
        self._writes: defaultdict[int, deque[_Write]] = defaultdict(deque)  # per partition, in log order

    def append(self, partition: int, entries: Sequence[KeyValue], settled: Settled) -> Awaitable[ErrorCode]:
        """Append all entries now, as one batch; awaiting the result waits for the commit.

        Errors are translated for group clients. `settled` is called once, in log order, with whether the batch is
        committed: before the result is available or, if the result is a timeout, whenever the outcome is known. A batch
        in the log counts for whoever loads it next.
        """
        return self.append_batch(partition, self.batch_of(entries), settled)

    def append_batch(
        self, partition: int, batch: bytearray, settled: Settled, verified: Verification | None = None
    ) -> Awaitable[ErrorCode]:
        """As `append`, with a batch made by `batch_of`."""
        target = TopicPartition(self._topic, partition)
        try:
            appending = self._replicas.append_own(target, batch, -1, verified=verified)
        except ApiError as refused:
            if refused.code in TOO_LARGE and self._too_large.is_due(partition):
                logger.error("%s: what has to be written as one batch is too large: %s", target, refused)
            settled(False)
            return later(CLIENT_ERROR.get(refused.code, refused.code))
        write = _Write(settled, asyncio.get_running_loop().create_future())
        self._writes[partition].append(write)
        if appending.done():
            self._appended(target, write, appending)
        else:
            appending.add_done_callback(partial(self._appended, target, write))
        return _Appending(lambda: self._answer(appending, write))

    def append_pieces(self, partition: int, entries: Sequence[KeyValue], settled: PieceSettled) -> Awaitable[ErrorCode]:
        """Append independent entries now, in as many batches as needed; the result is the first error. `settled` is
        called per batch, with the slice of the entries it covers.
        """
        appending = [
            self.append(partition, entries[some], lambda committed, some=some: settled(some, committed))  # type: ignore[misc]
            for some in self.pieces(partition, entries)
        ]
        return appending[0] if len(appending) == 1 else _Appending(lambda: _first_error_of(appending))

    def pieces(self, partition: int, entries: Sequence[KeyValue]) -> list[slice]:
        """The slices of the entries that fit into one batch each."""
        log = self._replicas.local_log(TopicPartition(self._topic, partition))
        most = 2**31 if log is None else min(log.config.max_message_bytes, log.config.segment_bytes)
        return list(_pieces(entries, most - HEADER_BYTES))

    def _appended(self, target: TopicPartition, write: _Write, appending: asyncio.Future[AppendInfo]) -> None:
        if appending.cancelled() or appending.exception() is not None:
            self._known(target.partition, write, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        committed = self._replicas.await_committed(target, appending.result().last_offset + 1, NO_TIMEOUT_MS)
        if isinstance(committed, ErrorCode):
            self._known(target.partition, write, committed)
        else:
            committed.add_done_callback(lambda done: self._known(target.partition, write, done.result()))

    def _known(self, partition: int, write: _Write, error: ErrorCode) -> None:
        """Report outcomes in log order, each after all earlier ones: for a key, the last record in the log wins."""
        write.error = error
        writes = self._writes[partition]
        while writes and (first := writes[0]).error is not None:
            writes.popleft()
            first.settled(first.error in COMMITTED)
            first.told.set_result(first.error)

    async def _answer(self, appending: asyncio.Future[AppendInfo], write: _Write) -> ErrorCode:
        if not appending.done():
            await asyncio.wait((appending,), timeout=self._timeout_ms / 1000)
            if not appending.done():
                return CLIENT_ERROR[ErrorCode.REQUEST_TIMED_OUT]
        try:
            appending.result()
        except ApiError as refused:
            return CLIENT_ERROR.get(refused.code, refused.code)
        if not write.told.done():
            await asyncio.wait((write.told,), timeout=self._timeout_ms / 1000)
        error = write.told.result() if write.told.done() else ErrorCode.REQUEST_TIMED_OUT
        return ErrorCode.NONE if error in COMMITTED else CLIENT_ERROR.get(error, error)

    async def all_committed(self, partition: int) -> None:
        """Wait until the log as it is now is committed; raise ApiError if this broker stops leading it."""
        target = TopicPartition(self._topic, partition)
        end = self._log_of(partition).log_end_offset
        error = await later(self._replicas.await_committed(target, end, NO_TIMEOUT_MS))
        if error not in COMMITTED:
            raise ApiError(error)

    def verification(self, partition: int, producer: Producer, *, adds: bool) -> Verification:
        """Start a verification, to be passed to the append after the transaction coordinator agreed.

        GOING_ON: the transaction is known here, so no agreement is needed. A slow disk may delay the append: the
        transaction may end before it.
        """
        producers = self._log_of(partition).producers
        held = producers.verify(*producer, NO_SEQUENCE, adds=adds, now_ms=self._clock.wall_ms())
        return GOING_ON if held is None else held

    def epoch(self, partition: int) -> int:
        """The leader epoch of this broker; -1 if another broker leads."""
        state = self._replicas.partition(TopicPartition(self._topic, partition))
        return state.leader_epoch if state is not None and state.is_leader else -1

    def batch_of(self, entries: Sequence[KeyValue], producer: Producer = OUTSIDE) -> bytearray:
        now_ms = self._clock.wall_ms()
        return encode_batch(
            [Record(key=key, value=value, timestamp=now_ms) for key, value in entries],
            transactional=producer is not OUTSIDE,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )

    def _log_of(self, partition: int) -> Log:
        log = self._replicas.local_log(TopicPartition(self._topic, partition))
        if log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return log

    async def read_all(self, partition: int) -> AsyncIterator[Found]:
        """Every record from the log start to the current log end.

        Raises ApiError if the log is unavailable or corrupt: the next leader's copy may be intact. A batch with a
        correct CRC whose records cannot be decoded is skipped: we did not write it, and the log holds other groups,
        too.
        """
        log = self._log_of(partition)
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            # Look the log up each time: it may have moved to another directory, and its old files are deleted.
            looking = self._replicas.read_own(TopicPartition(self._topic, partition), offset, self._load_bytes, end)
            piece = await looking if isinstance(looking, asyncio.Task) else looking
            try:
                data = await piece.threads.run(piece.read)
            finally:
                piece.release()
            if not data:
                return
            for batch in iterate_batches(memoryview(data)):
                offset = batch.last_offset + 1
                if not batch.crc_is_right():
                    text = f"the disk has spoilt the batch at {batch.base_offset} of {self._topic}-{partition}"
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE, text)
                try:
                    found = list(_found_in(batch))
                except (CorruptBatch, struct.error) as error:
                    logger.error(
                        "the batch at offset %d of %s-%d cannot be read, and is passed over: %s",
                        batch.base_offset,
                        self._topic,
                        partition,
                        error,
                    )
                    continue
                for each in found:
                    yield each


def _found_in(batch: BatchView) -> Iterator[Found]:
    producer_id = batch.header.producer_id if batch.is_transactional else -1
    for record in decode_records(batch):
        if record.key is None:
            continue
        key, value = bytes(record.key), None if record.value is None else bytes(record.value)
        if not batch.is_control:
            yield (key, value) if producer_id < 0 else Stored(producer_id, key, value)
        elif producer_id >= 0 and (kind := _control_key.unpack_from(key)[1]) in (ABORT, COMMIT):
            yield Marker(producer_id, kind == COMMIT)


def later(answer: ErrorCode | asyncio.Future[ErrorCode]) -> asyncio.Future[ErrorCode]:
    """Turn a known result into a future, so that it is delivered after results that became known just before."""
    if isinstance(answer, asyncio.Future):
        return answer
    known: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    known.set_result(answer)
    return known


async def _first_error_of(appending: Sequence[Awaitable[ErrorCode]]) -> ErrorCode:
    errors = await asyncio.gather(*appending)
    return next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)


def _pieces(entries: Sequence[KeyValue], most: int) -> Iterator[slice]:
    start = size = 0
    for number, (key, value) in enumerate(entries):
        own = len(key) + len(value or b"") + RECORD_OVERHEAD
        if number > start and size + own > most:
            yield slice(start, number)
            start, size = number, 0
        size += own
    if entries:
        yield slice(start, len(entries))
