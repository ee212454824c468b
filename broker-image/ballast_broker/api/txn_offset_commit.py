"""TxnOffsetCommit: commits a group's offsets as part of a transaction."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.transaction_requests import check_writer, producer_of
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.coordinator.transactional_commits import Committer
from ballast_broker.turns import InTurns, Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

FIRST_WITH_LOADING = 2
FIRST_WITH_MEMBER = 3
FIRST_ABORTABLE = 4
FIRST_THAT_ADDS = 5

Errors = dict[TopicPartition, ErrorCode]


async def handle(request: Any, context: RequestContext) -> Any:
    check_writer(request.transactional_id, context)
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    topics = context.broker.image().topics
    errors: Errors = {}
    offsets: Offsets = {}
    now_ms, turn = context.broker.clock.wall_ms(), Turn()
    for asked in request.topics:
        found = topics.by_name(asked.name)
        allowed = context.authorize(Operation.READ, topic(asked.name))
        for p in asked.partitions:
            await turn.ends_if_long()
            partition = TopicPartition(asked.name, p.partition_index)
            if not allowed:
                errors[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif found is None or p.partition_index not in found.partitions:
                errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets[partition] = CommittedOffset(
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata or "",
                    now_ms,
                    topic_id=found.id,
                )
    if offsets:
        errors |= await _commit(request, context, offsets)
    return await _response(request, errors)


async def _commit(request: Any, context: RequestContext, offsets: Offsets) -> Errors:
    committer = Committer()
    if context.version >= FIRST_WITH_MEMBER:
        committer = Committer(request.member_id, request.group_instance_id, request.generation_id)
    producer = producer_of(request)

    adds = context.version >= FIRST_THAT_ADDS
    asks = adds or context.broker.config.transaction_partition_verification_enable

    async def agreed(partition: TopicPartition) -> ErrorCode:
        found = await context.broker.verifier.verify(request.transactional_id, *producer, [partition], add=adds)
        return _told(found.get(partition, ErrorCode.NONE), context.version)

    try:
        return await context.broker.groups.transactional.commit(
            request.group_id, committer, offsets, producer, agreed if asks else None, adds=adds
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < FIRST_WITH_LOADING:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # older clients do not understand that
        return dict.fromkeys(offsets, code)


def _told(error: ErrorCode, version: int) -> ErrorCode:
    """Translate the transaction coordinator's error to one that makes the producer do the right thing."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # makes it retry here
    return error


async def _response(request: Any, errors: Errors) -> Any:
    kind = message("TxnOffsetCommitResponse")
    answers = kind.TxnOffsetCommitResponseTopic
    return kind(
        topics=[
            answers(
                name=asked.name,
                partitions=[
                    answers.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=errors[TopicPartition(asked.name, p.partition_index)],
                    )
                    async for p in InTurns(asked.partitions)
                ],
            )
            async for asked in InTurns(request.topics)
        ]
    )
