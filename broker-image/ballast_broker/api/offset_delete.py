"""OffsetDelete: deletes a group's offsets in topics it no longer subscribes to."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.turns import InTurns, Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("OffsetDeleteResponse")
    if not context.authorize(Operation.DELETE, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    topics = context.broker.image().topics
    refused = {t.name for t in request.topics if t.partitions and not context.authorize(Operation.READ, topic(t.name))}
    known, turn = [], Turn()
    for t in request.topics:
        found = None if t.name in refused else topics.by_name(t.name)
        for p in t.partitions:
            await turn.ends_if_long()
            if found is not None and p.partition_index in found.partitions:
                known.append(TopicPartition(t.name, p.partition_index))
    try:
        errors = await context.broker.groups.delete_offsets(request.group_id, known)
    except ApiError as error:
        return kind(error_code=error.code, topics=[])
    topic_kind = kind.OffsetDeleteResponseTopic
    answers = [
        topic_kind(
            name=t.name,
            partitions=[
                topic_kind.OffsetDeleteResponsePartition(
                    partition_index=p.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    if t.name in refused
                    else errors.get(TopicPartition(t.name, p.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                )
                async for p in InTurns(t.partitions)
            ],
        )
        async for t in InTurns(request.topics)
        if t.partitions
    ]
    return kind(error_code=ErrorCode.NONE, topics=answers)
