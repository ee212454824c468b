"""A partition as clients on one listener see it: leader, offline replicas, errors. PURE.

Shared by Metadata and DescribeTopicPartitions, which report the same facts with different errors.
"""

from __future__ import annotations

from ballast_broker.metadata.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    Listener,
    MetadataImage,
    PartitionRegistration,
)
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def endpoint(cluster: ClusterImage, broker_id: int, listener: str) -> Listener | None:
    """The broker's endpoint on this listener; None if it is not registered or lacks the listener."""
    broker = cluster.brokers.get(broker_id)
    return None if broker is None else broker.listeners.get(listener)


def live_brokers(cluster: ClusterImage, listener: str) -> list[BrokerImage]:
    return [broker for broker in cluster.unfenced() if listener in broker.listeners]


def reachable_leader(partition: PartitionRegistration, cluster: ClusterImage, listener: str) -> int:
    """The leader, or -1 if there is none that clients of this listener can reach."""
    return NO_LEADER if endpoint(cluster, partition.leader, listener) is None else partition.leader


def leader_error(partition: PartitionRegistration, cluster: ClusterImage, listener: str) -> ErrorCode:
    if endpoint(cluster, partition.leader, listener) is not None:
        return ErrorCode.NONE
    if partition.leader in cluster.brokers:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.LEADER_NOT_AVAILABLE


def offline_replicas(partition: PartitionRegistration, cluster: ClusterImage, listener: str) -> list[int]:
    """Replicas on brokers that are unregistered, fenced or without this listener, or in an offline directory."""
    return [
        broker_id
        for broker_id, directory in zip(partition.replicas, partition.directories, strict=True)
        if (broker := cluster.brokers.get(broker_id)) is None
        or broker.fenced
        or listener not in broker.listeners
        or (directory not in broker.directories and not broker.has_directory(directory))
    ]


def absence(image: MetadataImage, topic_partition: TopicPartition) -> ErrorCode:
    """The error for a partition that is not on this broker: it is elsewhere, or does not exist."""
    topic = image.topics.by_name(topic_partition.topic)
    if topic is not None and topic_partition.partition in topic.partitions:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
