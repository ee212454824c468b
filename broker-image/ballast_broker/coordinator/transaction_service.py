"""The transaction coordinator of this broker: carries out the decisions of `transactions` and keeps timeouts.

One instance, on the event loop. A transactional id belongs to the partition of `__transaction_state` it hashes to; this
broker serves the partitions it leads once they are loaded. A transaction whose outcome is in the log will end that way:
whoever leads the partition sends its markers until all are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from ballast_broker.coordinator import transactions
from ballast_broker.coordinator.loading import tell_unloaded
from ballast_broker.coordinator.markers import DecidedTransaction, MarkerSender
from ballast_broker.coordinator.service import partition_for
from ballast_broker.coordinator.store import CoordinatorStore, Marker, Stored
from ballast_broker.coordinator.tasks import Tasks
from ballast_broker.coordinator.transaction_records import key_of, standing_of, transactional_id_of, value_of
from ballast_broker.coordinator.transactions import (
    PREPARED,
    Answered,
    NeedsId,
    ProducerIdentity,
    Refused,
    Transaction,
    TransactionMetadata,
    TransactionState,
    Write,
)
from ballast_broker.seams import Clock
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

log = logging.getLogger(__name__)

RECORDS_PER_TURN = 200
LOOKED_AT_PER_TURN = 5_000
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0

Decision = Refused | Answered | NeedsId | Write


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    partitions: int = 50
    id_expiration_ms: int = 604_800_000
    max_timeout_ms: int = 900_000
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    busy_patience_ms: int = 100


@dataclass(eq=False, slots=True)
class Part:
    """The transactional ids of one partition of the topic."""

    partition: int
    loaded: bool = False
    failed: bool = False
    transactions: dict[str, Transaction] = field(default_factory=dict)


class TransactionCoordinator:
    def __init__(
        self,
        store: CoordinatorStore,
        markers: MarkerSender,
        clock: Clock,
        config: TransactionConfig,
        next_producer_id: Callable[[], Awaitable[int]],
        cluster_version: Callable[[], int],
    ) -> None:
        self._store = store
        self._markers = markers
        self._clock = clock
        self._config = config
        self._next_id = next_producer_id
        self._version = cluster_version
        self._partitions = config.partitions
        self._parts: dict[int, Part] = {}
        self._changes: dict[str, asyncio.Future[None]] = {}  # transactional id → its next change, if awaited
        self._tasks = Tasks("transaction coordinator")

    # -- leadership -----------------------------------------------------------------------------------------------
    def divide(self, partitions: int) -> None:
        self._partitions = partitions

    def lead(self, partition: int) -> None:
        """This broker became leader. If it led the partition already, in an earlier epoch, it keeps what it knows."""
        if partition not in self._parts:
            part = self._parts[partition] = Part(partition)
            self._tasks.start(self._load(part))

    def resign(self, partition: int) -> None:
        """Queued markers are no longer sent, because `coordinator_epoch` turns -1."""
        self._parts.pop(partition, None)

    def resign_all(self) -> None:
        self._parts.clear()

    def close(self) -> None:
        self.resign_all()
        self._markers.close()
        self._tasks.cancel()

    async def _load(self, part: Part) -> None:
        """Load the partition and wait until what was read is committed.

        Uncommitted records could be lost with this broker: no client and no partition may learn of them before.
        """
        pause_s = FIRST_PAUSE_S
        while self._is_current(part):
            try:
                count = await self._read(part)
                await self._store.all_committed(part.partition)
                break
            except Exception as error:
                if not self._is_current(part):
                    return  # another broker leads it: what we waited for is for that one to commit
                part.failed = True
                part.transactions.clear()
                tell_unloaded(f"partition {part.partition} of the transaction log", error, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if not self._is_current(part):
            return
        part.loaded, part.failed = True, False
        for transaction in part.transactions.values():
            if transaction.now.state in PREPARED:
                self._send_markers(part, transaction)
        log.info("loaded partition %d of the transaction log: %d records", part.partition, count)

    async def _read(self, part: Part) -> int:
        count = 0
        async for found in self._store.read_all(part.partition):
            if not isinstance(found, Marker | Stored):
                self._replay(part, *found)
            count += 1
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
                if not self._is_current(part):
                    break
        return count

    @staticmethod
    def _replay(part: Part, key: bytes, value: bytes | None) -> None:
        try:
            transactional_id = transactional_id_of(key)
            if transactional_id is None:
                return
            if value is None:
                part.transactions.pop(transactional_id, None)
            else:
                part.transactions[transactional_id] = Transaction(transactional_id, standing_of(value))
        except Exception:  # malformed bytes may make the codec raise anything
            log.exception("a record in partition %d of the transaction log cannot be read: %r", part.partition, key)

    def _is_current(self, part: Part) -> bool:
        return self._parts.get(part.partition) is part

    # -- requests -------------------------------------------------------------------------------------------------
    async def initialize(
        self, transactional_id: str, timeout_ms: int, known: ProducerIdentity | None
    ) -> ProducerIdentity:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        await self._ensure_known(transactional_id, timeout_ms)

        def decide(transaction: Transaction, new_id: int | None) -> Decision:
            return transactions.initialize(transaction, timeout_ms, known, new_id, self._version(), self._now_ms())

        standing = await self._carry_out(transactional_id, decide)
        assert isinstance(standing, TransactionMetadata)
        if standing.state in PREPARED:  # a predecessor's transaction is being aborted; no producer has this epoch
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return standing.producer

    async def _ensure_known(self, transactional_id: str, timeout_ms: int) -> None:
        if transactional_id in self._part_of(transactional_id).transactions:
            return
        new_id = await self._next_id()
        known = self._part_of(transactional_id).transactions
        if transactional_id not in known:
            known[transactional_id] = transactions.created(transactional_id, new_id, timeout_ms, self._now_ms())

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> None:
        def decide(transaction: Transaction, _: int | None) -> Decision:
            return transactions.add_partitions(transaction, producer, partitions, client_version, self._now_ms())

        await self._carry_out(transactional_id, decide)

    async def add_partitions_when_free(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> None:
        """As `add_partitions`, but wait a while if markers of the previous transaction are being written: that takes
        far less time than the producer's own retry.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._config.busy_patience_ms / 1000
        while True:
            try:
                return await self.add_partitions(transactional_id, producer, partitions, client_version)
            except ApiError as refused:
                if refused.code is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() >= give_up_s:
                    raise
            change = self._changes.setdefault(transactional_id, loop.create_future())
            await asyncio.wait((change,), timeout=give_up_s - loop.time())
            if not change.done():  # otherwise nobody would remove it
                self._changed(transactional_id)

    def _changed(self, transactional_id: str) -> None:
        """Wake whoever waits for a change."""
        change = self._changes.pop(transactional_id, None)
        if change is not None:
            change.set_result(None)

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        answer = transactions.verify(self._known(transactional_id)[1], producer, partitions)
        if isinstance(answer, Refused):
            raise ApiError(answer.error)
        return answer

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Return the producer's new identity. The outcome is decided by then; markers may still be in flight."""

        def decide(transaction: Transaction, new_id: int | None) -> Decision:
            return transactions.end(transaction, producer, commit, new_id, client_version, self._now_ms())

        outcome = await self._carry_out(transactional_id, decide)
        return transactions.told(outcome) if isinstance(outcome, TransactionMetadata) else outcome

    def describe(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        transaction = self._part_of(transactional_id).transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction.now

    def list_all(self) -> list[Transaction]:
        if any(not part.loaded and not part.failed for part in self._parts.values()):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [each for part in self._parts.values() if part.loaded for each in part.transactions.values()]

    def states(self) -> Counter[TransactionState]:
        """For metrics: the number of loaded ids in each state."""
        return Counter(each.now.state for part in self._loaded() for each in part.transactions.values())

    # -- time -----------------------------------------------------------------------------------------------------
    async def abort_those_too_long(self) -> None:
        """Run forever: abort transactions that exceed their timeout."""
        while True:
            await asyncio.sleep(self._config.abort_interval_ms / 1000)
            for part in self._loaded():
                for number, transaction in enumerate(list(part.transactions.values())):
                    if number % LOOKED_AT_PER_TURN == 0:
                        await asyncio.sleep(0)
                    if not self._is_current(part):
                        break
                    if transactions.abort_if_too_long(transaction, self._version(), self._now_ms()) is not None:
                        self._tasks.start(self._abort(part, transaction))

    async def _abort(self, part: Part, transaction: Transaction) -> None:
        """Decide and start writing in one step: the producer may just have ended it."""
        write = transactions.abort_if_too_long(transaction, self._version(), self._now_ms())
        if write is not None and self._is_current(part):
            log.info("the transaction of %s took longer than its timeout: aborted", transaction.transactional_id)
            await self._write(part, transaction, write.standing)

    async def forget_unused(self) -> None:
        """Run forever: expire ids that have not been used for long."""
        while True:
            await asyncio.sleep(self._config.expiry_interval_ms / 1000)
            for part in self._loaded():
                everybody = list(part.transactions.values())
                for start in range(0, len(everybody), LOOKED_AT_PER_TURN):
                    await self._expire(part, everybody[start : start + LOOKED_AT_PER_TURN])
                    await asyncio.sleep(0)

    async def _expire(self, part: Part, some: list[Transaction]) -> None:
        expired = []
        for transaction in some:
            write = transactions.expire_if_unused(transaction, self._config.id_expiration_ms, self._now_ms())
            if write is not None:
                transaction.pending = write.standing
                expired.append(transaction)

        def settled(some: slice, committed: bool) -> None:
            for transaction in expired[some]:
                transaction.settle(committed)
                if committed:
                    part.transactions.pop(transaction.transactional_id, None)

        if expired and self._is_current(part):
            ends = [(key_of(each.transactional_id), None) for each in expired]
            await self._store.append_pieces(part.partition, ends, settled)  # the tombstones are independent

    # -- writing --------------------------------------------------------------------------------------------------
    async def _carry_out(
        self, transactional_id: str, decide: Callable[[Transaction, int | None], Decision]
    ) -> TransactionMetadata | ProducerIdentity:
        """Return what was written, or the producer's identity if nothing had to be; raise ApiError if refused."""
        part, transaction = self._known(transactional_id)
        decision = decide(transaction, None)
        if isinstance(decision, NeedsId):
            new_id = await self._next_id()
            part, transaction = self._known(transactional_id)
            decision = decide(transaction, new_id)
        if isinstance(decision, Refused):
            raise ApiError(decision.error)
        if isinstance(decision, Answered):
            return decision.producer
        assert isinstance(decision, Write)
        error = await self._write(part, transaction, decision.standing)
        if error is not ErrorCode.NONE:
            raise ApiError(error)
        return decision.standing

    async def _write(self, part: Part, transaction: Transaction, standing: TransactionMetadata) -> ErrorCode:
        def settled(committed: bool) -> None:
            transaction.settle(committed)
            self._changed(transaction.transactional_id)
            if transaction.now.state in PREPARED and committed:
                self._send_markers(part, transaction)

        transaction.pending = standing
        entry = key_of(transaction.transactional_id), value_of(standing, self._version())
        return await self._store.append(part.partition, [entry], settled)

    def _send_markers(self, part: Part, transaction: Transaction) -> None:
        prepared = transaction.now

        ending = DecidedTransaction(
            producer_id=prepared.producer_id,
            epoch=prepared.epoch,
            committed=prepared.is_committing,
            version=prepared.version,
            left=set(prepared.partitions),
            coordinator_epoch=lambda: self._store.epoch(part.partition) if self._is_current(part) else -1,
            marked=transaction.mark,
            done=lambda: self._tasks.start(self._complete(part, transaction)),
        )
        if self._is_current(part):
            self._markers.send(ending)

    async def _complete(self, part: Part, transaction: Transaction) -> None:
        """All markers are written: retry until the log accepts the completion.

        Only for this end: a failed append may have succeeded after all, and the next end may be prepared by now.
        """
        pause_s, prepared = FIRST_PAUSE_S, transaction.now
        while self._is_current(part) and transaction.now is prepared:
            if transaction.pending is None:  # otherwise it is appended, and the outcome is open
                standing = transactions.completed(prepared, self._now_ms())
                if await self._write(part, transaction, standing) is ErrorCode.NONE:
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    # -- small things ---------------------------------------------------------------------------------------------
    def _known(self, transactional_id: str) -> tuple[Part, Transaction]:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        part = self._part_of(transactional_id)
        transaction = part.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return part, transaction

    def _part_of(self, transactional_id: str) -> Part:
        part = self._parts.get(partition_for(transactional_id, self._partitions))
        if part is None or part.failed:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if not part.loaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return part

    def _loaded(self) -> list[Part]:
        return [part for part in self._parts.values() if part.loaded]

    def _now_ms(self) -> int:
        return self._clock.wall_ms()
