"""DescribeLogDirs: each directory's health and room, and the replicas in it, future ones too (DIR-32)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, authorize
from ballast_broker.api.context import RequestContext
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.log import Log
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

FIRST_VERSION_WITH_ERROR = 3
UNKNOWN_BYTES = -1
# A log and its lag in records, and whether it is a future one.
Held = tuple[Log, int, bool]


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("DescribeLogDirsResponse")
    if not authorize(context.principal, Operation.DESCRIBE, CLUSTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if context.version >= FIRST_VERSION_WITH_ERROR else 0
        return kind(version=context.version, error_code=error, results=[])
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(each.topic, number) for each in request.topics for number in each.partitions}
    held: dict[LogDirectory, list[Held]] = {each: [] for each in context.broker.logs.directories}
    for log, lag, future in _all_held(context):
        if wanted is None or log.topic_partition in wanted:
            held[log.directory].append((log, lag, future))
    results = [_directory(directory, logs, context.version) for directory, logs in held.items()]
    return kind(version=context.version, error_code=ErrorCode.NONE, results=results)


def _all_held(context: RequestContext) -> Iterator[Held]:
    logs = context.broker.logs
    current: Mapping[TopicPartition, Log] = logs.logs
    for log in current.values():
        yield log, max(0, log.high_watermark - log.log_end_offset), False
    for topic_partition, log in logs.future_logs.items():
        source = current.get(topic_partition)
        behind = 0 if source is None else max(0, source.log_end_offset - log.log_end_offset)
        yield log, behind, True


def _directory(directory: LogDirectory, held: list[Held], version: int) -> Any:
    kind = message("DescribeLogDirsResponse").DescribeLogDirsResult
    if not directory.online:
        return kind(
            version=version,
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            log_dir=directory.path,
            topics=[],
            is_cordoned=directory.cordoned,
        )
    by_topic: dict[str, list[Any]] = {}
    for log, lag, future in sorted(held, key=lambda each: (each[0].topic_partition, each[2])):
        by_topic.setdefault(log.topic_partition.topic, []).append(
            kind.DescribeLogDirsTopic.DescribeLogDirsPartition(
                version=version,
                partition_index=log.topic_partition.partition,
                partition_size=log.size_bytes,
                offset_lag=lag,
                is_future_key=future,
            )
        )
    usage = directory.usage()
    return kind(
        version=version,
        error_code=ErrorCode.NONE,
        log_dir=directory.path,
        topics=[
            kind.DescribeLogDirsTopic(version=version, name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ],
        total_bytes=UNKNOWN_BYTES if usage is None else usage.total_bytes,
        usable_bytes=UNKNOWN_BYTES if usage is None else usage.usable_bytes,
        is_cordoned=directory.cordoned,
    )
