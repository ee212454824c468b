"""Tells the coordinators, from metadata changes, which partitions of their topics this broker leads."""

from __future__ import annotations

from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ballast_broker.coordinator.transaction_service import TransactionCoordinator
from ballast_broker.metadata.delta import MetadataDelta, TopicDelta
from ballast_broker.metadata.image import MetadataImage, TopicImage
from ballast_broker.metadata.loader import Steps


class GroupLeadership:
    """A publisher; it has to come after the replicas, whose logs it reads."""

    def __init__(self, node_id: int, groups: GroupCoordinator) -> None:
        self._node_id = node_id
        self._groups = groups

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> Steps | None:
        gone = frozenset(topic.name for topic in delta.topics_deleted.values())
        if OFFSETS_TOPIC in gone:
            self._groups.resign_all()  # before the new topic of that name, which a snapshot may bring at the same time
        topic = image.topics.by_name(OFFSETS_TOPIC)
        for changed in delta.topics_changed.values():
            if changed.name == OFFSETS_TOPIC and topic is not None:
                self._take_over(changed, topic, image)
        grown = frozenset(each.name for each in delta.topics_changed.values() if _has_grown(each))
        if gone:
            return self._forget(gone, grown, image)
        if grown:
            self._groups.topics_changed(grown)
        return None

    def _forget(self, gone: frozenset[str], grown: frozenset[str], image: MetadataImage) -> Steps:
        forgetting = self._groups.forget_topics(gone)
        if any(image.topics.by_name(name) is not None for name in gone):
            for _ in forgetting:  # at once: members may already commit offsets of the new topic of that name
                pass
        yield from forgetting
        self._groups.topics_changed(gone | grown)

    def _take_over(self, changed: TopicDelta, topic: TopicImage, image: MetadataImage) -> None:
        self._groups.divide(len(topic.partitions))
        for number, registration in changed.partitions.items():
            if registration.leader == self._node_id:
                self._groups.lead(number, lambda name: image.topics.by_name(name) is not None)
            else:
                self._groups.resign(number)


def _has_grown(topic: TopicDelta) -> bool:
    return topic.is_new or any(topic.previous(number) is None for number in topic.partitions)


class TransactionLeadership:
    """A publisher; it has to come after the replicas, whose logs it reads."""

    def __init__(self, node_id: int, transactions: TransactionCoordinator) -> None:
        self._node_id = node_id
        self._transactions = transactions

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if any(topic.name == TRANSACTIONS_TOPIC for topic in delta.topics_deleted.values()):
            self._transactions.resign_all()
        topic = image.topics.by_name(TRANSACTIONS_TOPIC)
        for changed in delta.topics_changed.values():
            if changed.name != TRANSACTIONS_TOPIC or topic is None:
                continue
            self._transactions.divide(len(topic.partitions))
            for number, registration in changed.partitions.items():
                if registration.leader == self._node_id:
                    self._transactions.lead(number)
                else:
                    self._transactions.resign(number)
