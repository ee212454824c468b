"""OffsetFetch: where groups have got to; one group a request in old versions, many in new ones."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

FIRST_VERSION_WITH_GROUP_ERROR = 2
FIRST_VERSION_WITH_MANY_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10
NOTHING = CommittedOffset(-1, -1, "", -1)


async def handle(request: Any, context: RequestContext) -> Any:
    if context.version >= FIRST_VERSION_WITH_MANY_GROUPS:
        groups = [_group(asked, context) for asked in request.groups]
        return message("OffsetFetchResponse")(version=context.version, groups=groups)
    return _one_group(request, context)


def _group(asked: Any, context: RequestContext) -> Any:
    kind = message("OffsetFetchResponse").OffsetFetchResponseGroup
    version = context.version
    try:
        offsets = context.broker.groups.fetch_offsets(asked.group_id)
    except ApiError as error:
        return kind(version=version, group_id=asked.group_id, topics=[], error_code=error.code)
    if asked.topics is None:
        topics = _everything(kind.OffsetFetchResponseTopics, context, offsets)
    elif version >= FIRST_VERSION_WITH_TOPIC_IDS:
        topics = [_by_id(kind.OffsetFetchResponseTopics, t, context, offsets) for t in asked.topics]
    else:
        topics = [
            kind.OffsetFetchResponseTopics(
                version=version,
                name=t.name,
                partitions=_partitions(kind.OffsetFetchResponseTopics, version, t.name, t.partition_indexes, offsets),
            )
            for t in asked.topics
        ]
    return kind(version=version, group_id=asked.group_id, topics=topics, error_code=ErrorCode.NONE)


def _one_group(request: Any, context: RequestContext) -> Any:
    kind = message("OffsetFetchResponse")
    topic_kind, version = kind.OffsetFetchResponseTopic, context.version
    try:
        offsets = context.broker.groups.fetch_offsets(request.group_id)
    except ApiError as error:
        topics = [] if version >= FIRST_VERSION_WITH_GROUP_ERROR else _failed(topic_kind, request, version, error.code)
        return kind(version=version, topics=topics, error_code=error.code)
    if request.topics is None:
        topics = _everything(topic_kind, context, offsets)
    else:
        topics = [
            topic_kind(
                version=version,
                name=t.name,
                partitions=_partitions(topic_kind, version, t.name, t.partition_indexes, offsets),
            )
            for t in request.topics
        ]
    return kind(version=version, topics=topics, error_code=ErrorCode.NONE)


def _everything(topic_kind: Any, context: RequestContext, offsets: Offsets) -> list[Any]:
    version = context.version
    of_topic: dict[str, list[int]] = {}
    for partition in offsets:
        of_topic.setdefault(partition.topic, []).append(partition.partition)
    topics = []
    for name, indexes in of_topic.items():
        named: dict[str, Any] = {"name": name}
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic = context.broker.image().topics.by_name(name)
            if topic is None:
                continue  # deleted meanwhile: it has no id to be named by
            named = {"topic_id": topic.id}
        partitions = _partitions(topic_kind, version, name, indexes, offsets)
        topics.append(topic_kind(version=version, partitions=partitions, **named))
    return topics


def _by_id(topic_kind: Any, asked: Any, context: RequestContext, offsets: Offsets) -> Any:
    version = context.version
    topic = context.broker.image().topics.by_id(asked.topic_id)
    if topic is None:
        partitions = [
            _entry(topic_kind, version, i, NOTHING, ErrorCode.UNKNOWN_TOPIC_ID) for i in asked.partition_indexes
        ]
    else:
        partitions = _partitions(topic_kind, version, topic.name, asked.partition_indexes, offsets)
    return topic_kind(version=version, topic_id=asked.topic_id, partitions=partitions)


def _partitions(topic_kind: Any, version: int, name: str, indexes: list[int], offsets: Offsets) -> list[Any]:
    return [
        _entry(topic_kind, version, index, offsets.get(TopicPartition(name, index), NOTHING), ErrorCode.NONE)
        for index in indexes
    ]


def _failed(topic_kind: Any, request: Any, version: int, error: ErrorCode) -> list[Any]:
    return [
        topic_kind(
            version=version,
            name=t.name,
            partitions=[_entry(topic_kind, version, index, NOTHING, error) for index in t.partition_indexes],
        )
        for t in request.topics
    ]


def _entry(topic_kind: Any, version: int, index: int, committed: CommittedOffset, error: ErrorCode) -> Any:
    many = version >= FIRST_VERSION_WITH_MANY_GROUPS
    kind = topic_kind.OffsetFetchResponsePartitions if many else topic_kind.OffsetFetchResponsePartition
    return kind(
        version=version,
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )
