"""Sends the requests that move replicas or tell where they are, each to one broker. Blocking; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.asking import TIMEOUT_S, ask, message

ALTER_LOG_DIRS, DESCRIBE_LOG_DIRS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS, ALTER_CONFIGS = 2, 4, 0, 0, 1  # versions
BROKER_RESOURCE, SET = 4, 0
Place = tuple[str, int]  # topic and partition


@dataclass(frozen=True)
class Held:
    """One replica in a directory."""

    place: Place
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True)
class Directory:
    path: str
    error: int
    replicas: tuple[Held, ...]


def alter_log_dirs(address: str, wanted: Mapping[Place, str]) -> dict[Place, int]:
    """The error code of each; 0 means accepted."""
    body = message("AlterReplicaLogDirsRequest")
    rows = [
        body.AlterReplicaLogDir(
            path=path, topics=[body.AlterReplicaLogDir.AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
        )
        for (topic, partition), path in wanted.items()
    ]
    answer = ask(address, body(dirs=_merged(rows)), ALTER_LOG_DIRS)
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in answer.results
        for partition in topic.partitions
    }


def _merged(rows: Sequence[Any]) -> list[Any]:
    """The rows with each path only once."""
    merged: dict[str, Any] = {}
    for row in rows:
        if row.path in merged:
            merged[row.path].topics.extend(row.topics)
        else:
            merged[row.path] = row
    return list(merged.values())


def describe_log_dirs(address: str) -> list[Directory]:
    body = message("DescribeLogDirsRequest")
    answer = ask(address, body(topics=None), DESCRIBE_LOG_DIRS)
    return [
        Directory(
            found.log_dir,
            found.error_code,
            tuple(
                Held((topic.name, each.partition_index), each.partition_size, each.offset_lag, each.is_future_key)
                for topic in found.topics
                for each in topic.partitions
            ),
        )
        for found in answer.results
    ]


def reassign(address: str, wanted: Mapping[Place, Sequence[int] | None]) -> dict[Place, int]:
    """None cancels. Returns the error code of each; 0 means accepted."""
    body = message("AlterPartitionReassignmentsRequest")
    topics = [
        body.ReassignableTopic(
            name=topic,
            partitions=[
                body.ReassignableTopic.ReassignablePartition(
                    partition_index=partition, replicas=None if replicas is None else list(replicas)
                )
            ],
        )
        for (topic, partition), replicas in wanted.items()
    ]
    request = body(timeout_ms=int(TIMEOUT_S * 1000), topics=topics)
    answer = ask(address, request, ALTER_REASSIGNMENTS)
    if answer.error_code:
        return dict.fromkeys(wanted, answer.error_code)
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.responses
        for partition in topic.partitions
    }


def reassigning(address: str) -> set[Place]:
    body = message("ListPartitionReassignmentsRequest")
    request = body(timeout_ms=int(TIMEOUT_S * 1000), topics=None)
    answer = ask(address, request, LIST_REASSIGNMENTS)
    if answer.error_code:
        raise ConnectionError(f"error {answer.error_code}")
    return {
        (topic.name, partition.partition_index) for topic in answer.topics for partition in topic.partitions
    }  # fmt: skip


def configure_broker(address: str, node_id: int, values: Mapping[str, str]) -> None:
    """Set dynamic configs of one broker."""
    body = message("IncrementalAlterConfigsRequest")
    kind = body.AlterConfigsResource
    entries = [kind.AlterableConfig(name=name, config_operation=SET, value=value) for name, value in values.items()]
    resource = kind(resource_type=BROKER_RESOURCE, resource_name=str(node_id), configs=entries)
    request = body(resources=[resource], validate_only=False)
    answer = ask(address, request, ALTER_CONFIGS)
    for each in answer.responses:
        if each.error_code:
            raise ConnectionError(f"error {each.error_code}: {each.error_message}")
