"""DeleteRecords: advances log start offsets on all replicas before it responds."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import INTERNAL_TOPICS, absence
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

NO_LOW_WATERMARK = -1
Answer = tuple[ErrorCode, int]  # error, low watermark


async def handle(request: Any, context: RequestContext) -> Any:
    asked = {TopicPartition(each.name, p.partition_index): p.offset for each in request.topics for p in each.partitions}
    answers: dict[TopicPartition, Answer] = {}
    possible = {}
    async for topic_partition, offset in InTurns(asked.items()):
        error = _refusal(topic_partition, context)
        if error is ErrorCode.NONE:
            possible[topic_partition] = offset
        answers[topic_partition] = (error, NO_LOW_WATERMARK)
    if possible:
        answers |= await context.broker.replicas.delete_records(possible, request.timeout_ms)
    return await _response(answers)


def _refusal(topic_partition: TopicPartition, context: RequestContext) -> ErrorCode:
    if not context.authorize(Operation.DELETE, topic(topic_partition.topic)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    missing = absence(context.broker.image(), topic_partition)
    if missing is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return missing
    if topic_partition.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.NONE if context.broker.replicas.partition(topic_partition) is not None else missing


async def _response(answers: dict[TopicPartition, Answer]) -> Any:
    kind = message("DeleteRecordsResponse")
    partitions: dict[str, list[Any]] = {}
    async for topic_partition, (error, low_watermark) in InTurns(answers.items()):
        partitions.setdefault(topic_partition.topic, []).append(
            kind.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
                partition_index=topic_partition.partition, low_watermark=low_watermark, error_code=error
            )
        )
    topics = [kind.DeleteRecordsTopicResult(name=name, partitions=results) for name, results in partitions.items()]
    return kind(topics=topics)
