"""Reads a Kafka cluster's state into frozen views. Changes nothing.

Each function sends as few requests as the protocol allows, whatever the number of topics. What could not be read stays
unknown; a topic counts as missing only if a broker says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from ballast_operator.kafka_client import KafkaConnection, KafkaUnavailableError, error_of
from ballast_operator.model.kafka import (
    BROKER,
    TOPIC,
    BrokerView,
    DirectoryId,
    DirectoryView,
    KafkaView,
    LogView,
    OngoingView,
    PartitionView,
    ReplicaId,
    TopicPartition,
    TopicView,
)
from ballast_operator.model.quorum import STATIC, Member, QuorumView

KRAFT_VERSION = "kraft.version"
MIN_INSYNC = "min.insync.replicas"
PROCESS_ROLES = "process.roles"
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
DYNAMIC_TOPIC_SOURCE = 1
DYNAMIC_BROKER_SOURCE = 2
CONFIGS_PER_REQUEST = 1_000
TOPICS_PER_REQUEST = 2_000
UNKNOWN_TOPIC = 3
# Error codes that the library names differently from Kafka.
RENAMED = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    39: "INVALID_REPLICA_ASSIGNMENT",
}


def error_name(code: int) -> str | None:
    """Kafka's name of an error code, None for success."""
    if code == 0:
        return None
    return RENAMED.get(code) or str(kafka_errors.for_code(code).message)


async def observe_brokers(kafka: KafkaConnection) -> KafkaView:
    """Brokers, controller and cluster id."""
    view = await observe_listed(kafka)
    return replace(view, controller=await _observe_controller(kafka, view.controller))


async def observe_listed(kafka: KafkaConnection) -> KafkaView:
    """Brokers and cluster id, as any broker knows them; with KRaft, not which of them is the controller."""
    try:
        return await _describe_cluster(kafka, include_fenced=True)
    except KafkaUnavailableError as error:
        if "version" not in str(error).lower():
            raise
        return await _describe_cluster(kafka, include_fenced=False)


async def _describe_cluster(kafka: KafkaConnection, include_fenced: bool) -> KafkaView:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    if include_fenced:
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    response = await kafka.send(request)
    if response.error_code:
        raise error_of(response)
    brokers = {
        row.broker_id: BrokerView(row.broker_id, row.host, row.port, row.rack, not getattr(row, "is_fenced", False))
        for row in response.brokers
    }
    return KafkaView(
        cluster_id=response.cluster_id,
        controller=response.controller_id,
        brokers=brokers,
        lists_fenced=include_fenced and response.version >= 2,
    )


async def _observe_controller(kafka: KafkaConnection, told: int) -> int:
    """With KRaft, DescribeCluster may name any broker, since all forward; the quorum knows the active controller."""
    leader = await observe_leader(kafka)
    return told if leader is None else leader[0]


async def observe_leader(kafka: KafkaConnection) -> tuple[int, int] | None:
    """(active controller, its epoch) from DescribeQuorum; None if there is none or the request is refused."""
    if not await kafka.supports(DescribeQuorumRequest):
        return None
    found = _told(await kafka.send(_quorum_request()))
    return None if found is None else (found.leader_id, found.leader_epoch)


def _quorum_request() -> Any:
    row = DescribeQuorumRequest.TopicData
    topic = row(topic_name="__cluster_metadata", partitions=[row.PartitionData(partition_index=0)])
    return DescribeQuorumRequest(topics=[topic])


def _told(response: Any) -> Any:
    found = [part for topic in response.topics for part in topic.partitions if not part.error_code]
    return found[0] if found and not response.error_code else None


async def observe_quorum(kafka: KafkaConnection) -> QuorumView | None:
    """Voters and observers; None without a leader. Brokers that cannot change voters report no directory ids."""
    asked = ApiVersionsRequest(client_software_name="ballast-operator", client_software_version="1", min_version=3)
    features = (await kafka.send(asked)).finalized_features or ()
    version = next((row.max_version_level for row in features if row.name == KRAFT_VERSION), STATIC)
    response = await kafka.send(_quorum_request())
    found = _told(response)
    if found is None or not found.current_voters:
        return None
    hosts = {node.node_id: listener.host for node in response.nodes for listener in node.listeners if listener.host}
    voters = {row.replica_id: _member(row) for row in found.current_voters}
    observers = tuple(_member(row) for row in found.observers)
    return QuorumView(version, found.leader_id, found.high_watermark, voters, observers, hosts)


def _member(row: Any) -> Member:
    times = (row.last_fetch_timestamp, row.last_caught_up_timestamp)
    return Member(row.replica_id, row.replica_directory_id, row.log_end_offset, *times)


async def observe_topics(
    kafka: KafkaConnection, names: Collection[str] | None, node: int | None = None
) -> tuple[dict[str, TopicView], frozenset[str], dict[str, str]]:
    """(topics, names that do not exist, errors of unreadable ones); `None` means all topics, or any node."""
    topics: dict[str, TopicView] = {}
    missing: set[str] = set()
    errors: dict[str, str] = {}
    for chunk in _chunks(names, TOPICS_PER_REQUEST):
        response = await kafka.send(_metadata_request(chunk), node)
        for row in response.topics:
            if row.error_code == UNKNOWN_TOPIC:
                missing.add(row.name)
            elif row.error_code and not row.partitions:
                errors[row.name] = str(error_name(row.error_code))
            else:
                topics[row.name] = _topic_view(row)
        await asyncio.sleep(0)
    return topics, frozenset(missing), errors


def _metadata_request(names: Sequence[str] | None) -> Any:
    rows = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=False)


def _topic_view(row: Any) -> TopicView:
    partitions = {
        part.partition_index: PartitionView(part.leader_id, tuple(part.replica_nodes), tuple(part.isr_nodes))
        for part in row.partitions
    }
    return TopicView(str(getattr(row, "topic_id", "") or ""), partitions)


async def observe_ongoing(kafka: KafkaConnection) -> dict[TopicPartition, OngoingView]:
    """All reassignments between brokers in progress."""
    request = ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None)
    response = await kafka.send_to_controller(request, lambda r: [r.error_code])
    if response.error_code:
        raise error_of(response)
    return {
        TopicPartition(topic.name, part.partition_index): OngoingView(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in response.topics
        for part in topic.partitions
    }


async def observe_topic_configs(
    kafka: KafkaConnection, names: Iterable[str], keys: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """The topics' own settings, all or only `keys`; a topic that could not be read is absent."""
    read, _ = await observe_settings(kafka, dict.fromkeys(names, keys))
    return {name: settings.own for name, settings in read.items()}


class Settings(NamedTuple):
    """`own`: set on the topic itself; `min_insync`: the effective value, if it was asked for."""

    own: dict[str, str]
    min_insync: int | None


async def observe_settings(
    kafka: KafkaConnection, wanted: Mapping[str, Collection[str] | None]
) -> tuple[dict[str, Settings], dict[str, str]]:
    """(settings by topic, errors of those that could not be read); `wanted` has the keys per topic, None for all."""
    found: dict[str, Settings] = {}
    errors: dict[str, str] = {}
    for chunk in _chunks(wanted, CONFIGS_PER_REQUEST) or ():
        assert chunk is not None
        keys = {name: wanted[name] for name in chunk}
        resources = [(TOPIC_RESOURCE, name, None if of is None else sorted(of)) for name, of in keys.items()]
        response = await kafka.send(DescribeConfigsRequest(resources=resources))
        for row in response.results:
            if not row.error_code:
                own = _set_values(row.configs, DYNAMIC_TOPIC_SOURCE)
                found[row.resource_name] = Settings(own, _min_insync(row.configs))
            else:
                errors[row.resource_name] = str(error_name(row.error_code))
        await asyncio.sleep(0)
    return found, errors


async def observe_broker_configs(kafka: KafkaConnection, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
    """The configurations set dynamically on single brokers; a broker that could not be read is absent."""
    requests = {broker: DescribeConfigsRequest(resources=[(BROKER_RESOURCE, str(broker), None)]) for broker in brokers}
    found: dict[int, dict[str, str]] = {}
    for broker, response in (await kafka.send_each(requests)).items():
        if isinstance(response, Exception):
            continue
        for row in response.results:
            if not row.error_code:
                found[broker] = _set_values(row.configs, DYNAMIC_BROKER_SOURCE)
    return found


async def observe_controllers(kafka: KafkaConnection, brokers: Iterable[int]) -> dict[int, bool]:
    """Whether each broker also runs as a controller; one that could not be read is absent."""
    requests = {
        broker: DescribeConfigsRequest(resources=[(BROKER_RESOURCE, str(broker), [PROCESS_ROLES])])
        for broker in brokers
    }
    return {
        broker: "controller" in (config.value or "").split(",")
        for broker, response in (await kafka.send_each(requests)).items()
        if not isinstance(response, Exception)
        for row in response.results
        for config in row.configs
        if config.name == PROCESS_ROLES
    }


async def observe_min_insync(kafka: KafkaConnection, topics: Iterable[str]) -> dict[str, int]:
    """The effective min.insync.replicas of each topic; one that could not be read is absent."""
    read, _ = await observe_settings(kafka, dict.fromkeys(topics, (MIN_INSYNC,)))
    return {topic: settings.min_insync for topic, settings in read.items() if settings.min_insync is not None}


def _min_insync(configs: Iterable[Any]) -> int | None:
    values = (row.value for row in configs if row.name == MIN_INSYNC)
    return next((int(value) for value in values if value and value.isdigit()), None)


def _set_values(configs: Iterable[Any], source: int) -> dict[str, str]:
    return {row.name: row.value for row in configs if row.config_source == source and row.value is not None}


async def observe_directories(
    kafka: KafkaConnection, brokers: Iterable[int], topics: Mapping[str, Collection[int]] | None = None
) -> tuple[dict[DirectoryId, DirectoryView], dict[ReplicaId, LogView], frozenset[int]]:
    """(directories, logs of `topics` or of all, the brokers that answered)."""
    wanted = None
    if topics is not None:
        wanted = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=sorted(partitions))
            for topic, partitions in topics.items()
        ]
    responses = await kafka.send_each({broker: DescribeLogDirsRequest(topics=wanted) for broker in brokers})
    directories: dict[DirectoryId, DirectoryView] = {}
    logs: dict[ReplicaId, LogView] = {}
    described = set()
    for broker, response in responses.items():
        if isinstance(response, Exception) or (hasattr(response, "error_code") and response.error_code):
            continue
        described.add(broker)
        for row in response.results:
            directories[DirectoryId(broker, row.log_dir)] = DirectoryView(
                error_name(row.error_code),
                int(getattr(row, "total_bytes", -1)),
                int(getattr(row, "usable_bytes", -1)),
                getattr(row, "is_cordoned", False) is True,
            )
            _collect_logs(logs, broker, row)
        await asyncio.sleep(0)
    return directories, logs, frozenset(described)


def _collect_logs(logs: dict[ReplicaId, LogView], broker: int, row: Any) -> None:
    for topic in row.topics:
        for part in topic.partitions:
            replica = ReplicaId(topic.name, part.partition_index, broker)
            known = logs.get(replica, LogView(None, 0))
            if part.is_future_key:
                logs[replica] = known._replace(future_path=row.log_dir, future_size_bytes=part.partition_size)
            else:
                logs[replica] = known._replace(path=row.log_dir, size_bytes=part.partition_size)


def _chunks(names: Collection[str] | None, size: int) -> list[list[str] | None]:
    if names is None:
        return [None]
    ordered = list(names)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


__all__ = [
    "BROKER",
    "TOPIC",
    "error_name",
    "observe_broker_configs",
    "observe_brokers",
    "observe_directories",
    "observe_ongoing",
    "observe_topic_configs",
    "observe_topics",
]
