"""OffsetForLeaderEpoch: the end offset of a leader epoch, by which followers and consumers detect truncation."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import absence
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

UNKNOWN = (-1, -1)


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("OffsetForLeaderEpochResponse")
    partitions: dict[str, list[Any]] = {asked.topic: [] for asked in request.topics}
    everything = ((asked.topic, each) for asked in request.topics for each in asked.partitions)
    async for name, each in InTurns(everything):
        error, (epoch, end_offset) = _answer(TopicPartition(name, each.partition), each, context)
        partitions[name].append(
            kind.OffsetForLeaderTopicResult.EpochEndOffset(
                error_code=error, partition=each.partition, leader_epoch=epoch, end_offset=end_offset
            )
        )
    topics = [kind.OffsetForLeaderTopicResult(topic=name, partitions=answers) for name, answers in partitions.items()]
    return kind(topics=topics)


def _answer(topic_partition: TopicPartition, asked: Any, context: RequestContext) -> tuple[ErrorCode, tuple[int, int]]:
    if not context.may(Operation.CLUSTER_ACTION, CLUSTER) and not context.authorize(
        Operation.DESCRIBE, topic(topic_partition.topic)
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, UNKNOWN
    if context.broker.replicas.partition(topic_partition) is None:
        return absence(context.broker.image(), topic_partition), UNKNOWN
    try:
        found = context.broker.replicas.offset_for_leader_epoch(
            topic_partition, asked.leader_epoch, asked.current_leader_epoch
        )
    except ApiError as error:
        return error.code, UNKNOWN
    return ErrorCode.NONE, found
