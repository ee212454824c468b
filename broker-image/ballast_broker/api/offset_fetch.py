"""OffsetFetch: where groups have got to; one group a request in old versions, many in new ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.authorizer import topic as topic_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.metadata.image import TopicImage
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import FETCH_FIRST_WITH_ERROR, FETCH_FIRST_WITH_MANY_GROUPS, OffsetFetchResponse
from ballast_wire.names import ZERO_UUID, TopicPartition, by_topic

FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10
FIRST_VERSION_WITH_STABLE = 7
NOTHING = CommittedOffset(-1, -1, "", -1)


class View(NamedTuple):
    """What a group's partitions are to be answered with."""

    offsets: Offsets
    error: ErrorCode = ErrorCode.NONE
    unstable: Collection[TopicPartition] = ()


async def handle(request: Any, context: RequestContext) -> OffsetFetchResponse:
    response = OffsetFetchResponse(context.version)
    require_stable = context.version >= FIRST_VERSION_WITH_STABLE and request.require_stable
    groups = request.groups if context.version >= FETCH_FIRST_WITH_MANY_GROUPS else [request]
    for asked in groups:
        _add_group(response, asked, context, require_stable)
    return response


def _add_group(response: OffsetFetchResponse, asked: Any, context: RequestContext, require_stable: bool) -> None:
    try:
        if not context.authorize(Operation.DESCRIBE, group(asked.group_id)):
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        offsets = context.broker.groups.fetch_offsets(asked.group_id, *_reader(asked, context.version))
        unstable = context.broker.groups.transactional.unstable(asked.group_id) if require_stable else ()
    except ApiError as error:
        if context.version < FETCH_FIRST_WITH_ERROR:  # it is told at each partition
            _add_asked(response, asked, context, View({}, error.code))
        response.end_group(asked.group_id, error.code)
        return
    if asked.topics is None:
        _add_everything(response, context, View(offsets, unstable=unstable))
    else:
        _add_asked(response, asked, context, View(offsets, unstable=unstable))
    response.end_group(asked.group_id, ErrorCode.NONE)


def _reader(asked: Any, version: int) -> tuple[str | None, int]:
    return (asked.member_id, asked.member_epoch) if version >= FIRST_VERSION_WITH_MEMBER_EPOCHS else (None, -1)


def _add_everything(response: OffsetFetchResponse, context: RequestContext, view: View) -> None:
    by_id = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for name, indexes in by_topic(view.offsets).items():
        if not context.may(Operation.DESCRIBE, topic_resource(name)):
            continue
        topic = context.broker.image().topics.by_name(name)
        if topic is not None:
            current = [index for index in indexes if view.offsets[TopicPartition(name, index)].is_of(topic.id)]
            _add(response, name, current, view, topic)
            response.end_topic(topic.id if by_id else name)
        elif not by_id:  # deleted meanwhile: it has no id to be named by
            _add(response, name, indexes, view, None)
            response.end_topic(name)


def _add_asked(response: OffsetFetchResponse, asked: Any, context: RequestContext, view: View) -> None:
    topics = context.broker.image().topics
    for each in asked.topics or ():
        if context.version < FIRST_VERSION_WITH_TOPIC_IDS:
            _add_if_allowed(response, each.name, each, context, view, topics.by_name(each.name))
            response.end_topic(each.name)
            continue
        topic_id = each.topic_id or ZERO_UUID  # which is read as None
        topic = topics.by_id(topic_id)
        if topic is None:
            _add(response, "", each.partition_indexes, View({}, ErrorCode.UNKNOWN_TOPIC_ID), None)
        else:
            _add_if_allowed(response, topic.name, each, context, view, topic)
        response.end_topic(topic_id)


def _add_if_allowed(
    response: OffsetFetchResponse, name: str, asked: Any, context: RequestContext, view: View, topic: TopicImage | None
) -> None:
    """What the group itself was refused for, goes before."""
    if not view.error and not context.authorize(Operation.DESCRIBE, topic_resource(name)):
        view = View({}, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    _add(response, name, asked.partition_indexes, view, topic)


def _add(response: OffsetFetchResponse, name: str, indexes: list[int], view: View, topic: TopicImage | None) -> None:
    """An offset of an earlier topic of the name is none of this one."""
    for index in indexes:
        partition = TopicPartition(name, index)
        if partition in view.unstable:
            response.add(index, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
            continue
        found = view.offsets.get(partition, NOTHING)
        if topic is not None and not found.is_of(topic.id):
            found = NOTHING
        response.add(index, found.offset, found.leader_epoch, found.metadata, view.error)
