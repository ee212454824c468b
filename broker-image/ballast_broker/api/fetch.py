"""Fetch: serves consumers and followers with `sendfile` from the log; waiting requests cost nothing.

Called by the dispatcher for every fetch. If enough data is available, no task or future is created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from math import ceil
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ballast_broker.api.authorizer import CLUSTER, Operation, Resource, topic
from ballast_broker.api.client_quotas import LONGEST_FETCH_WAIT_S
from ballast_broker.api.fetch_answer import Answer, Quota, nothing_for
from ballast_broker.api.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    FetchParameters,
    FetchSessions,
    Followed,
    Key,
    Session,
    asker_of,
)
from ballast_broker.api.placement_view import absence
from ballast_broker.api.request_time import Timed
from ballast_broker.net_reply import Pending, Reply
from ballast_broker.replication.quotas import ByteRate
from ballast_broker.replication.reading import (
    CONSUMER,
    MANY,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchEntry,
    FetchParams,
    FetchResult,
)
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.fetch import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_RACK,
    FIRST_WITH_TOPIC_ID,
    LAST_VERSION,
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    Parts,
    encode_fetch_response,
    parse_fetch,
)
from ballast_wire.fast.plain_fetch import Asked, PlainAnswer, PlainFetch, answer_plain_fetch, parse_plain_fetch
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.headers import skip_header_tags
from ballast_wire.names import ZERO_UUID, TopicPartition, uuid_of

if TYPE_CHECKING:
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.metrics.requests import RequestMetrics
    from ballast_broker.net_reply import Peer

# Errors of a topic that was deleted, or recreated, for requests by name.
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID})
ISOLATION_LEVELS: Final = (READ_UNCOMMITTED, READ_COMMITTED)
MAXIMUM_TARGETS: Final = 16_384
_READ: Final = Operation.READ

# As in `api.produce`: cache of what requests name.
Target = tuple[TopicPartition, UUID, Resource, PlainAnswer]


class Fetch:
    def __init__(self, broker: BrokerServices, sessions: FetchSessions, metrics: RequestMetrics) -> None:
        self._broker = broker
        self._replicas = broker.replicas
        self._authorizer = broker.authorizer
        self._allows = broker.authorizer.allows
        self._enforces = broker.authorizer.enforces
        self._sessions = sessions
        self._fetch_max_bytes: int = broker.config.fetch_max_bytes
        self._targets: dict[tuple[bytes, int, int], Target] = {}
        self.metrics = metrics
        self.bytes_out = broker.traffic.bytes_out

    def handle(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        peer: Peer,
        quota: Quota | None = None,
    ) -> Reply:
        """`position` is the end of the client id; `quota` is the client's, if it has one."""
        plain = parse_plain_fetch(frame, position, version) if quota is None else None
        if plain is not None and plain[3] in ISOLATION_LEVELS and len(plain[5]) <= MANY:
            targets = self._targets_of(plain, version, peer)
            if targets is not None:
                return self._handle_plain(plain, targets, correlation_id, version, peer.listener)
        if not FIRST_VERSION <= version <= LAST_VERSION:
            raise MalformedRequest(f"Fetch version {version} is not supported")
        if version >= FIRST_FLEXIBLE:
            position = skip_header_tags(frame, position)
        request = parse_fetch(frame, position, version)
        if request.isolation not in ISOLATION_LEVELS:
            return self._not_isolated(request, version, correlation_id)
        if request.replica_id >= 0 and quota is not None:  # replication has its own throttles
            quota.exempt(peer)
            quota = None
        # If a partition is named twice, the last entry counts, as in Kafka.
        named = {(key, each.partition): each for key, partitions in request.topics for each in partitions}
        if len(named) > MANY:
            return self._answer_in_turns(request, named, version, correlation_id, peer, quota)
        asked = [self._follow(key, each, peer, request.replica_id) for (key, _), each in named.items()]
        return self._answer(request, asked, version, correlation_id, peer, quota)

    def _answer_in_turns(
        self,
        request: FetchRequest,
        named: dict[Key, FetchPartition],
        version: int,
        correlation_id: int,
        peer: Peer,
        quota: Quota | None,
    ) -> Pending:
        """Look the partitions up in turns, then answer.

        A partition deleted after its look-up is noticed when it is read; changed permissions are noticed at the
        session's next request.
        """
        reply: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()

        async def go_through() -> None:
            try:
                checked_for = self._checked_for(peer, asker_of(request))
                asked = []
                async for (key, _), each in InTurns(named.items()):
                    asked.append(self._follow(key, each, peer, request.replica_id))
                if reply.done():  # the client is gone
                    return
                answered = self._answer(request, asked, version, correlation_id, peer, quota, checked_for, reply)
                if isinstance(answered, list):
                    reply.set_result(answered)
            except Exception as error:  # close the connection instead of waiting forever
                if not reply.done():
                    reply.set_exception(error)

        work: Coroutine[object, object, None] = go_through()
        time = None if quota is None else quota.time
        asyncio.get_running_loop().create_task(work if time is None else Timed(work, time))
        return Pending(reply, pipelined=False, for_this_client_only=True)

    def _answer(
        self,
        request: FetchRequest,
        asked: list[Followed],
        version: int,
        correlation_id: int,
        peer: Peer,
        quota: Quota | None,
        checked_for: Hashable = None,
        promised: asyncio.Future[Parts] | None = None,
    ) -> Reply:
        """`checked_for`: the permissions under which `asked` was looked up, if not the current ones."""
        rate = None if quota is None else quota.rate
        throttled_s = 0.0 if rate is None else min(rate.wait_s(), LONGEST_FETCH_WAIT_S)
        try:
            session, incremental = self._session(request, asked, version, peer, checked_for, may_open=not throttled_s)
        except ApiError as error:
            self.metrics.refused("Fetch", error.code)
            return list(encode_fetch_response(version, correlation_id, [], error=error.code))
        if quota is not None and throttled_s:
            quota.hold(throttled_s)
            throttle_ms = max(ceil(throttled_s * 1000), quota.tell_ms())
            return nothing_for(throttle_ms, version, correlation_id, session)
        tells_aborted = request.isolation == READ_COMMITTED and request.replica_id < 0
        answer = Answer(
            self._broker,
            self.metrics,
            session,
            None if incremental else asked,
            version,
            correlation_id,
            peer.listener,
            tells_aborted,
            quota,
        )
        params = self._params(request, version, rate)
        found: list[FetchResult] | asyncio.Future[list[FetchResult]]
        # A follower gets an error at once, a consumer after waiting for what can be read.
        if session is None:
            readable: list[FetchEntry] = [followed for followed in asked if followed.refusal is None]
            if request.replica_id >= 0 and len(readable) < len(asked):
                params.max_wait_ms = 0
            found = self._replicas.fetch(params, readable)
        else:
            refused = len(session.refused)
            if refused == len(session.followed) or (refused and request.replica_id >= 0):
                params.max_wait_ms = 0
            found = self._replicas.fetch_watched(params, session.watch)
        if isinstance(found, list):
            return answer.encode(found)
        return answer.later(found, promised)

    def _params(self, request: FetchRequest, version: int, rate: ByteRate | None) -> FetchParams:
        max_bytes = min(request.max_bytes, self._fetch_max_bytes)
        if rate is not None:
            max_bytes = rate.largest_read(max_bytes)
        return FetchParams(
            request.replica_id,
            request.replica_epoch,
            request.isolation,
            min(request.min_bytes, max_bytes),
            request.max_wait_ms,
            max_bytes,
            any_replica=version >= FIRST_WITH_RACK and request.replica_id < 0,
            rack=request.rack,
        )

    def _not_isolated(self, request: FetchRequest, version: int, correlation_id: int) -> Reply:
        """As in Kafka: nothing is read for an unknown isolation level."""
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        self.metrics.refused("Fetch", error)
        named = request.topics if version < FIRST_WITH_TOPIC_ID else []
        topics = [(key, [FetchAnswer(each.partition, error, aborted=[]) for each in asked]) for key, asked in named]
        return list(encode_fetch_response(version, correlation_id, topics, error=error))

    # -- without a session ----------------------------------------------------------------------------------------
    def _targets_of(self, plain: PlainFetch, version: int, peer: Peer) -> list[Target] | None:
        """None if any partition needs a closer look or may be rejected: leave that to the general path."""
        targets = []
        for asked in plain.asked:
            target = self._targets.get((asked[0], asked[1], version)) or self._new_target(asked, version)
            if target is None or (self._enforces and not self._allows(peer, _READ, target[2])):
                return None
            targets.append(target)
        if len(targets) > 1 and len({target[0] for target in targets}) < len(targets):
            return None  # one is named twice
        return targets

    def _new_target(self, asked: Asked, version: int) -> Target | None:
        raw, number = asked[:2]
        by_id = version >= FIRST_WITH_TOPIC_ID
        topic_id = uuid_of(raw) if by_id else ZERO_UUID
        if by_id:
            found = self._broker.image().topics.by_id(topic_id)
            name, topic_id = ("", topic_id) if found is None else (found.name, found.id)
        else:
            name = raw.decode(errors="replace")
        partition = TopicPartition(name, number)
        if not name or self._replicas.partition(partition) is None:
            return None
        if len(self._targets) >= MAXIMUM_TARGETS:
            self._targets.clear()
        target = (partition, topic_id, topic(name), PlainAnswer(version, topic_id if by_id else name, number))
        self._targets[raw, number, version] = target
        return target

    def _handle_plain(
        self, plain: PlainFetch, targets: list[Target], correlation_id: int, version: int, listener: str
    ) -> Reply:
        wait_ms, min_bytes, max_bytes, isolation, rack, every = plain
        entries = []
        for target, asked in zip(targets, every, strict=True):
            _, _, leader_epoch, offset, last_epoch, start, most = asked
            entries.append(FetchEntry(target[0], target[1], offset, last_epoch, leader_epoch, start, most))
        if max_bytes > self._fetch_max_bytes:
            max_bytes = self._fetch_max_bytes
        if min_bytes > max_bytes:  # do not wait for more than may be sent
            min_bytes = max_bytes
        any_replica = version >= FIRST_WITH_RACK
        params = FetchParams(CONSUMER, -1, isolation, min_bytes, wait_ms, max_bytes, any_replica, rack)
        found = self._replicas.fetch(params, entries)
        committed = isolation == READ_COMMITTED
        if isinstance(found, list) and all(result.is_plain for result in found):
            told = []
            for target, result in zip(targets, found, strict=True):
                data = result.slice
                if data is not None:
                    self.bytes_out[target[0]] += data.size
                offsets = (result.high_watermark, result.last_stable_offset, result.log_start_offset)
                told.append((target[3], offsets, data))
            return answer_plain_fetch(version, correlation_id, committed, told)
        return self._answer_followed(found, targets, correlation_id, version, listener, committed)

    def _answer_followed(
        self,
        found: list[FetchResult] | asyncio.Future[list[FetchResult]],
        targets: list[Target],
        correlation_id: int,
        version: int,
        listener: str,
        committed: bool,
    ) -> Reply:
        """Answer later, or with more than offsets and data, as the general path does."""
        by_id = version >= FIRST_WITH_TOPIC_ID
        asked = [
            Followed(partition, topic_id, -1, key=(topic_id if by_id else partition.topic, partition.partition))
            for partition, topic_id, _, _ in targets
        ]
        answer = Answer(self._broker, self.metrics, None, asked, version, correlation_id, listener, committed)
        if not isinstance(found, list):
            return answer.later(found)
        if any(result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for result in found):
            self._targets.clear()  # deleted partitions take the general path from now on
        pairs = list(zip(asked, found, strict=True))
        for followed, result in pairs if by_id else ():
            if result.error in GONE and not self._broker.image().topics.by_id(followed.topic_id):
                followed.refusal = ErrorCode.UNKNOWN_TOPIC_ID
        return answer.encode([result for followed, result in pairs if followed.refusal is None])

    # -- sessions -------------------------------------------------------------------------------------------------
    def _session(
        self,
        request: FetchRequest,
        asked: list[Followed],
        version: int,
        peer: Peer,
        checked_for: Hashable,
        *,
        may_open: bool,
    ) -> tuple[Session | None, bool]:
        """Return the session, if any, and whether the response is incremental. A throttled client may not open one."""
        uses_topic_ids = version >= FIRST_WITH_TOPIC_ID
        asker = asker_of(request)
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.drop(request.session_id)
            if request.session_epoch == FINAL_EPOCH or not may_open:
                return None, False
            opened = self._sessions.open(asked, asker, uses_topic_ids=uses_topic_ids)
            if opened is not None:
                opened.checked_for = checked_for or self._checked_for(peer, asker)
            if opened is not None and opened.of_follower:
                self._sessions.ends_with(peer, opened)
            return opened, False
        session = self._sessions.take(request, uses_topic_ids)
        session.asked_by(asker)
        session.update(asked, [(key, number) for key, numbers in request.forgotten for number in numbers])
        if not session.followed:
            self._sessions.drop(session.session_id)
            return None, False
        again = list(session.refused.values())
        again += [due for due in session.watch.due if isinstance(due, Followed) and self._is_away(due)]
        for followed in again:
            self._look_up(followed, peer, of_follower=request.replica_id >= 0)
            session.settle(followed)
        if self._enforces:
            self._check_again(session, peer)
        return session, True

    def _is_away(self, followed: Followed) -> bool:
        return self._replicas.partition(followed.topic_partition) is None

    def _check_again(self, session: Session, peer: Peer) -> None:
        """Check again if permissions changed, or if another client continues the session: its id is no secret."""
        checked_for = self._checked_for(peer, session.asker)
        if session.checked_for == checked_for:
            return
        session.checked_for = checked_for
        for followed in list(session.followed.values()):
            was_refused = followed.refusal is not None
            self._look_up(followed, peer, of_follower=session.of_follower)
            if was_refused != (followed.refusal is not None):
                session.settle(followed)

    def _checked_for(self, peer: Peer, asker: FetchParameters) -> Hashable:
        return self._authorizer.generation, peer.principal, peer.host, asker.replica_id >= 0

    def _follow(self, key: str | UUID, asked: FetchPartition, peer: Peer, replica_id: int) -> Followed:
        followed = Followed(
            TopicPartition("" if isinstance(key, UUID) else key, asked.partition),
            key if isinstance(key, UUID) else ZERO_UUID,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.current_leader_epoch,
            asked.log_start_offset,
            asked.max_bytes,
            key=(key, asked.partition),
        )
        self._look_up(followed, peer, of_follower=replica_id >= 0)
        return followed

    def _look_up(self, followed: Followed, peer: Peer, *, of_follower: bool) -> None:
        """Check that the topic exists and may be read. A client that merely claims to be a follower is told nothing."""
        if of_follower and not self._allows(peer, Operation.CLUSTER_ACTION, CLUSTER):
            followed.refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return
        if isinstance(followed.key[0], UUID):
            found = self._broker.image().topics.by_id(followed.topic_id)
            if found is not None:
                followed.topic_partition = TopicPartition(found.name, followed.key[1])
                followed.topic_id = found.id
            elif not followed.topic_partition.topic:  # otherwise the session knew its name
                followed.refusal = ErrorCode.UNKNOWN_TOPIC_ID
                return
        partition = followed.topic_partition
        followed.refusal = None
        if not of_follower and self._enforces and not self._allows(peer, _READ, topic(partition.topic)):
            followed.refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif self._is_away(followed) and absence(self._broker.image(), partition) in GONE:
            followed.refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
