"""Keeps what a node does with metadata back until the metadata is of its present life. PURE.

A node that starts reads the metadata log from a snapshot on: for a while it sees itself leading partitions that others
have led since. Acting on that would take writes with a dead epoch and spoil the epochs of its logs. So nothing is
passed on until the image has this broker's present registration, which no older image can have; then everything at
once, and from then on every change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ballast_broker.metadata.delta import MetadataDelta, TopicDelta
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from ballast_broker.metadata.loader import Publisher, Steps, tell

NO_EPOCH = -1


class RegistrationGate:
    """A publisher in front of others. `broker_epoch` answers -1 until the registration was answered."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        publishers: Sequence[Publisher],
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._publishers = list(publishers)
        self._on_open = on_open  # when they have all been told
        self.is_open = False

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> Steps | None:
        return tell(self._publishers, delta, image) if self.is_open else self.look(image)

    def look(self, image: MetadataImage) -> Steps | None:
        """Open if it is time; also to be called when the registration is answered: its record may be here already."""
        epoch = self._broker_epoch()
        broker = image.cluster.brokers.get(self._node_id)
        if self.is_open or epoch == NO_EPOCH or broker is None or broker.epoch != epoch:
            return None
        self.is_open = True
        return tell([*self._publishers, lambda _delta, _image: self._on_open()], whole(image), image)


def whole(image: MetadataImage) -> MetadataDelta:
    """The delta that leads from nothing to `image`."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for topic in image.topics:
        delta.topics_changed[topic.id] = TopicDelta(topic.id, topic.name, None, dict(topic.partitions))
    delta.brokers_changed = dict(image.cluster.brokers)
    delta.controllers_changed = dict(image.cluster.controllers)
    delta.configs_changed = {resource: dict(configs) for resource, configs in image.configs.by_resource.items()}
    delta.features_changed = dict(image.features.levels)
    delta.client_quotas_changed = {entity: dict(quotas) for entity, quotas in image.client_quotas.by_entity.items()}
    delta.next_producer_id = image.producer_ids.next_producer_id
    return delta
