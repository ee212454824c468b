"""Logs that a broker finds on its disks and that the metadata does not put there. Loop thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ballast_broker.metadata.image import MetadataImage, PartitionRegistration, TopicImage
    from ballast_broker.storage.manager import LogManager


def delete_what_was_deleted(logs: LogManager, topics: Iterable[TopicImage]) -> None:
    """Of topics whose end this broker reads in the metadata that it missed: it need not be the newest for that, as no
    topic gets an id again. That a snapshot lacks them is no such record: voters that were restored from a backup lack
    what was made since, and its logs may be all that is left."""
    for topic in topics:
        for number in topic.partitions:
            logs.delete_only(TopicPartition(topic.name, number), topic.id)


def settle_strays(logs: LogManager, broker_id: int, image: MetadataImage) -> list[TopicPartition]:
    """They go; answers which were set aside. Only for an image that is up to date.

    What it took from here while this broker or its directory was away is deleted, as from a broker that is there. What
    it does not know is set aside; so is what was written under a leader that it has yet to elect: it is then older than
    the log, and may be wrong about who has it.
    """

    def registered(topic_partition: TopicPartition, topic_id: UUID) -> PartitionRegistration | None:
        topic = image.topics.by_name(topic_partition.topic)
        return topic.partitions.get(topic_partition.partition) if topic and topic.id == topic_id else None

    def is_here(topic_partition: TopicPartition, topic_id: UUID) -> bool:
        known = registered(topic_partition, topic_id)
        return known is not None and broker_id in known.replicas

    strays = []
    for topic_partition, log in {**logs.future_logs, **logs.logs}.items():  # the copy of a move may be alone
        if is_here(topic_partition, log.topic_id):
            continue
        known = registered(topic_partition, log.topic_id)
        if known is not None and (log.latest_epoch or 0) <= known.leader_epoch:
            logs.delete(topic_partition)
        else:
            logs.rename_stray(topic_partition)
            strays.append(topic_partition)
    return strays + logs.set_aside_the_unclaimed(is_here)
