"""Builds the response to a Produce: at once, or when everything it waits for is done.

Also limits the work per turn of the loop: a request with thousands of partitions takes several.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from ballast_broker.api.request_time import Timed
from ballast_broker.net_reply import Pending, Reply
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.produce import (
    FIRST_WITH_LEADER,
    NodeEndpoint,
    ProduceAnswer,
    ProduceRequest,
    encode_produce_response,
)
from ballast_wire.fast.reader import MalformedRequest

if TYPE_CHECKING:
    from ballast_broker.api.client_quotas import Throttle
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.api.transactional import Transactional
    from ballast_broker.metrics.requests import RequestMetrics
    from ballast_wire.names import TopicPartition

ACKS_ALL: Final = -1
LONGEST_TOLD: Final = 249  # of a topic's name; a legal one is no longer
Topics = list[tuple[str | UUID, list[ProduceAnswer]]]
Outcome = asyncio.Future[ErrorCode] | asyncio.Future[ProduceAnswer]
Wait = tuple[list[ProduceAnswer], int, Outcome]  # answers, index of the one affected, what it waits for


class ProduceRefused(MalformedRequest):
    """With acks=0 there is no response for an error: close the connection, so that the client refreshes metadata."""


def refused_silently(topic: str | UUID, partition: int, why: str) -> ProduceRefused:
    where = f"{str(topic)[:LONGEST_TOLD]}-{partition}"
    return ProduceRefused(f"a produce to {where} without acks was refused: {why}")


class Answers:
    """The answers to one request."""

    def __init__(
        self,
        broker: BrokerServices,
        metrics: RequestMetrics,
        version: int,
        correlation_id: int,
        listener: str,
        acks: int = ACKS_ALL,
        throttle: Throttle | None = None,
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._version = version
        self._correlation_id = correlation_id
        self._listener = listener
        self._acks = acks
        self.throttle = throttle
        self.topics: Topics = []
        self.waits: list[Wait] = []

    def encode(self) -> bytes:
        version, throttle = self._version, self.throttle
        leaders = self._leaders() if version >= FIRST_WITH_LEADER else []
        throttle_ms = 0 if throttle is None else throttle.tell_ms()
        return encode_produce_response(version, self._correlation_id, self.topics, leaders, throttle_ms)

    def _leaders(self) -> list[NodeEndpoint]:
        ids = {answer.leader_id for _, answers in self.topics for answer in answers if answer.leader_id >= 0}
        return node_endpoints(self._broker, ids, self._listener) if ids else []

    def reply(self) -> Reply:
        if self.waits:
            return self._later()
        if self._acks == 0:
            if self.throttle is not None and self.throttle.time is not None:
                self.throttle.time.exempt()  # as in Kafka: there is no response to tell it
            self._refuse_silently()
            return None
        return self.encode()

    def _refuse_silently(self) -> None:
        """With acks=0 there is no response: an error closes the connection."""
        for topic, answers in self.topics:
            for answer in answers:
                if answer.error:
                    raise refused_silently(topic, answer.partition, ErrorCode(answer.error).name)

    def _later(self) -> Pending:
        waits = self.waits
        reply: asyncio.Future[tuple[bytes] | None] = asyncio.get_running_loop().create_future()
        left = len(waits)

        def settle(answers: list[ProduceAnswer], index: int, future: Outcome) -> None:
            nonlocal left
            left -= 1
            if reply.done():
                return
            if future.cancelled():  # the broker is shutting down
                reply.cancel()
                return
            try:
                outcome = future.result()
            except Exception as error:
                reply.set_exception(ConnectionAbortedError(f"a produce was not finished: {error!r}"))
                return
            if isinstance(outcome, ErrorCode):
                outcome = (
                    answers[index] if outcome is ErrorCode.NONE else ProduceAnswer(answers[index].partition, outcome)
                )
            answers[index] = outcome
            if outcome.error:
                self._metrics.refused("Produce", outcome.error)
            if not left:
                answer()

        def answer() -> None:
            if self._acks:
                reply.set_result((self.encode(),))
                return
            try:
                self._refuse_silently()
            except ProduceRefused as refused:
                reply.set_exception(refused)
            else:
                reply.set_result(None)

        for answers, index, future in waits:
            future.add_done_callback(lambda done, a=answers, i=index: settle(a, i, done))  # type: ignore[misc]
        # While a disk stalls, take one request at a time from a connection: that bounds what waits in memory.
        by_thread = any(isinstance(future, asyncio.Task) for _, _, future in waits)
        return Pending(reply, pipelined=not by_thread)


class Appending(NamedTuple):
    """One partition of a request whose batches are yet to be appended."""

    said: list[ProduceAnswer]
    partition: TopicPartition
    topic_id: UUID | None
    batches: memoryview | None
    refusal: ErrorCode | None


class LaterAppends:
    """The rest of a request that exceeded its share of one turn of the loop.

    The transaction coordinator is asked one question for all partitions, so nothing is deferred once there is one to
    ask about.
    """

    def __init__(
        self,
        append: Callable[..., None],
        request: ProduceRequest,
        answers: Answers,
        transaction: Transactional | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._append = append
        self._request = request
        self._answers = answers
        self._transaction = transaction
        self._now = monotonic
        self._left: deque[Appending] = deque()

    def put_off(self, one: Appending) -> None:
        batches = one.batches
        if batches is not None:  # the connection reuses the buffer they are in
            one = one._replace(batches=memoryview(bytearray(batches)))
        self._left.append(one)

    def reply(self) -> Reply:
        if not self._left:
            return self._answers.reply()
        loop = asyncio.get_running_loop()
        appended: asyncio.Future[None] = loop.create_future()
        work: Coroutine[object, object, tuple[bytes] | None] = self._go_on(appended)
        time = None if self._answers.throttle is None else self._answers.throttle.time
        return Pending(loop.create_task(work if time is None else Timed(work, time)), pipelined=True, begun=appended)

    def _goes_through(self) -> bool:
        """Append for one turn; return whether nothing is left."""
        left, transaction, until_s = self._left, self._transaction, self._now() + LONGEST_TURN_S
        while left:
            self._append(*left.popleft(), self._request, self._answers, transaction)
            if self._now() > until_s and (transaction is None or not transaction.asks):
                break
        return not left

    async def _go_on(self, appended: asyncio.Future[None]) -> tuple[bytes] | None:
        """Append the rest, then let the connection's next request start. On failure the connection is closed."""
        while True:
            if self._goes_through():
                break
            await asyncio.sleep(0)
        reply = self._answers.reply()
        if not isinstance(reply, Pending):
            appended.set_result(None)
            assert reply is None or isinstance(reply, bytes)
            return None if reply is None else (reply,)
        if reply.pipelined:
            appended.set_result(None)
        parts: tuple[bytes] | None = await reply.future
        if not reply.pipelined:
            appended.set_result(None)
        return parts


def node_endpoints(broker: BrokerServices, ids: set[int], listener: str) -> list[NodeEndpoint]:
    """The endpoints of these brokers on `listener`."""
    brokers = broker.image().cluster.brokers
    found = []
    for node_id in sorted(ids):
        node = brokers.get(node_id)
        endpoint = node.listeners.get(listener) if node is not None else None
        if node is not None and endpoint is not None:
            found.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, node.rack))
    return found
