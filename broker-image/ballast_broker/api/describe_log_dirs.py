"""DescribeLogDirs: each directory's state and capacity, and its replicas, including future ones (DIR-32)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.turns import InTurns, Turn
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.replication.directories import LogDirectoryInfo

FIRST_VERSION_WITH_ERROR = 3


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("DescribeLogDirsResponse")
    if not context.authorize(Operation.DESCRIBE, CLUSTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if context.version >= FIRST_VERSION_WITH_ERROR else 0
        return kind(error_code=error, results=[])
    wanted = None
    if request.topics is not None:
        named = (TopicPartition(each.topic, number) for each in request.topics for number in each.partitions)
        wanted = {each async for each in InTurns(named)}
    directories = await context.broker.directories.describe(wanted)
    turn = Turn()
    results = [await _directory(each, turn) for each in directories]
    return kind(error_code=ErrorCode.NONE, results=results)


async def _directory(directory: LogDirectoryInfo, turn: Turn) -> Any:
    kind = message("DescribeLogDirsResponse").DescribeLogDirsResult
    by_topic: dict[str, list[Any]] = {}
    for each in sorted(directory.replicas, key=lambda replica: (replica.topic_partition, replica.is_future)):
        await turn.ends_if_long()
        by_topic.setdefault(each.topic_partition.topic, []).append(
            kind.DescribeLogDirsTopic.DescribeLogDirsPartition(
                partition_index=each.topic_partition.partition,
                partition_size=each.size_bytes,
                offset_lag=each.offset_lag,
                is_future_key=each.is_future,
            )
        )
    return kind(
        error_code=directory.error,
        log_dir=directory.path,
        topics=[kind.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        is_cordoned=directory.cordoned,
    )
