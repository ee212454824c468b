"""Defines the view of a Kafka cluster: one immutable snapshot, from which everything is decided. PURE.

What could not be read is absent from a mapping or None, which means only that it is not known. A topic that is known
not to exist is in `missing`, never just absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ReplicaId(NamedTuple):
    topic: str
    partition: int
    broker: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class BrokerView(NamedTuple):
    """`online` means registered and not fenced."""

    id: int
    host: str
    port: int
    rack: str | None = None
    online: bool = True


class PartitionView(NamedTuple):
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicView(NamedTuple):
    id: str
    partitions: Mapping[int, PartitionView]

    @property
    def replication_factor(self) -> int:
        return min((len(view.replicas) for view in self.partitions.values()), default=0)


class OngoingView(NamedTuple):
    """A reassignment between brokers in progress, as ListPartitionReassignments reports it."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas at the end."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


class DirectoryId(NamedTuple):
    broker: int
    path: str


class DirectoryView(NamedTuple):
    """Sizes are -1 if the broker does not report them (before Kafka 3.3)."""

    error: str | None
    total_bytes: int
    usable_bytes: int
    cordoned: bool = False

    @property
    def online(self) -> bool:
        return self.error is None


class LogView(NamedTuple):
    """Where a replica's log is, and where its future log is if it is moving."""

    path: str | None
    size_bytes: int
    future_path: str | None = None
    future_size_bytes: int = 0


class ConfigId(NamedTuple):
    resource: str
    name: str
    key: str


BROKER = "Broker"
TOPIC = "Topic"


@dataclass(frozen=True, slots=True)
class KafkaView:
    """`logs` holds the replicas of those brokers that are in `described`; of the others nothing is known.

    `lists_fenced`: `brokers` includes fenced ones, as since Kafka 4.0. `controllers` tells whether a broker runs as a
    controller, too, if it has reported that.
    """

    cluster_id: str = ""
    controller: int = -1
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    lists_fenced: bool = False
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    topic_errors: Mapping[str, str] = field(default_factory=dict)
    ongoing: Mapping[TopicPartition, OngoingView] = field(default_factory=dict)
    directories: Mapping[DirectoryId, DirectoryView] = field(default_factory=dict)
    logs: Mapping[ReplicaId, LogView] = field(default_factory=dict)
    described: frozenset[int] = frozenset()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    controllers: Mapping[int, bool] = field(default_factory=dict)

    def is_online(self, broker: int) -> bool:
        known = self.brokers.get(broker)
        return known is not None and known.online

    def is_missing_from_full_list(self, broker: int) -> bool:
        """Whether all registered brokers are listed, and it is not among them. Before Kafka 4.0 nobody can tell."""
        return self.lists_fenced and bool(self.brokers) and broker not in self.brokers

    def surely_unregistered(self, broker: int) -> bool:
        """Whether a broker is known to be gone for good; one that is only down is still registered.

        Before Kafka 4.0 fenced brokers are not listed: there one that still has replicas may come back.
        """
        if not self.brokers or broker in self.brokers:
            return False
        return self.lists_fenced or not any(
            broker in part.replicas for topic in self.topics.values() for part in topic.partitions.values()
        )

    def with_absent(self) -> KafkaView:
        """The view, plus unlisted brokers that have replicas: before Kafka 4.0 those that are away."""
        if self.lists_fenced:
            return self
        named = {b for topic in self.topics.values() for part in topic.partitions.values() for b in part.replicas}
        absent = {broker: BrokerView(broker, "", -1, online=False) for broker in named - self.brokers.keys()}
        return replace(self, brokers={**self.brokers, **absent})

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        view = self.topics.get(topic)
        return view.partitions.get(partition) if view else None

    def config(self, config: ConfigId) -> tuple[bool, str | None]:
        """(whether it is known, its dynamic value if it has one)."""
        values: Mapping[str, str] | None
        if config.resource == BROKER:
            values = self.broker_configs.get(int(config.name))
        else:
            values = self.topic_configs.get(config.name)
        return (False, None) if values is None else (True, values.get(config.key))


class Outcome(NamedTuple):
    """The answer to one entry of a request: Kafka's error name, or None for success.

    `doubtful`: the request may have been sent more than once, and carried out before this answer.
    """

    error: str | None = None
    message: str = ""
    topic_id: str = ""
    doubtful: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None
