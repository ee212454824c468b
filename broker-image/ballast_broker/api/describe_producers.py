"""DescribeProducers: the producers whose state a partition keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ballast_broker.api.authorizer import Operation
from ballast_broker.api.authorizer import topic as topic_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import absence
from ballast_broker.api.topic_names import refusal
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.wording import WORDING

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("DescribeProducersResponse")
    topics = [kind.TopicResponse(name=asked.name, partitions=[]) for asked in request.topics]
    everything = (
        (topic, number)
        for topic, asked in zip(topics, request.topics, strict=True)
        for number in asked.partition_indexes
    )
    async for topic, number in InTurns(everything):
        topic.partitions.append(_partition(topic.name, number, context))
    return kind(topics=topics)


def _partition(name: str, number: int, context: RequestContext) -> Any:
    kind = message("DescribeProducersResponse").TopicResponse.PartitionResponse
    error, text = _topic_refusal(name, context)
    topic_partition = TopicPartition(name, number)
    log = context.broker.replicas.local_log(topic_partition) if error is ErrorCode.NONE else None
    if error is ErrorCode.NONE and log is None:
        error = _why_not_here(topic_partition, context)
    return kind(
        partition_index=number,
        error_code=error,
        error_message=text,
        active_producers=[] if log is None else _producers(kind.ProducerState, log),
    )


def _topic_refusal(name: str, context: RequestContext) -> tuple[ErrorCode, str | None]:
    illegal = refusal(name)
    if illegal is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, illegal
    if not context.authorize(Operation.READ, topic_resource(name)):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return error, WORDING[error]
    if context.broker.image().topics.by_name(name) is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return error, WORDING[error]
    return ErrorCode.NONE, None


def _why_not_here(topic_partition: TopicPartition, context: RequestContext) -> ErrorCode:
    if context.broker.replicas.partition(topic_partition) is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return absence(context.broker.image(), topic_partition)


def _producers(kind: Any, log: Log) -> list[Any]:
    return [
        kind(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=state.current_txn_first_offset,
        )
        for producer_id, state in log.producers.items()
    ]
