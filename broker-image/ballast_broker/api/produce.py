"""Produce: appends batches to the log straight from the connection's buffer; the response may wait for the ISR.

Called by the dispatcher for every produce: with acks 0 or 1, or if this broker is the whole ISR, no task or future is
created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ballast_broker.api.authorizer import Operation, Resource, topic
from ballast_broker.api.placement_view import absence
from ballast_broker.api.produce_answers import ACKS_ALL, Answers, Appending, LaterAppends, Outcome, refused_silently
from ballast_broker.api.rejected_batches import RejectedBatches
from ballast_broker.api.transactional import UNAUTHORIZED, NotVerified, Transactional
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ballast_broker.net_reply import Reply
from ballast_broker.storage.errors import DirectoryStalls, InvalidRecords
from ballast_broker.storage.producers import NOT_ASKED, Verification
from ballast_broker.storage.validation import CLIENT, TRANSACTION
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.compression import Codec
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.produce import (
    FIRST_FLEXIBLE,
    FIRST_VERSION,
    FIRST_WITH_TOPIC_ID,
    FIRST_WITH_ZSTD,
    LAST_VERSION,
    ProduceAnswer,
    ProduceRequest,
    each_once,
    good_answer,
    parse_produce,
)
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.fast.single_produce import Single, SingleAnswer, parse_single_produce
from ballast_wire.headers import parse_request_header, skip_header_tags
from ballast_wire.names import TopicPartition, uuid_of
from ballast_wire.records import ATTRIBUTES_POSITION, CODEC_MASK, HEADER_BYTES

if TYPE_CHECKING:
    from ballast_broker.api.client_quotas import Throttle
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.metrics.requests import RequestMetrics
    from ballast_broker.net_reply import Peer
    from ballast_broker.storage.slices import AppendInfo

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
ADMIN_CLIENT_ID: Final = "__admin_client"

MAXIMUM_TARGETS: Final = 16_384
_WRITE: Final = Operation.WRITE
_NONE: Final = ErrorCode.NONE
_new_tuple: Final = tuple.__new__  # half the price of a NamedTuple's own
# Errors found before the log was consulted.
WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

# Cache of what requests for a partition name. A topic id belongs to one name forever, so entries never become wrong;
# whether the partition is here, under this id, is checked with the replicas every time.
Target = tuple[TopicPartition, UUID | None, Resource, SingleAnswer]


class Produce:
    def __init__(self, broker: BrokerServices, metrics: RequestMetrics) -> None:
        self._broker = broker
        self._replicas = broker.replicas
        self._allows = broker.authorizer.allows
        self._enforces = broker.authorizer.enforces
        self._targets: dict[tuple[bytes, int, int], Target] = {}
        self._metrics = metrics
        self._bytes_in = broker.traffic.bytes_in
        self._refusals = RejectedBatches(broker.clock.monotonic)

    def handle(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        peer: Peer,
        throttle: Throttle | None = None,
    ) -> Reply:
        """`position` is the end of the client id; `throttle` is what the response tells."""
        if version >= FIRST_WITH_ZSTD and throttle is None:
            single = parse_single_produce(frame, position, version)
            if single is not None:
                key = (single[0], single[3], version)
                target = self._targets.get(key) or self._new_target(key)
                if target is not None and (not self._enforces or self._allows(peer, _WRITE, target[2])):
                    try:
                        return self._handle_single(single, target, version, correlation_id, peer.listener)
                    except DirectoryStalls:
                        pass  # nothing was done: the general path appends by thread
        if not FIRST_VERSION <= version <= LAST_VERSION:
            raise MalformedRequest(f"Produce version {version} is not supported")
        if version >= FIRST_FLEXIBLE:
            position = skip_header_tags(frame, position)
        return self._handle_any(frame, position, version, correlation_id, peer, throttle)

    # -- one batch for one partition ------------------------------------------------------------------------------
    def _new_target(self, key: tuple[bytes, int, int]) -> Target | None:
        """None if it needs a closer look or may be rejected: leave that to the general path."""
        raw, partition, version = key
        topic_id, name = None, ""
        if version >= FIRST_WITH_TOPIC_ID:
            found = self._broker.image().topics.by_id(uuid_of(raw))
            name, topic_id = ("", None) if found is None else (found.name, found.id)
        else:
            name = raw.decode(errors="replace")
        if (
            not name
            or name in INTERNAL_TOPICS
            or self._broker.replicas.partition(TopicPartition(name, partition)) is None
        ):
            return None
        if len(self._targets) >= MAXIMUM_TARGETS:
            self._targets.clear()
        answer = SingleAnswer(version, topic_id or name, partition)
        target = (TopicPartition(name, partition), topic_id, topic(name), answer)
        self._targets[key] = target
        return target

    def _handle_single(self, single: Single, target: Target, version: int, correlation_id: int, listener: str) -> Reply:
        _, acks, timeout_ms, number, batches = single
        topic_partition, topic_id, _, answer = target
        replicas = self._replicas
        try:
            if not -1 <= acks <= 1:
                raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
            if self._refusals.refused:
                self._check_refusals(topic_partition, topic_id, batches)
            info = replicas.append(topic_partition, topic_id, batches, acks)
        except ApiError as refusal:
            error = refusal
            if acks == 0:
                raise refused_silently(topic_partition.topic, number, str(error)) from error
            if topic_id is not None and self._broker.image().topics.by_id(topic_id) is None:
                error = ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            error = self._of_where_it_is(topic_partition, error)
            self._note_refusal(topic_partition, topic_id, batches, error.code)
            self._metrics.refused("Produce", error.code)
            answers = self._answers(version, correlation_id, listener)
            answers.topics.append((topic_id or topic_partition.topic, [self._refused(topic_partition, error)]))
            return answers.encode()
        self._bytes_in[topic_partition] += len(batches)
        if acks == 0:
            return None
        first_offset, last_offset, append_time, start_offset, _, _ = info
        if acks == ACKS_ALL:
            outcome = replicas.await_committed(topic_partition, last_offset + 1, timeout_ms)
            if outcome is not _NONE:
                said = [ProduceAnswer(number, 0, first_offset, append_time, start_offset)]
                answers = self._answers(version, correlation_id, listener)
                answers.topics.append((topic_id or topic_partition.topic, said))
                return self._settled(answers, said, outcome)
        return answer.frame(correlation_id, first_offset, append_time, start_offset)

    def _settled(self, answers: Answers, said: list[ProduceAnswer], outcome: ErrorCode | Outcome) -> Reply:
        """The reply to one batch with acks=all that is not committed yet, or will not be."""
        if not isinstance(outcome, ErrorCode):
            answers.waits.append((said, 0, outcome))
            return answers.reply()
        self._metrics.refused("Produce", outcome)
        said[0] = ProduceAnswer(said[0].partition, outcome)
        return answers.encode()

    def _answers(self, version: int, correlation_id: int, listener: str) -> Answers:
        return Answers(self._broker, self._metrics, version, correlation_id, listener)

    # -- all shapes -----------------------------------------------------------------------------------------------
    def _handle_any(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        peer: Peer,
        throttle: Throttle | None,
    ) -> Reply:
        request = parse_produce(frame, position, version)
        transaction = None
        if request.transactional_id is not None:
            transaction = Transactional(self._broker, request, version, peer)
        answers = Answers(
            self._broker, self._metrics, version, correlation_id, peer.listener, request.acks, throttle
        )  # fmt: skip
        later: LaterAppends | None = None
        now = self._broker.clock.monotonic
        until_s = now() + LONGEST_TURN_S
        for key, partitions in each_once(request.topics):
            name, topic_id, refusal = self._target(key, frame, peer)
            if transaction is not None and transaction.refusal is UNAUTHORIZED:
                refusal = UNAUTHORIZED
            said: list[ProduceAnswer] = []
            answers.topics.append((key, said))
            for number, batches in partitions:
                refused = refusal
                if refused is None and version < FIRST_WITH_ZSTD and _is_zstd(batches):
                    refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                partition = _new_tuple(TopicPartition, (name, number))
                if later is not None:
                    later.put_off(Appending(said, partition, topic_id, batches, refused))
                    continue
                self._append_one(said, partition, topic_id, batches, refused, request, answers, transaction)
                if now() > until_s and (transaction is None or not transaction.asks):
                    later = LaterAppends(self._append_one, request, answers, transaction, now)
        return answers.reply() if later is None else later.reply()

    def _append_one(
        self,
        said: list[ProduceAnswer],
        partition: TopicPartition,
        topic_id: UUID | None,
        batches: memoryview | None,
        refused: ErrorCode | None,
        request: ProduceRequest,
        answers: Answers,
        transaction: Transactional | None,
    ) -> None:
        future: Outcome | None = None
        if refused is not None:
            answer = ProduceAnswer(partition.partition, refused)
            self._note_refusal(partition, topic_id, batches, refused)
        else:
            answer, future = self._append(partition, topic_id, batches, request, transaction)
        if future is not None:
            answers.waits.append((said, len(said), future))
        elif answer.error:
            self._metrics.refused("Produce", answer.error)
        said.append(answer)

    def _target(self, key: str | UUID, frame: memoryview, peer: Peer) -> tuple[str, UUID | None, ErrorCode | None]:
        """The topic's name and id, or the reason not to write to it."""
        if isinstance(key, UUID):
            found = self._broker.image().topics.by_id(key)
            if found is None:
                return "", key, ErrorCode.UNKNOWN_TOPIC_ID
            name, topic_id = found.name, found.id  # mostly the replica's own object: comparing another is slow
        else:
            name, topic_id = key, None
        if not self._allows(peer, _WRITE, topic(name)):
            return name, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if name in INTERNAL_TOPICS and parse_request_header(frame).client_id != ADMIN_CLIENT_ID:
            return name, None, ErrorCode.INVALID_TOPIC_EXCEPTION
        return name, topic_id, None

    def _append(
        self,
        partition: TopicPartition,
        topic_id: UUID | None,
        batches: memoryview | None,
        request: ProduceRequest,
        transaction: Transactional | None,
    ) -> tuple[ProduceAnswer, Outcome | None]:
        number, acks, replicas = partition.partition, request.acks, self._broker.replicas
        if acks not in (-1, 0, 1):
            unknown = absence(self._broker.image(), partition)
            known = unknown is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ProduceAnswer(number, ErrorCode.INVALID_REQUIRED_ACKS if known else unknown), None
        origin, verified = CLIENT, None
        if transaction is not None:
            if transaction.refusal is not None:
                return ProduceAnswer(number, transaction.refusal), None
            origin, verified = TRANSACTION, transaction.hold(partition, batches)
        try:
            if batches is None or not len(batches):
                raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have records for every partition.")
            if self._refusals.refused:
                self._check_refusals(partition, topic_id, batches)
            if (
                transaction is not None
                and verified is not None
                and verified is not NOT_ASKED
                and not transaction.agreed_here(partition)
            ):
                later = self._append_verified(partition, topic_id, bytearray(batches), request, transaction, verified)
                return ProduceAnswer(number, 0), later
            info = replicas.append(partition, topic_id, batches, acks, origin=origin, verified=verified)
        except DirectoryStalls:
            assert batches is not None
            copy = bytearray(batches)
            appending = replicas.append_by_thread(partition, copy, acks, origin=origin, verified=verified)
            return ProduceAnswer(number, 0), self._answer_later(partition, topic_id, copy, request, appending)
        except ApiError as refusal:
            error = self._of_where_it_is(partition, refusal)
            self._note_refusal(partition, topic_id, batches, error.code)
            return self._refused(partition, error), None
        self._bytes_in[partition] += len(batches)
        first_offset, last_offset, append_time, start_offset, _, _ = info
        answer = good_answer(number, first_offset, append_time, start_offset)
        if acks != ACKS_ALL:
            return answer, None
        outcome = replicas.await_committed(partition, last_offset + 1, request.timeout_ms)
        if not isinstance(outcome, ErrorCode):
            return answer, outcome
        if outcome is not ErrorCode.NONE:
            return ProduceAnswer(number, outcome), None
        return answer, None

    def _append_verified(
        self,
        partition: TopicPartition,
        topic_id: UUID | None,
        batches: bytearray,
        request: ProduceRequest,
        transaction: Transactional,
        verified: Verification,
    ) -> asyncio.Task[ProduceAnswer]:
        """A transaction begins in the partition: ask its coordinator first."""
        replicas, acks = self._broker.replicas, request.acks

        async def ask_and_append() -> AppendInfo:
            await transaction.answer_for(partition)
            if self._refusals.refused:
                self._check_refusals(partition, topic_id, memoryview(batches))
            try:
                return replicas.append(partition, topic_id, batches, acks, origin=TRANSACTION, verified=verified)
            except DirectoryStalls:
                slowly = replicas.append_by_thread(partition, batches, acks, origin=TRANSACTION, verified=verified)
            return await slowly

        return self._answer_later(partition, topic_id, batches, request, ask_and_append())

    def _answer_later(
        self,
        partition: TopicPartition,
        topic_id: UUID | None,
        batches: bytearray,
        request: ProduceRequest,
        appending: Coroutine[Any, Any, AppendInfo],
    ) -> asyncio.Task[ProduceAnswer]:
        """Append in a task, for a stalled directory (LOG-32) or to ask a coordinator. Tasks start in creation order."""
        replicas, number, acks = self._broker.replicas, partition.partition, request.acks

        async def append() -> ProduceAnswer:
            try:
                info = await appending
            except ApiError as refusal:
                error = self._of_where_it_is(partition, refusal)
                self._note_refusal(partition, topic_id, memoryview(batches), error.code)
                return self._refused(partition, error)
            self._bytes_in[partition] += len(batches)
            outcome: ErrorCode | asyncio.Future[ErrorCode] = _NONE
            if acks == ACKS_ALL:
                outcome = replicas.await_committed(partition, info.last_offset + 1, request.timeout_ms)
            if not isinstance(outcome, ErrorCode):
                outcome = await outcome
            if outcome is not _NONE:
                return ProduceAnswer(number, outcome)
            return ProduceAnswer(number, 0, info.first_offset, info.log_append_time_ms, info.log_start_offset)

        return asyncio.get_running_loop().create_task(append())

    def _check_refusals(self, partition: TopicPartition, topic_id: UUID | None, batches: memoryview) -> None:
        self._refusals.check(_asked(partition, topic_id), batches, self._broker.replicas.local_log(partition))

    def _note_refusal(
        self, partition: TopicPartition, topic_id: UUID | None, batches: memoryview | None, code: ErrorCode
    ) -> None:
        if batches is not None:
            log = self._broker.replicas.local_log(partition)
            self._refusals.note(_asked(partition, topic_id), batches, code, log)

    def _of_where_it_is(self, partition: TopicPartition, error: ApiError) -> ApiError:
        """If another broker leads the partition, tell the client so that it refreshes its metadata."""
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._replicas.partition(partition) is None:
            return ApiError(absence(self._broker.image(), partition))
        return error

    def _refused(self, partition: TopicPartition, error: ApiError) -> ProduceAnswer:
        answer = ProduceAnswer(partition.partition, error.code, message=error.message)
        unseen = error.code in WITHOUT_LOG_START or isinstance(error, NotVerified)
        log = None if unseen else self._broker.replicas.local_log(partition)
        if log is not None:
            answer = answer._replace(log_start_offset=log.log_start_offset)
        if isinstance(error, InvalidRecords):
            return answer._replace(record_errors=error.record_errors)
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            found = self._broker.image().topics.by_name(partition.topic)
            now = found.partitions.get(partition.partition) if found is not None else None
            if now is not None:
                return answer._replace(leader_id=now.leader, leader_epoch=now.leader_epoch)
        return answer


def _is_zstd(batches: memoryview | None) -> bool:
    if batches is None or len(batches) < HEADER_BYTES:
        return False
    return batches[ATTRIBUTES_POSITION + 1] & CODEC_MASK == Codec.ZSTD


def _asked(partition: TopicPartition, topic_id: UUID | None) -> tuple[str | UUID, int]:
    """The client's key for the partition, even if its topic id is unknown here."""
    return topic_id or partition.topic, partition.partition
