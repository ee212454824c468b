"""Counts what brokers and log directories hold; None wherever that is not known for sure. PURE."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import DirectoryId, KafkaView, ReplicaId
from ballast_operator.resources import names


def replicas_on(view: KafkaView, brokers: Collection[int]) -> int | None:
    """How many replicas these brokers hold or are about to get; None if that is not known for sure."""
    if view.topic_errors or not view.brokers:
        return None
    chosen = set(brokers)
    held = sum(
        broker in chosen
        for topic in view.topics.values()
        for part in topic.partitions.values()
        for broker in part.replicas
    )
    arriving = sum(broker in chosen for ongoing in view.ongoing.values() for broker in ongoing.adding)
    return held + arriving


def directories_of(
    cluster: KafkaCluster, view: KafkaView, volumes: Collection[str], brokers: Collection[int]
) -> dict[DirectoryId, str]:
    """The log directories that lie on these volumes, with the volume's name."""
    found = {}
    for directory in view.directories:
        pod = names.pod_name(cluster, directory.broker)
        volume = names.volume_of(directory.path, pod, tuple(volumes))
        if volume is not None and directory.broker in brokers:
            found[directory] = volume
    return found


def paths_of(broker: int, directories: Iterable[DirectoryId]) -> str | None:
    """The paths of one broker's directories, as its configuration lists them."""
    return ",".join(sorted(d.path for d in directories if d.broker == broker)) or None


def replicas_in(view: KafkaView, directories: Collection[DirectoryId], brokers: Collection[int]) -> int | None:
    """How many logs are in these directories or are moving there; None unless all these brokers described theirs.

    A replica that a broker is assigned but does not describe counts as being in its failed directory.
    """
    chosen = set(directories)
    failed = {d.broker for d in chosen if d in view.directories and not view.directories[d].online}
    if not set(brokers) <= view.described or (failed and view.topic_errors):
        return None
    hidden = sum(
        ReplicaId(name, index, broker) not in view.logs
        for name, topic in view.topics.items()
        for index, part in topic.partitions.items()
        for broker in failed.intersection(part.replicas)
    )
    return hidden + sum(
        DirectoryId(replica.broker, path) in chosen
        for replica, log in view.logs.items()
        for path in (log.path, log.future_path)
        if path is not None
    )
