"""Builds the response to a fetch, now or later: all partitions of the request, or a session's incremental update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from ballast_broker.api.fetch_sessions import NO_SESSION, Followed, Key, Session
from ballast_broker.api.placement_view import absence
from ballast_broker.api.produce_answers import node_endpoints
from ballast_broker.api.request_time import RequestTime
from ballast_broker.net_reply import Pending, Reply
from ballast_broker.replication.quotas import ByteRate
from ballast_broker.replication.reading import MANY, FetchResult, give_back
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.fetch import FIRST_WITH_ENDPOINTS, EpochEnd, FetchAnswer, Parts, encode_fetch_response
from ballast_wire.fast.produce import NodeEndpoint

if TYPE_CHECKING:
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.metrics.requests import RequestMetrics
    from ballast_broker.net_reply import Peer

# Kafka answers these with an empty list of aborted transactions, other errors with null.
UNREADABLE: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
Topics = dict[str | UUID, list[FetchAnswer]]
_new_tuple: Final = tuple.__new__  # half the price of a NamedTuple's own


class Quota(NamedTuple):
    """The quotas of the client."""

    rate: ByteRate | None  # of bytes
    hold: Callable[[float], None]  # stop reading from its connection for this long
    time: RequestTime | None = None

    def tell_ms(self) -> int:
        return 0 if self.time is None else self.time.tell_ms()

    def exempt(self, peer: Peer) -> None:
        """Charge this request to nobody, from its beginning on."""
        if self.time is not None:
            self.time.exempt()
        peer.time = None


class Answer:
    """One request's response."""

    __slots__ = (
        "_asked",
        "_broker",
        "_bytes_out",
        "_correlation_id",
        "_listener",
        "_metrics",
        "_nothing_aborted",
        "_quota",
        "_session",
        "_version",
    )

    def __init__(
        self,
        broker: BrokerServices,
        metrics: RequestMetrics,
        session: Session | None,
        asked: list[Followed] | None,
        version: int,
        correlation_id: int,
        listener: str,
        tells_aborted: bool,
        quota: Quota | None = None,
    ) -> None:
        self._broker = broker
        self._bytes_out = broker.traffic.bytes_out
        self._metrics = metrics
        self._session = session
        self._asked = asked  # answer each of these, in this order; None: only the session's changes
        self._version = version
        self._correlation_id = correlation_id
        self._listener = listener
        self._quota = quota
        # An empty list for read_committed consumers, null for others.
        self._nothing_aborted: list[tuple[int, int]] | None = [] if tells_aborted else None

    def later(
        self, results: asyncio.Future[list[FetchResult]], promised: asyncio.Future[Parts] | None = None
    ) -> Pending:
        """`promised`: the reply, if the connection waits for it already."""
        reply: asyncio.Future[Parts] = asyncio.get_running_loop().create_future() if promised is None else promised

        def done(found: asyncio.Future[list[FetchResult]]) -> None:
            if found.cancelled():
                reply.cancel()
            elif (failure := found.exception()) is not None:
                if not reply.done():  # close the connection instead of waiting forever
                    reply.set_exception(failure)
            elif reply.done():  # the client is gone
                give_back(found.result(), None if self._session is None else self._session.watch)
            elif self._asks_for_many(found.result()):
                asyncio.get_running_loop().create_task(self._encode_in_turns(found.result(), reply))
            else:
                try:
                    reply.set_result(self.encode(found.result()))
                except Exception as error:  # close the connection instead of waiting forever
                    reply.set_exception(error)

        results.add_done_callback(done)
        reply.add_done_callback(lambda gone: results.cancel() if gone.cancelled() else None)
        return Pending(reply, pipelined=False, for_this_client_only=True)

    def _asks_for_many(self, results: list[FetchResult]) -> bool:
        return len(results) > MANY or (self._asked is not None and len(self._asked) > MANY)

    def encode(self, results: list[FetchResult]) -> Parts:
        if self._is_gone:
            return self._encode_gone(results)
        topics: Topics = {}
        leaders: set[int] = set()
        for followed, result in self._to_tell(results):
            self._add(topics, leaders, followed, result)
        return self._encode(topics, leaders)

    async def _encode_in_turns(self, results: list[FetchResult], reply: asyncio.Future[Parts]) -> None:
        """Encode in turns; if the client or the session goes away meanwhile, release the results."""
        topics: Topics = {}
        leaders: set[int] = set()
        try:
            async for followed, result in InTurns([] if self._is_gone else self._to_tell(results)):
                self._add(topics, leaders, followed, result)
            parts = self._encode_gone(results) if self._is_gone else self._encode(topics, leaders)
        except Exception as error:  # close the connection instead of waiting forever
            give_back(results)
            if not reply.done():
                reply.set_exception(error)
            return
        if reply.done():
            give_back(results)
        else:
            reply.set_result(parts)

    @property
    def _is_gone(self) -> bool:
        """The session was evicted while this request waited."""
        return self._session is not None and self._session.closed

    def _encode_gone(self, results: list[FetchResult]) -> Parts:
        give_back(results)
        gone = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._metrics.refused("Fetch", gone)
        return encode_fetch_response(self._version, self._correlation_id, [], error=gone)

    def _add(self, topics: Topics, leaders: set[int], followed: Followed, result: FetchResult) -> None:
        topics.setdefault(followed.key[0], []).append(self._answer_of(followed.key, result, leaders))
        if self._quota is not None and self._quota.rate is not None and result.slice is not None:
            self._quota.rate.record(result.slice.size)

    def _encode(self, topics: Topics, leaders: set[int]) -> Parts:
        return encode_fetch_response(
            self._version,
            self._correlation_id,
            list(topics.items()),
            session_id=self._session.session_id if self._session is not None else NO_SESSION,
            leaders=self._endpoints(leaders),
            throttle_ms=0 if self._quota is None else self._quota.tell_ms(),
        )

    def _to_tell(self, results: list[FetchResult]) -> Iterator[tuple[Followed, FetchResult]]:
        session = self._session
        for followed, result in self._pairs(results):
            if session is not None:
                if self._asked is None and not followed.is_news(result):
                    result.release()
                    continue
                followed.told(result)
                if result.slice is not None and result.slice.size:
                    session.watch.put_last(followed)
            yield followed, result

    def _pairs(self, results: list[FetchResult]) -> Iterator[tuple[Followed, FetchResult]]:
        if self._asked is not None:
            # In a session, results come in the order of its due list; without one, in request order.
            due = {} if self._session is None else {result.entry: result for result in results}
            found = iter(results)
            for followed in self._asked:
                if followed.refusal is not None:
                    yield followed, _refused(followed, followed.refusal)
                elif self._session is None:
                    yield followed, next(found)
                elif followed in due:
                    yield followed, due[followed]
            return
        for result in results:
            assert isinstance(result.entry, Followed)
            yield result.entry, result
        if self._session is not None:
            for followed in list(self._session.refused.values()):
                yield followed, _refused(followed, followed.refusal or ErrorCode.NONE)

    def _answer_of(self, key: Key, result: FetchResult, leaders: set[int]) -> FetchAnswer:
        if result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._look_elsewhere(result)
        leader = result.current_leader if self._version >= FIRST_WITH_ENDPOINTS else None
        if leader is not None and leader[0] >= 0:
            leaders.add(leader[0])
        if result.error is not ErrorCode.NONE:
            self._metrics.refused("Fetch", result.error)
        if result.slice is not None:
            self._bytes_out[result.topic_partition] += result.slice.size
        answer = (
            key[1],
            result.error,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            result.aborted or self._aborted_of(result),
            result.preferred_replica,
            result.slice,
            EpochEnd(*result.diverging_epoch) if result.diverging_epoch is not None else None,
            leader,
        )
        return _new_tuple(FetchAnswer, answer)

    def _look_elsewhere(self, result: FetchResult) -> None:
        """If another broker leads the partition, tell the client so that it refreshes its metadata."""
        image, partition = self._broker.image(), result.topic_partition
        result.error = absence(image, partition)
        if result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            now = image.topics.by_name(partition.topic)
            assert now is not None
            registration = now.partitions[partition.partition]
            result.current_leader = (registration.leader, registration.leader_epoch)

    def _aborted_of(self, result: FetchResult) -> list[tuple[int, int]] | None:
        if result.error in UNREADABLE:
            return []
        was_read = result.error is ErrorCode.NONE and result.diverging_epoch is None
        return self._nothing_aborted if was_read else None

    def _endpoints(self, ids: set[int]) -> list[NodeEndpoint]:
        if not ids or self._version < FIRST_WITH_ENDPOINTS:
            return []
        return node_endpoints(self._broker, ids, self._listener)


def nothing_for(throttle_ms: int, version: int, correlation_id: int, session: Session | None) -> Reply:
    """An empty response for a client over its quota."""
    session_id = NO_SESSION if session is None else session.session_id
    return list(encode_fetch_response(version, correlation_id, [], session_id=session_id, throttle_ms=throttle_ms))


def _refused(followed: Followed, refusal: ErrorCode) -> FetchResult:
    return FetchResult(followed.topic_partition, refusal)
