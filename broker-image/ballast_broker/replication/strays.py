"""Deletes or sets aside logs on a broker's disks that the metadata does not place there. Loop thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ballast_broker.metadata.image import MetadataImage, PartitionRegistration, TopicImage
    from ballast_broker.storage.manager import LogManager


def delete_what_was_deleted(logs: LogManager, topics: Iterable[TopicImage]) -> None:
    """Delete the logs of topics whose removal is recorded in metadata that this broker missed. The metadata need not be
    up to date for that, since topic ids are never reused. That a snapshot lacks a topic is no such record: voters
    restored from a backup lack topics created since, whose logs may be all that is left."""
    for topic in topics:
        for number in topic.partitions:
            logs.delete_only(TopicPartition(topic.name, number), topic.id)


def settle_strays(logs: LogManager, broker_id: int, image: MetadataImage) -> list[TopicPartition]:
    """Remove all strays; returns those that were set aside. Only for an image that is up to date.

    A replica that was removed while this broker or its directory was offline is deleted, as it would have been online.
    A log of an unknown topic is set aside; so is a log with a later leader epoch than the image: the image is then
    older than the log, and may be wrong about who holds the partition.
    """

    def registered(topic_partition: TopicPartition, topic_id: UUID) -> PartitionRegistration | None:
        topic = image.topics.by_name(topic_partition.topic)
        return topic.partitions.get(topic_partition.partition) if topic and topic.id == topic_id else None

    def is_here(topic_partition: TopicPartition, topic_id: UUID) -> bool:
        known = registered(topic_partition, topic_id)
        return known is not None and broker_id in known.replicas

    strays = []
    for topic_partition, log in {**logs.future_logs, **logs.logs}.items():  # a future log may be alone
        if is_here(topic_partition, log.topic_id):
            continue
        known = registered(topic_partition, log.topic_id)
        if known is not None and (log.latest_epoch or 0) <= known.leader_epoch:
            logs.delete(topic_partition)
        else:
            logs.rename_stray(topic_partition)
            strays.append(topic_partition)
    return strays + logs.set_aside_the_unclaimed(is_here)
