"""AlterReplicaLogDirs: moves replicas between this broker's directories (DIR-10 to DIR-17)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import absence
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition, by_topic


async def handle(request: Any, context: RequestContext) -> Any:
    # A replica named twice goes to the directory named last.
    wanted = {
        TopicPartition(topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    if context.authorize(Operation.ALTER, CLUSTER):
        errors = await _alter(wanted, context)
    else:
        errors = dict.fromkeys(wanted, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await _response(errors)


async def _alter(wanted: Mapping[TopicPartition, str], context: RequestContext) -> dict[TopicPartition, ErrorCode]:
    """In turns: a plan for a whole disk is one request for thousands of replicas."""
    errors: dict[TopicPartition, ErrorCode] = {}
    async for each, path in InTurns(wanted.items()):
        [error] = context.broker.directories.alter({each: path}).values()
        errors[each] = _known(error, each, context)
    return errors


def _known(error: ErrorCode, topic_partition: TopicPartition, context: RequestContext) -> ErrorCode:
    """A replica that is not here may still come, unless the partition does not exist."""
    if error is ErrorCode.REPLICA_NOT_AVAILABLE:
        missing = absence(context.broker.image(), topic_partition)
        return missing if missing is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error
    return error


async def _response(errors: dict[TopicPartition, ErrorCode]) -> Any:
    kind = message("AlterReplicaLogDirsResponse")
    of_topic = kind.AlterReplicaLogDirTopicResult
    of_partition = of_topic.AlterReplicaLogDirPartitionResult
    results = []
    async for name, numbers in InTurns(by_topic(errors).items()):
        answers = [of_partition(partition_index=n, error_code=errors[TopicPartition(name, n)]) for n in numbers]
        results.append(of_topic(topic_name=name, partitions=answers))
    return kind(results=results)
