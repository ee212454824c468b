"""Holds metadata back from a node's publishers until the image contains its current registration. PURE.

A starting node reads the metadata log from a snapshot on, so for a while it sees itself leading partitions that others
have led since. Acting on that would accept writes with a stale leader epoch and corrupt the epochs of its logs. So
nothing is passed on until the image has this broker's current registration, which no older image can have; then the
whole image, in steps, and after that every change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ballast_broker.metadata.delta import MetadataDelta, TopicDelta
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from ballast_broker.metadata.loader import Publisher, Steps, tell
from ballast_broker.metadata.persistent import Making

NO_EPOCH = -1


class RegistrationGate:
    """A publisher in front of others. `broker_epoch` returns -1 until the registration is answered."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        publishers: Sequence[Publisher],
        on_open: Publisher = lambda _delta, _image: None,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._publishers = list(publishers)
        self._on_open = on_open  # called after them, once
        self._opening: Steps = iter(())
        self.is_open = False

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> Steps | None:
        return self._change(delta, image) if self.is_open else self.look(image)

    def look(self, image: MetadataImage) -> Steps | None:
        """Open the gate if it is time. Also call it when the registration is answered: its record may be here."""
        if self.is_open or not self._is_of_this_life(image):
            return None
        self.is_open = True
        self._opening = self._open(image)
        return self._opening

    def _open(self, image: MetadataImage) -> Steps:
        yield from tell([*self._publishers, self._on_open], (yield from whole(image)), image) or ()

    def _is_of_this_life(self, image: MetadataImage) -> bool:
        broker, epoch = image.cluster.brokers.get(self._node_id), self._broker_epoch()
        return broker is not None and broker.epoch == epoch != NO_EPOCH

    def _change(self, delta: MetadataDelta, image: MetadataImage) -> Steps:
        """Opening yields to other tasks: a change that comes meanwhile first completes the rest of it."""
        yield from self._opening
        yield from tell(self._publishers, delta, image) or ()


def whole(image: MetadataImage) -> Making[MetadataDelta]:
    """The delta from the empty image to `image`."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for topic in image.topics.topics_by_id.values():
        delta.topics_changed[topic.id] = TopicDelta(topic.id, topic.name, None, dict(topic.partitions))
        yield
    delta.brokers_changed = dict(image.cluster.brokers)
    delta.controllers_changed = dict(image.cluster.controllers)
    for resource, configs in image.configs.by_resource.items():
        delta.configs_changed[resource] = dict(configs)
        yield
    delta.features_changed = dict(image.features.levels)
    for entity, quotas in image.client_quotas.by_entity.items():
        delta.client_quotas_changed[entity] = dict(quotas)
        yield
    delta.next_producer_id = image.producer_ids.next_producer_id
    return delta
