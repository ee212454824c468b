"""OffsetDelete: forget where a group was in partitions that it no longer reads."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("OffsetDeleteResponse")
    if not context.authorize(Operation.DELETE, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    asked = [TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions]
    topics = context.broker.image().topics
    names = {p.topic for p in asked}
    refused = {name for name in names if not context.authorize(Operation.READ, topic(name))}
    known = [
        p
        for p in asked
        if p.topic not in refused and (found := topics.by_name(p.topic)) and p.partition in found.partitions
    ]
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
                for p in t.partitions
            ],
        )
        for t in request.topics
        if t.partitions
    ]
    return kind(error_code=ErrorCode.NONE, topics=answers)
