"""DescribeTopicPartitions: topics sorted by name, paginated, with their eligible leader replicas."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, authorized_operations, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import INTERNAL_TOPICS, offline_replicas, reachable_leader
from ballast_broker.api.topic_names import is_legal
from ballast_broker.metadata.image import ClusterImage, PartitionRegistration, TopicImage
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID


async def handle(request: Any, context: RequestContext) -> Any:
    topics = context.broker.image().topics
    names = {asked.name for asked in request.topics} or set(topics.sorted_names)
    first, first_partition = _begin(request, names)
    room = max(1, min(request.response_partition_limit, context.broker.config.max_request_partition_size_limit))
    answers: list[Any] = []
    refused: list[Any] = []
    cursor, turn = None, Turn()
    for name in sorted(each for each in names if each >= first):
        await turn.ends_if_long()
        if not request.topics and not context.may(Operation.DESCRIBE, topic(name)):
            continue
        if not context.authorize(Operation.DESCRIBE, topic(name)):
            refused.append(_unauthorized(name, context))
            continue
        if room == 0:
            cursor = (name, 0)
            break
        found = topics.by_name(name)
        if found is None:
            answers.append(_unknown(name, context))
            continue
        begin = first_partition if name == first else 0
        page = [entry for entry in found.sorted_partitions() if entry[0] >= begin]
        answers.append(await _topic(found, page[:room], context, turn))
        if len(page) > room:
            cursor = (name, page[room][0])
            break
        room -= len(page)
    return _response(answers + refused, cursor, context)


def _begin(request: Any, names: set[str]) -> tuple[str, int]:
    """The topic and partition at which this page begins."""
    cursor = request.cursor
    if cursor is None:
        return "", 0
    if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return cursor.topic_name, cursor.partition_index


def _response(topics: list[Any], cursor: tuple[str, int] | None, context: RequestContext) -> Any:
    kind = message("DescribeTopicPartitionsResponse")
    following = None
    if cursor is not None:
        following = kind.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return kind(topics=topics, next_cursor=following)


def _unknown(name: str, context: RequestContext) -> Any:
    return message("DescribeTopicPartitionsResponse").DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal(name) else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        topic_id=ZERO_UUID,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=authorized_operations(context, topic(name)),
    )


def _unauthorized(name: str, context: RequestContext) -> Any:
    """A topic of which nothing may be revealed."""
    return message("DescribeTopicPartitionsResponse").DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=name,
        topic_id=ZERO_UUID,
        is_internal=False,
        partitions=[],
    )


async def _topic(
    found: TopicImage, page: list[tuple[int, PartitionRegistration]], context: RequestContext, turn: Turn
) -> Any:
    cluster = context.broker.image().cluster
    partitions = []
    for number, partition in page:
        await turn.ends_if_long()
        partitions.append(_partition(number, partition, cluster, context))
    return message("DescribeTopicPartitionsResponse").DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=found.name,
        topic_id=found.id,
        is_internal=found.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=authorized_operations(context, topic(found.name)),
    )


def _partition(number: int, partition: PartitionRegistration, cluster: ClusterImage, context: RequestContext) -> Any:
    kind = message("DescribeTopicPartitionsResponse").DescribeTopicPartitionsResponseTopic
    return kind.DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE,  # a partition without a leader just has leader -1
        partition_index=number,
        leader_id=reachable_leader(partition, cluster, context.listener),
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=offline_replicas(partition, cluster, context.listener),
    )
