"""A transactional producer of the simulation: one incarnation of a transactional id, as careful as real clients.

Up to three batches per partition are in flight; after a failure they are retried in order, with the same sequence
numbers. A transaction ends when all of it is acknowledged, or it is aborted. An error that a retry cannot mend aborts
the transaction; one that says that the producer is fenced ends the incarnation.

There are two flows: before transaction.version 2 the client adds partitions to the transaction and the producer epoch
stays; since then brokers add the partitions that are written to, and each end bumps the epoch.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from typing import Any, NamedTuple
from uuid import UUID

from tests.sim.clients import ANSWER_TRAVELS_MS, RETRY_S, SimClient
from tests.sim.diary import Beginning, Diary, Identity, Outcome, Refusal, Transaction, now
from tests.sim.network import SimChannel

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

MOST_UNDER_WAY = 3
OF_TRANSACTIONS = 1  # the key type of FindCoordinator
FIND = 3


class Flow(NamedTuple):
    """The request versions of one flow."""

    init: int
    produce: int
    commit_offsets: int
    end: int
    client_adds: bool


CLIENT_ADDS = Flow(init=4, produce=9, commit_offsets=3, end=3, client_adds=True)
BROKER_ADDS = Flow(init=5, produce=13, commit_offsets=5, end=5, client_adds=False)
ADD_PARTITIONS = ADD_OFFSETS = 3

AGAIN = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
ANOTHER_COORDINATOR = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


class MustAbort(Exception):
    """This transaction cannot be committed."""


class Over(Exception):
    """This incarnation can do nothing any more: it is fenced, or the coordinator gave up on it."""


class RefusedAtOnce(Over):
    """The first answer was the error: no earlier attempt can have taken effect."""


class Group(NamedTuple):
    name: str
    partition: TopicPartition  # whose offsets it commits


class Batch(NamedTuple):
    sequence: int
    values: tuple[bytes, ...]
    sent_s: float


class Incarnation:
    def __init__(
        self,
        client: SimClient,
        diary: Diary,
        name: str,
        flow: Flow,
        partitions: list[TopicPartition],
        topic_id: UUID,
        group: Group,
        rng: random.Random,
        timeout_ms: int,
        per_second: float,
    ) -> None:
        self._per_second = per_second
        self._client = client
        self._diary = diary
        self._name = name
        self._flow = flow
        self._partitions = partitions
        self._topic_id = topic_id
        self._group = group
        self._rng = rng
        self._timeout_ms = timeout_ms
        self._identity = Identity(-1, -1)
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._coordinators: dict[tuple[str, int], str] = {}
        self._finishing = self._in_doubt = False
        self.has_begun = asyncio.Event()

    def finish(self) -> None:
        """Stop after the open transaction, if any."""
        self._finishing = True

    async def run(self) -> None:
        try:
            await self._init()
            while not self._finishing:
                await self._transact()
                await asyncio.sleep(self._rng.expovariate(self._per_second))
        except Over as over:
            self._diary.refusals.append(Refusal(self._name, self._identity, over.args[0], now()))

    async def _init(self) -> None:
        """Get an identity, or a new epoch: then it sends its old identity, so that it learns if it has been fenced."""
        kind = message("InitProducerIdRequest")
        request = kind(
            transactional_id=self._name, transaction_timeout_ms=self._timeout_ms,
            producer_id=self._identity.producer_id, producer_epoch=self._identity.epoch,
        )  # fmt: skip
        asked_s = now()
        answer = await self._coordinate(self._name, request, self._flow.init)
        before, self._identity = self._identity, Identity(answer.producer_id, answer.producer_epoch)
        if self._diary.is_fenced(self._name, before, asked_s) and before.producer_id >= 0:
            self._diary.broken.append(f"who is fenced stays so: {self._name} was {before}, became {self._identity}")
        if self._identity in (each.identity for each in self._diary.beginnings):
            self._diary.broken.append(f"one identity each: {self._name} became {self._identity} twice")
        self._diary.beginnings.append(Beginning(self._name, self._identity, now()))
        self._sequences.clear()
        self._in_doubt = False
        self.has_begun.set()

    # -- one transaction ------------------------------------------------------------------------------------------
    async def _transact(self) -> None:
        chosen = self._rng.sample(self._partitions, self._rng.randint(1, len(self._partitions)))
        transaction = self._diary.begin(self._name, chosen)
        try:
            if self._rng.random() < 0.2 and self._flow.client_adds:
                await self._add_partitions(self._partitions)  # some may get no records
            for partition in chosen:
                if self._flow.client_adds:
                    await self._add_partitions([partition])
                await self._write(transaction, partition)
                await asyncio.sleep(self._rng.choice([0.0, 0.0, 0.2, 1.0]))
            if self._rng.random() < 0.3:
                await self._commit_offset(transaction)
            if self._rng.random() < 0.3:
                raise MustAbort
        except MustAbort:
            await self._abort(transaction)
        else:
            await self._commit(transaction)

    async def _add_partitions(self, partitions: list[TopicPartition]) -> None:
        kind = message("AddPartitionsToTxnRequest")
        topics = [
            kind.AddPartitionsToTxnTopic(
                version=ADD_PARTITIONS, name=partitions[0].topic, partitions=[each.partition for each in partitions]
            )
        ]
        request = kind(
            v3_and_below_transactional_id=self._name, v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch, v3_and_below_topics=topics,
        )  # fmt: skip
        await self._coordinate(self._name, request, ADD_PARTITIONS)

    async def _write(self, transaction: Transaction, partition: TopicPartition) -> None:
        waiting: deque[Batch] = deque()
        for _ in range(self._rng.randint(1, MOST_UNDER_WAY)):
            first = len(transaction.values[partition])
            values = tuple(
                f"{self._name}:{transaction.number}:{partition.partition}:{first + index}".encode()
                for index in range(self._rng.randint(1, 2))
            )
            transaction.values[partition] += values
            waiting.append(Batch(self._sequences[partition], values, now()))
            self._sequences[partition] += len(values)
        while waiting:
            if not await self._send(partition, waiting):
                self._client.forget_leader(partition)
                await asyncio.sleep(RETRY_S)

    async def _send(self, partition: TopicPartition, waiting: deque[Batch]) -> bool:
        """Send all waiting batches in order, and drop those that are acknowledged. False: retry, perhaps elsewhere."""
        leader = await self._client.leader_of(partition)
        if leader is None:
            return False
        try:
            channel = await self._client.channel_to(leader)
        except (OSError, TimeoutError):
            return False
        results = await asyncio.gather(*(self._ask_to_write(channel, partition, batch) for batch in waiting))
        everything = True
        for result in results:
            error = ErrorCode.NETWORK_EXCEPTION if result is None else ErrorCode(result.error_code)
            if everything and error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acknowledged(partition, waiting.popleft(), result)
            elif error in AGAIN or not everything:  # a batch behind a failed one may be refused as out of order
                everything = False
            else:
                self._in_doubt = True
                raise MustAbort(error)
        return everything

    def _acknowledged(self, partition: TopicPartition, batch: Batch, result: Any) -> None:
        if result.base_offset >= 0:
            for index, value in enumerate(batch.values):
                self._diary.acked[partition, result.base_offset + index] = value
        if self._diary.is_fenced(self._name, self._identity, batch.sent_s):
            self._diary.broken.append(f"who is fenced writes nothing: {batch.values} to {partition}, {self._identity}")

    async def _ask_to_write(self, channel: SimChannel, partition: TopicPartition, batch: Batch) -> Any:
        kind, version = message("ProduceRequest"), self._flow.produce
        records = encode_batch(
            [Record(value=value, timestamp=1) for value in batch.values], transactional=True,
            producer_id=self._identity.producer_id, producer_epoch=self._identity.epoch, base_sequence=batch.sequence,
        )  # fmt: skip
        part = kind.TopicProduceData.PartitionProduceData(
            version=version, index=partition.partition, records=bytes(records)
        )
        topic: dict[str, Any] = {"topic_id": self._topic_id} if version >= 13 else {"name": partition.topic}
        data = kind.TopicProduceData(version=version, partition_data=[part], **topic)
        timeout_ms = int(self._client.timeout_s * 1000) - ANSWER_TRAVELS_MS
        request = kind(transactional_id=self._name, acks=-1, timeout_ms=timeout_ms, topic_data=[data])
        try:
            async with asyncio.timeout(self._client.timeout_s):
                answer = await channel.call(request, version)
        except (OSError, TimeoutError):
            channel.close()
            return None
        return answer.responses[0].partition_responses[0]

    async def _commit_offset(self, transaction: Transaction) -> None:
        if self._flow.client_adds:
            kind = message("AddOffsetsToTxnRequest")
            request = kind(
                transactional_id=self._name, producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch, group_id=self._group.name,
            )  # fmt: skip
            await self._coordinate(self._name, request, ADD_OFFSETS)
        kind, version = message("TxnOffsetCommitRequest"), self._flow.commit_offsets
        topic = kind.TxnOffsetCommitRequestTopic
        part = topic.TxnOffsetCommitRequestPartition(
            version=version, partition_index=self._group.partition.partition, committed_offset=transaction.number,
            committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        request = kind(
            transactional_id=self._name, group_id=self._group.name, producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch, generation_id=-1, member_id="", group_instance_id=None,
            topics=[topic(version=version, name=self._group.partition.topic, partitions=[part])],
        )  # fmt: skip
        try:
            await self._coordinate(self._group.name, request, version, of=0)
        except Over as error:  # like Java's producer, ask the transaction coordinator by aborting
            raise MustAbort from error
        transaction.offset = transaction.number

    # -- the end --------------------------------------------------------------------------------------------------
    async def _commit(self, transaction: Transaction) -> None:
        self._diary.ask_to_commit(transaction, self._identity)
        try:
            answer = await self._end(committed=True)
        except RefusedAtOnce:
            transaction.outcome = Outcome.NOT
            raise
        except MustAbort:
            await self._abort(transaction)
            transaction.outcome = Outcome.NOT
            return
        transaction.outcome = Outcome.COMMITTED
        self._go_on_as(answer)

    async def _abort(self, transaction: Transaction) -> None:
        transaction.identity = self._identity
        self._go_on_as(await self._end(committed=False))
        if self._flow.client_adds and self._in_doubt:  # batches that were not written left a gap in the sequences
            await self._init()

    async def _end(self, *, committed: bool) -> Any:
        kind = message("EndTxnRequest")
        request = kind(
            transactional_id=self._name, producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch, committed=committed,
        )  # fmt: skip
        return await self._coordinate(self._name, request, self._flow.end)

    def _go_on_as(self, answer: Any) -> None:
        if self._flow.client_adds:
            return
        before, self._identity = self._identity, Identity(answer.producer_id, answer.producer_epoch)
        if before.producer_id != self._identity.producer_id:  # the epochs of the old id are exhausted
            self._diary.beginnings.append(Beginning(self._name, self._identity, now()))
        elif not before < self._identity:
            self._diary.broken.append(f"each end raises the epoch: {self._name} was {before}, is {self._identity}")
        self._sequences.clear()

    # -- coordinators ---------------------------------------------------------------------------------------------
    async def _coordinate(self, key: str, request: Any, version: int, *, of: int = OF_TRANSACTIONS) -> Any:
        """Ask the coordinator, and retry until the answer is not retriable."""
        times = 0
        while True:
            times += 1
            answer = await self._ask_coordinator(key, of, request, version)
            error = ErrorCode.NETWORK_EXCEPTION if answer is None else _error(answer)
            if error is ErrorCode.NONE:
                return answer
            if error is ErrorCode.TRANSACTION_ABORTABLE:
                raise MustAbort(error)
            if error not in AGAIN:
                raise (RefusedAtOnce if times == 1 else Over)(error)
            if error is ErrorCode.NETWORK_EXCEPTION or error in ANOTHER_COORDINATOR:
                self._coordinators.pop((key, of), None)
            await asyncio.sleep(RETRY_S)

    async def _ask_coordinator(self, key: str, of: int, request: Any, version: int) -> Any:
        """None if there is no answer."""
        try:
            if (key, of) not in self._coordinators:
                find = message("FindCoordinatorRequest")
                answer = await self._client.ask_any(find(key=key, key_type=of), FIND)
                if answer.error_code:
                    return None
                self._coordinators[key, of] = answer.host
            return await self._client.ask(self._coordinators[key, of], request, version)
        except (OSError, TimeoutError):
            return None


def _error(answer: Any) -> ErrorCode:
    """The first error in the answer, wherever this kind of answer has its errors."""
    codes = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", None) or ():
        codes += [part.partition_error_code for part in topic.results_by_partition]
    for topic in getattr(answer, "topics", None) or ():
        codes += [part.error_code for part in topic.partitions]
    told = [ErrorCode(code) for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next((code for code in told if code is not ErrorCode.NONE), ErrorCode.NONE)
