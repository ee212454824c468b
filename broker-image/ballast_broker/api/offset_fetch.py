"""OffsetFetch: where groups have got to; one group a request in old versions, many in new ones."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.authorizer import topic as topic_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import FETCH_FIRST_WITH_ERROR, FETCH_FIRST_WITH_MANY_GROUPS, OffsetFetchResponse
from ballast_wire.names import TopicPartition

FIRST_VERSION_WITH_TOPIC_IDS = 10
NOTHING = CommittedOffset(-1, -1, "", -1)


async def handle(request: Any, context: RequestContext) -> OffsetFetchResponse:
    response = OffsetFetchResponse(context.version)
    groups = request.groups if context.version >= FETCH_FIRST_WITH_MANY_GROUPS else [request]
    for asked in groups:
        _add_group(response, asked, context)
    return response


def _add_group(response: OffsetFetchResponse, asked: Any, context: RequestContext) -> None:
    try:
        if not context.authorize(Operation.DESCRIBE, group(asked.group_id)):
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        offsets = context.broker.groups.fetch_offsets(asked.group_id)
    except ApiError as error:
        if context.version < FETCH_FIRST_WITH_ERROR:  # it is told at each partition
            _add_asked(response, asked, context, {}, error.code)
        response.end_group(asked.group_id, error.code)
        return
    if asked.topics is None:
        _add_everything(response, context, offsets)
    else:
        _add_asked(response, asked, context, offsets, ErrorCode.NONE)
    response.end_group(asked.group_id, ErrorCode.NONE)


def _add_everything(response: OffsetFetchResponse, context: RequestContext, offsets: Offsets) -> None:
    by_id = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    of_topic: dict[str, list[int]] = {}
    for partition in offsets:
        of_topic.setdefault(partition.topic, []).append(partition.partition)
    for name, indexes in of_topic.items():
        if not context.may(Operation.DESCRIBE, topic_resource(name)):
            continue
        topic = context.broker.image().topics.by_name(name) if by_id else None
        if by_id and topic is None:
            continue  # deleted meanwhile: it has no id to be named by
        _add(response, name, indexes, offsets, ErrorCode.NONE)
        response.end_topic(name if topic is None else topic.id)


def _add_asked(
    response: OffsetFetchResponse, asked: Any, context: RequestContext, offsets: Offsets, error: ErrorCode
) -> None:
    for each in asked.topics or ():
        if context.version < FIRST_VERSION_WITH_TOPIC_IDS:
            _add_if_allowed(response, each.name, each, context, offsets, error)
            response.end_topic(each.name)
            continue
        topic = context.broker.image().topics.by_id(each.topic_id)
        if topic is None:
            _add(response, "", each.partition_indexes, {}, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            _add_if_allowed(response, topic.name, each, context, offsets, error)
        response.end_topic(each.topic_id)


def _add_if_allowed(
    response: OffsetFetchResponse, name: str, asked: Any, context: RequestContext, offsets: Offsets, error: ErrorCode
) -> None:
    """What the group itself was refused for, goes before."""
    if not error and not context.authorize(Operation.DESCRIBE, topic_resource(name)):
        offsets, error = {}, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    _add(response, name, asked.partition_indexes, offsets, error)


def _add(response: OffsetFetchResponse, name: str, indexes: list[int], offsets: Offsets, error: ErrorCode) -> None:
    for index in indexes:
        found = offsets.get(TopicPartition(name, index), NOTHING)
        response.add(index, found.offset, found.leader_epoch, found.metadata, error)
