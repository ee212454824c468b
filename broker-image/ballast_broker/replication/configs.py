"""Applies dynamic configuration to this broker's replicas: log configs, replication throttles and rates, cordoned
directories, cleaning. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ballast_broker.config.entries import dynamic_values
from ballast_broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC
from ballast_broker.replication.quotas import UNLIMITED, throttles_partition

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.metadata.image import MetadataImage
    from ballast_broker.replication.quotas import ByteRate
    from ballast_broker.replication.replica import Replica
    from ballast_broker.replication.replicas import Replicas
    from ballast_broker.storage.placement import Placement

CORDONED = "cordoned.log.dirs"


class ReplicaConfigs:
    """`of_topic`: a topic's log configuration. `rates`: the limited rates, by the name of their limit."""

    def __init__(
        self,
        broker_id: int,
        of_topic: Callable[[MetadataImage, str], LogConfig],
        placement: Placement,
        rates: Mapping[str, ByteRate],
        rates_changed: Callable[[], None],
        configure_cleaner: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.of_topic = of_topic
        self._broker_id = broker_id
        self._placement = placement
        self._rates = rates
        self._rates_changed = rates_changed
        self._configure_cleaner = configure_cleaner

    def cordon(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if _of_brokers(delta):
            of_all, own = self._layers(image)
            self._placement.cordon(own.get(CORDONED, of_all.get(CORDONED)))

    def publish(self, delta: MetadataDelta, image: MetadataImage, replicas: Replicas) -> Iterator[None]:
        """Apply changed topic configs, or all of them if a broker default changed. Yields after each replica."""
        topics = {name for resource_type, name in delta.configs_changed if resource_type == RESOURCE_TOPIC}
        everything = _of_brokers(delta)
        if everything:
            dynamic = dynamic_values(*self._layers(image))
            for name, rate in self._rates.items():
                rate.change_limit(dynamic.get(name, UNLIMITED))
            self._rates_changed()
            self._configure_cleaner(dynamic)
        configs: dict[str, LogConfig] = {}
        for replica in replicas.all() if topics or everything else ():
            topic = replica.topic_partition.topic
            if everything or topic in topics:
                config = configs.get(topic) or configs.setdefault(topic, self.of_topic(image, topic))
                self.apply(replica, config)
                yield

    def apply(self, replica: Replica, config: LogConfig) -> None:
        replica.configure(config)
        number = replica.topic_partition.partition
        replica.leader_throttled = throttles_partition(
            config.leader_replication_throttled_replicas, number, self._broker_id
        )
        replica.follower_throttled = throttles_partition(
            config.follower_replication_throttled_replicas, number, self._broker_id
        )

    def _layers(self, image: MetadataImage) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The dynamic configuration of all brokers, and that of this one, which takes precedence."""
        return image.configs.of(RESOURCE_BROKER, ""), image.configs.of(RESOURCE_BROKER, str(self._broker_id))


def _of_brokers(delta: MetadataDelta) -> bool:
    return any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.configs_changed)
