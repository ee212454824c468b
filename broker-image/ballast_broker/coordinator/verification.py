"""Asks the transaction coordinator whether a partition belongs to a transaction, or to add it (KIP-890).

It is asked before a transaction's first batch in a partition, so that no record is outside the transaction the
coordinator will end. The coordinator leads the partition of `__transaction_state` that the id hashes to. At most one
request per broker is in flight; questions arriving meanwhile share the next. Returns errors, never raises. Loop thread
only.

A transaction may begin while markers of the previous one are being written: an addition is then retried for a while.
The producer would do so as well, but later and over a longer way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ballast_broker.coordinator.service import partition_for
from ballast_broker.coordinator.store import TRANSACTIONS_TOPIC
from ballast_broker.coordinator.transactions import ProducerIdentity
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import Endpoint
from ballast_broker.seams import Network
from ballast_broker.seldom import Seldom
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition, by_topic

if TYPE_CHECKING:
    from ballast_broker.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

VERSION = 5

Errors = dict[TopicPartition, ErrorCode]
OwnVerdict = Callable[[str, ProducerIdentity, list[TopicPartition]], Errors]
"""The local coordinator's verdict on whether the partitions belong to the transaction."""
OwnAddition = Callable[[str, ProducerIdentity, list[TopicPartition]], Awaitable[Errors]]
"""Addition by the local coordinator."""


@dataclass(slots=True, eq=False)
class _Question:
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    add: bool
    answer: asyncio.Future[Errors] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, errors: Errors) -> None:
        if not self.answer.done():
            self.answer.set_result(errors)

    def fail(self, error: ErrorCode) -> None:
        self.settle(dict.fromkeys(self.partitions, error))


class _Lane:
    """The questions queued for one broker, and the connection to it."""

    __slots__ = ("link", "task", "waiting")

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.waiting: list[_Question] = []
        self.task: asyncio.Task[None] | None = None

    def take(self) -> list[_Question]:
        """Take the questions of the next request, which may name each transaction only once."""
        taken: dict[str, _Question] = {}
        asked = [question for question in self.waiting if not question.answer.done()]
        self.waiting = [each for each in asked if taken.setdefault(each.transactional_id, each) is not each]
        return list(taken.values())


class TransactionVerifier:
    def __init__(
        self,
        image: Callable[[], MetadataImage],
        network: Network,
        listener: str,
        node_id: int,
        own_verdict: OwnVerdict,
        own_addition: OwnAddition,
        *,
        timeout_s: float,
        retry_s: float,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long a busy transaction is retried, every `retry_s`."""
        self._image = image
        self._network = network
        self._listener = listener
        self._node_id = node_id
        self._own_verdict = own_verdict
        self._own_addition = own_addition
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._lanes: dict[Endpoint, _Lane] = {}
        self._silent = Seldom()  # producers try again

    async def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition], *, add: bool
    ) -> Errors:
        """The errors of partitions that do not belong to the producer's open transaction; the others are left out.

        `add`: add them to it. Errors are the coordinator's, or NETWORK_EXCEPTION, COORDINATOR_NOT_AVAILABLE; the caller
        translates them for producers.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (self._patience_s if add else 0)
        while True:
            errors = await self._ask_once(transactional_id, producer_id, epoch, list(partitions), add)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in errors.values() or loop.time() + self._retry_s > give_up:
                return errors
            await asyncio.sleep(self._retry_s)

    def verify_here(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: list[TopicPartition]
    ) -> Errors | None:
        """The result of `verify` without `add`, at once; None if another broker has to be asked."""
        if self._coordinator_of(transactional_id) != self._node_id:
            return None
        return self._verdict_here(transactional_id, ProducerIdentity(producer_id, epoch), partitions)

    async def _ask_once(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: list[TopicPartition], add: bool
    ) -> Errors:
        leader = self._coordinator_of(transactional_id)
        if leader == self._node_id:
            producer = ProducerIdentity(producer_id, epoch)
            if add:
                return await self._add_here(transactional_id, producer, partitions)
            return self._verdict_here(transactional_id, producer, partitions)
        endpoint = None if leader is None else self._endpoint_of(leader)
        if endpoint is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._ask_at(endpoint, _Question(transactional_id, producer_id, epoch, partitions, add))

    def _verdict_here(
        self, transactional_id: str, producer: ProducerIdentity, partitions: list[TopicPartition]
    ) -> Errors:
        try:
            errors = self._own_verdict(transactional_id, producer, partitions)
        except Exception:
            return _failed(partitions)
        return _only_errors(errors)

    async def _add_here(
        self, transactional_id: str, producer: ProducerIdentity, partitions: list[TopicPartition]
    ) -> Errors:
        try:
            errors = await self._own_addition(transactional_id, producer, partitions)
        except Exception:
            return _failed(partitions)
        return _only_errors(errors)

    async def _ask_at(self, endpoint: Endpoint, question: _Question) -> Errors:
        lane = self._lanes.get(endpoint)
        if lane is None:
            lane = self._lanes[endpoint] = _Lane(PeerLink(self._network, endpoint, self._timeout_s))
        lane.waiting.append(question)
        if lane.task is None or lane.task.done():
            lane.task = asyncio.get_running_loop().create_task(self._ask_all(endpoint, lane), name="verification")
        return await question.answer

    def _coordinator_of(self, transactional_id: str) -> int | None:
        topic = self._image().topics.by_name(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return None
        led = topic.partitions.get(partition_for(transactional_id, len(topic.partitions)))
        return None if led is None else led.leader

    def _endpoint_of(self, leader: int) -> Endpoint | None:
        broker = self._image().cluster.brokers.get(leader)
        listener = None if broker is None else broker.listeners.get(self._listener)
        return None if listener is None else Endpoint(listener.host, listener.port)

    async def _ask_all(self, endpoint: Endpoint, lane: _Lane) -> None:
        while questions := lane.take():
            try:
                await self._ask(lane.link, questions)
            except (OSError, TimeoutError) as error:
                if self._silent.is_due(endpoint):
                    where = f"{endpoint.host}:{endpoint.port}"
                    logger.warning("transactions could not be verified at their coordinator, %s: %s", where, error)
                for question in questions:
                    question.fail(ErrorCode.NETWORK_EXCEPTION)
            except BaseException as error:
                for question in [*questions, *lane.waiting]:
                    question.fail(ErrorCode.NETWORK_EXCEPTION)
                if not isinstance(error, Exception):
                    raise
                logger.exception("transactions could not be verified")
                return

    async def _ask(self, link: PeerLink, questions: list[_Question]) -> None:
        response = await link.call(_request(questions), VERSION)
        by_id = {question.transactional_id: question for question in questions}
        if response.error_code:
            # The client can do nothing about this broker's lack of permission.
            told = ErrorCode(response.error_code)
            refused = ErrorCode.INVALID_TXN_STATE if told is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else told
            for question in questions:
                question.fail(refused)
            return
        for result in response.results_by_transaction:
            if result.transactional_id in by_id:
                by_id.pop(result.transactional_id).settle(_errors_in(result))
        for question in by_id.values():  # left out of the response
            question.fail(ErrorCode.UNKNOWN_SERVER_ERROR)

    def close(self) -> None:
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
            lane.link.close()
        self._lanes.clear()


def _only_errors(errors: Errors) -> Errors:
    return {partition: error for partition, error in errors.items() if error is not ErrorCode.NONE}


def _failed(partitions: list[TopicPartition]) -> Errors:
    logger.exception("transactions could not be verified")
    return dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)


def _request(questions: list[_Question]) -> Any:
    kind = message("AddPartitionsToTxnRequest")
    topic_kind = kind.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
    transactions = []
    for question in questions:
        topics = by_topic(question.partitions)
        transactions.append(
            kind.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.epoch,
                verify_only=not question.add,
                topics=[topic_kind(name=name, partitions=found) for name, found in topics.items()],
            )
        )
    return kind(transactions=transactions)


def _errors_in(result: Any) -> Errors:
    return {
        TopicPartition(topic.name, answer.partition_index): ErrorCode(answer.partition_error_code)
        for topic in result.topic_results
        for answer in topic.results_by_partition
        if answer.partition_error_code
    }
