"""OffsetCommit: stores a group's offsets in `__consumer_offsets`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.authorizer import topic as topic_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import OffsetCommitResponse
from ballast_wire.names import ZERO_UUID, TopicPartition

FIRST_VERSION_THAT_KNOWS_NO_GROUP = 9
FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10
LAST_VERSION_WITH_RETENTION = 4
NEVER_MS = 2**63 - 1


async def handle(request: Any, context: RequestContext) -> OffsetCommitResponse:
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    topics = context.broker.image().topics
    by_id = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    offsets: Offsets = {}
    answers: dict[tuple[Any, int], ErrorCode] = {}
    targets: dict[tuple[Any, int], TopicPartition] = {}
    times, turn = _times(request, context), Turn()
    for asked in request.topics:
        key = _key(asked, by_id)
        topic = topics.by_id(key) if by_id else topics.by_name(key)
        name = topic.name if topic is not None else "" if by_id else key
        refused = bool(name) and not context.authorize(Operation.READ, topic_resource(name))
        for p in asked.partitions:
            await turn.ends_if_long()
            where = (key, p.partition_index)
            if refused:
                answers[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None:
                answers[where] = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif p.partition_index not in topic.partitions:
                answers[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partition = targets[where] = TopicPartition(topic.name, p.partition_index)
                offsets[partition] = _committed(p, topic.id, *times)
    errors = await _commit(request, context, offsets) if offsets else {}
    answers |= {where: errors[partition] for where, partition in targets.items()}
    return await _response(request, context.version, by_id, answers)


def _key(asked: Any, by_id: bool) -> Any:
    """The client's key for the topic; an all-zero id is decoded as None."""
    return (asked.topic_id or ZERO_UUID) if by_id else asked.name


def _times(request: Any, context: RequestContext) -> tuple[int, int]:
    """The commit time, and the expiry time if the client sets one."""
    now_ms = context.broker.clock.wall_ms()
    keeps_own_time = context.version <= LAST_VERSION_WITH_RETENTION and request.retention_time_ms >= 0
    return now_ms, min(now_ms + request.retention_time_ms, NEVER_MS) if keeps_own_time else -1


def _committed(asked: Any, topic_id: UUID, now_ms: int, expires_ms: int) -> CommittedOffset:
    metadata = asked.committed_metadata or ""
    return CommittedOffset(asked.committed_offset, asked.committed_leader_epoch, metadata, now_ms, expires_ms, topic_id)


async def _commit(request: Any, context: RequestContext, offsets: Offsets) -> dict[TopicPartition, ErrorCode]:
    generation = request.generation_id_or_member_epoch
    try:
        return await context.broker.groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            generation,
            offsets,
            knows_epochs=context.version >= FIRST_VERSION_WITH_MEMBER_EPOCHS,
        )
    except ApiError as error:
        no_group = error.code is ErrorCode.GROUP_ID_NOT_FOUND
        old = context.version < FIRST_VERSION_THAT_KNOWS_NO_GROUP
        return dict.fromkeys(offsets, ErrorCode.ILLEGAL_GENERATION if no_group and old else error.code)


async def _response(
    request: Any, version: int, by_id: bool, answers: dict[tuple[Any, int], ErrorCode]
) -> OffsetCommitResponse:
    response, turn = OffsetCommitResponse(version), Turn()
    for asked in request.topics:
        if not asked.partitions:
            continue
        key = _key(asked, by_id)
        for p in asked.partitions:
            await turn.ends_if_long()
            response.add(p.partition_index, answers[key, p.partition_index])
        response.end_topic(key)
    return response
