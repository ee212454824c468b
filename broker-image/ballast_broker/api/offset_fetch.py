"""OffsetFetch: where groups have got to; one group a request in old versions, many in new ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import FETCH_FIRST_WITH_ERROR, FETCH_FIRST_WITH_MANY_GROUPS, OffsetFetchResponse
from ballast_wire.names import TopicPartition

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
        offsets = context.broker.groups.fetch_offsets(asked.group_id)
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


def _add_everything(response: OffsetFetchResponse, context: RequestContext, view: View) -> None:
    by_id = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    of_topic: dict[str, list[int]] = {}
    for partition in view.offsets:
        of_topic.setdefault(partition.topic, []).append(partition.partition)
    for name, indexes in of_topic.items():
        topic = context.broker.image().topics.by_name(name) if by_id else None
        if by_id and topic is None:
            continue  # deleted meanwhile: it has no id to be named by
        _add(response, name, indexes, view)
        response.end_topic(name if topic is None else topic.id)


def _add_asked(response: OffsetFetchResponse, asked: Any, context: RequestContext, view: View) -> None:
    for each in asked.topics or ():
        if context.version < FIRST_VERSION_WITH_TOPIC_IDS:
            _add(response, each.name, each.partition_indexes, view)
            response.end_topic(each.name)
            continue
        topic = context.broker.image().topics.by_id(each.topic_id)
        if topic is None:
            _add(response, "", each.partition_indexes, View({}, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            _add(response, topic.name, each.partition_indexes, view)
        response.end_topic(each.topic_id)


def _add(response: OffsetFetchResponse, name: str, indexes: list[int], view: View) -> None:
    for index in indexes:
        partition = TopicPartition(name, index)
        if partition in view.unstable:
            response.add(index, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
        else:
            found = view.offsets.get(partition, NOTHING)
            response.add(index, found.offset, found.leader_epoch, found.metadata, view.error)
