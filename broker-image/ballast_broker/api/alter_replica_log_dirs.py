"""AlterReplicaLogDirs: move replicas between this broker's directories (DIR-10 to DIR-17)."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, authorize
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition


async def handle(request: Any, context: RequestContext) -> Any:
    # One that is named twice goes to the directory named last.
    wanted = {
        TopicPartition(topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    if authorize(context.principal, Operation.ALTER, CLUSTER):
        errors = context.broker.replicas.alter_replica_log_dirs(wanted)
    else:
        errors = dict.fromkeys(wanted, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _response({each: errors[each] for each in wanted}, context.version)


def _response(errors: dict[TopicPartition, ErrorCode], version: int) -> Any:
    kind = message("AlterReplicaLogDirsResponse")
    partitions: dict[str, list[Any]] = {}
    for topic_partition, error in errors.items():
        partitions.setdefault(topic_partition.topic, []).append(
            kind.AlterReplicaLogDirTopicResult.AlterReplicaLogDirPartitionResult(
                version=version, partition_index=topic_partition.partition, error_code=error
            )
        )
    results = [
        kind.AlterReplicaLogDirTopicResult(version=version, topic_name=name, partitions=answers)
        for name, answers in partitions.items()
    ]
    return kind(version=version, results=results)
