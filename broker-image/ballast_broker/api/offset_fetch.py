"""OffsetFetch: the committed offsets of groups; one group per request in old versions, many in new ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.authorizer import topic as topic_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.metadata.image import TopicImage
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import FETCH_FIRST_WITH_ERROR, FETCH_FIRST_WITH_MANY_GROUPS, OffsetFetchResponse
from ballast_wire.names import ZERO_UUID, TopicPartition, by_topic

FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10
FIRST_VERSION_WITH_STABLE = 7
NOTHING = CommittedOffset(-1, -1, "", -1)


class View(NamedTuple):
    """The data a group's partitions are answered from."""

    offsets: Offsets
    error: ErrorCode = ErrorCode.NONE
    unstable: Collection[TopicPartition] = ()


async def handle(request: Any, context: RequestContext) -> OffsetFetchResponse:
    response = OffsetFetchResponse(context.version)
    require_stable = context.version >= FIRST_VERSION_WITH_STABLE and request.require_stable
    groups = request.groups if context.version >= FETCH_FIRST_WITH_MANY_GROUPS else [request]
    turn = Turn()
    for asked in groups:
        await turn.ends_if_long()
        await _add_group(response, asked, context, require_stable, turn)
    return response


async def _add_group(
    response: OffsetFetchResponse, asked: Any, context: RequestContext, require_stable: bool, turn: Turn
) -> None:
    """Add a consistent snapshot of the group's offsets, however many turns encoding takes."""
    try:
        if not context.authorize(Operation.DESCRIBE, group(asked.group_id)):
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        offsets = dict(context.broker.groups.fetch_offsets(asked.group_id, *_reader(asked, context.version)))
        unstable = context.broker.groups.transactional.unstable(asked.group_id) if require_stable else ()
    except ApiError as error:
        if context.version < FETCH_FIRST_WITH_ERROR:  # reported at each partition
            await _add_asked(response, asked, context, View({}, error.code), turn)
        response.end_group(asked.group_id, error.code)
        return
    if asked.topics is None:
        await _add_everything(response, context, View(offsets, unstable=unstable), turn)
    else:
        await _add_asked(response, asked, context, View(offsets, unstable=unstable), turn)
    response.end_group(asked.group_id, ErrorCode.NONE)


def _reader(asked: Any, version: int) -> tuple[str | None, int]:
    return (asked.member_id, asked.member_epoch) if version >= FIRST_VERSION_WITH_MEMBER_EPOCHS else (None, -1)


async def _add_everything(response: OffsetFetchResponse, context: RequestContext, view: View, turn: Turn) -> None:
    by_id = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for name, indexes in by_topic(view.offsets).items():
        await turn.ends_if_long()
        if not context.may(Operation.DESCRIBE, topic_resource(name)):
            continue
        topic = context.broker.image().topics.by_name(name)
        if topic is not None:
            current = [index for index in indexes if view.offsets[TopicPartition(name, index)].is_of(topic.id)]
            await _add(response, name, current, view, topic, turn)
            response.end_topic(topic.id if by_id else name)
        elif not by_id:  # deleted meanwhile: there is no id to name it by
            await _add(response, name, indexes, view, None, turn)
            response.end_topic(name)


async def _add_asked(
    response: OffsetFetchResponse, asked: Any, context: RequestContext, view: View, turn: Turn
) -> None:
    topics = context.broker.image().topics
    for each in asked.topics or ():
        if context.version < FIRST_VERSION_WITH_TOPIC_IDS:
            await _add_if_allowed(response, each.name, each, context, view, topics.by_name(each.name), turn)
            response.end_topic(each.name)
            continue
        topic_id = each.topic_id or ZERO_UUID  # zeros are decoded as None
        topic = topics.by_id(topic_id)
        if topic is None:
            await _add(response, "", each.partition_indexes, View({}, ErrorCode.UNKNOWN_TOPIC_ID), None, turn)
        else:
            await _add_if_allowed(response, topic.name, each, context, view, topic, turn)
        response.end_topic(topic_id)


async def _add_if_allowed(
    response: OffsetFetchResponse,
    name: str,
    asked: Any,
    context: RequestContext,
    view: View,
    topic: TopicImage | None,
    turn: Turn,
) -> None:
    """A group-level error takes precedence over authorization of the topic."""
    if not view.error and not context.authorize(Operation.DESCRIBE, topic_resource(name)):
        view = View({}, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await _add(response, name, asked.partition_indexes, view, topic, turn)


async def _add(
    response: OffsetFetchResponse, name: str, indexes: list[int], view: View, topic: TopicImage | None, turn: Turn
) -> None:
    """Offsets of an earlier topic of the same name do not count."""
    for index in indexes:
        await turn.ends_if_long()
        partition = TopicPartition(name, index)
        if partition in view.unstable:
            response.add(index, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
            continue
        found = view.offsets.get(partition, NOTHING)
        if topic is not None and not found.is_of(topic.id):
            found = NOTHING
        response.add(index, found.offset, found.leader_epoch, found.metadata, view.error)
