"""Builds the planner's model of a cluster from what was observed. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ballast_operator.model.kafka import DirectoryId, KafkaView, LogView, ReplicaId, TopicPartition
from ballast_planner import Broker, ClusterLoad, Directory, Replica

# Brokers before Kafka 3.3 do not report the size of a volume, so no capacity limits a plan. This is far larger than any
# volume, and small enough that the planner accepts the sum over thousands of directories.
UNKNOWN_CAPACITY = 1 << 47


def cluster_load(view: KafkaView, weights: Mapping[DirectoryId, int] | None) -> ClusterLoad:
    """All brokers, directories and replicas of the view. Replicas whose directory is not known stay without one.

    `weights` holds the percentage of directories that do not count in full.

    A broker does not describe the replicas in its failed directories: one that it is assigned but does not describe
    counts as being in a failed directory, if there is one.
    """
    directories = [
        row.weighted((weights or {}).get(DirectoryId(row.broker, row.path), 100)) for row in _directories(view)
    ]
    return ClusterLoad.from_rows(list(_brokers(view)), directories, list(_replicas(view)))


def _brokers(view: KafkaView) -> Iterator[Broker]:
    named = {broker for topic in view.topics.values() for part in topic.partitions.values() for broker in part.replicas}
    for broker in sorted(named | view.brokers.keys()):
        known = view.brokers.get(broker)
        # A broker that did not describe its directories can neither give nor take anything now.
        alive = known is not None and known.online and broker in view.described
        yield Broker(broker, known.rack if known else None, alive)


def _directories(view: KafkaView) -> Iterator[Directory]:
    for (broker, path), directory in view.directories.items():
        total, used = UNKNOWN_CAPACITY, 0
        if directory.total_bytes >= 0 and directory.usable_bytes >= 0:
            total, used = directory.total_bytes, directory.total_bytes - directory.usable_bytes
        yield Directory(broker, path, total, used, directory.cordoned, directory.online)


def _replicas(view: KafkaView) -> Iterator[Replica]:
    failed = {where.broker: where.path for where, found in sorted(view.directories.items()) if not found.online}
    for name, topic in view.topics.items():
        for index, part in topic.partitions.items():
            partition = TopicPartition(name, index)
            size = partition_size(view, partition, part.replicas)
            for position, broker in enumerate(part.replicas):
                lost = failed.get(broker) if broker in view.described else None
                log = view.logs.get(ReplicaId(name, index, broker), LogView(lost, size))
                leads = broker == part.leader
                yield Replica(name, index, broker, log.path, log.size_bytes, leads, position)


def partition_size(view: KafkaView, partition: TopicPartition, replicas: tuple[int, ...]) -> int:
    """Bytes of the largest replica that is known."""
    sizes = (view.logs.get(ReplicaId(*partition, broker)) for broker in replicas)
    return max((log.size_bytes for log in sizes if log is not None), default=0)


def undescribed_partitions(view: KafkaView) -> list[TopicPartition]:
    """Partitions of which no broker describes a log, though all that have them answered and have no failed directory.

    Their logs are just being created or deleted. As long as their size is unknown, a plan would take them for empty and
    leave them where they are, however large they turn out to be.
    """
    failed = {where.broker for where, found in view.directories.items() if not found.online}
    healthy = view.described - failed
    return [
        TopicPartition(name, index)
        for name, topic in sorted(view.topics.items())
        for index, part in sorted(topic.partitions.items())
        if healthy.issuperset(part.replicas)
        and not any(ReplicaId(name, index, broker) in view.logs for broker in part.replicas)
    ]
