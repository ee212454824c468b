"""The cluster metadata at one offset of the metadata log: immutable, shared within the process. PURE.

`MetadataDelta.apply` builds a new image, which shares everything unchanged with the previous one (`PersistentMap`): its
cost is proportional to the change, not to the cluster. Images may be kept indefinitely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ballast_broker.metadata.acls import Acl
from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.persistent import PersistentMap

NO_LEADER = -1
RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
RESOURCE_BROKER_LOGGER = 8
RESOURCE_CLIENT_METRICS = 16
RESOURCE_GROUP = 32
RESOURCE_TYPES = (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)

RECOVERED = 0
RECOVERING = 1

# Reserved directory ids: not assigned yet, and a replica of a broker without directory ids.
DIRECTORY_UNASSIGNED = UUID(int=0)
DIRECTORY_MIGRATING = UUID(int=2)
FIRST_FREE_DIRECTORY = 100

EMPTY: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, broker_id: int) -> UUID | None:
        """The directory of this broker's replica; None if it has none."""
        try:
            return self.directories[self.replicas.index(broker_id)]
        except ValueError:
            return None


@dataclass(frozen=True)
class TopicImage:
    name: str
    id: UUID
    partitions: Mapping[int, PartitionRegistration]

    def sorted_partitions(self) -> list[tuple[int, PartitionRegistration]]:
        return sorted(self.partitions.items())


def collision_key(name: str) -> str | None:
    """The key two topic names must not share: in metric names '.' becomes '_'. None for a name that has neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None


@dataclass(frozen=True)
class TopicsImage:
    """All topics; iteration is sorted by name."""

    topics_by_id: PersistentMap[UUID, TopicImage] = field(default_factory=PersistentMap)
    ids_by_name: PersistentMap[str, UUID] = field(default_factory=PersistentMap)
    # Names with a '.' or '_' by collision key: topics whose metrics would collide are rejected.
    names_by_collision_key: PersistentMap[str, frozenset[str]] = field(default_factory=PersistentMap)
    # The partitions with a reassignment in progress.
    reassigning: PersistentMap[tuple[UUID, int], bool] = field(default_factory=PersistentMap)

    def by_name(self, name: str) -> TopicImage | None:
        topic_id = self.ids_by_name.get(name)
        return None if topic_id is None else self.topics_by_id[topic_id]

    def by_id(self, topic_id: UUID) -> TopicImage | None:
        topic: TopicImage | None = self.topics_by_id.get(topic_id)
        return topic

    @cached_property
    def sorted_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.ids_by_name))

    def __iter__(self) -> Iterator[TopicImage]:
        for name in self.sorted_names:
            yield self.topics_by_id[self.ids_by_name[name]]

    def __len__(self) -> int:
        return len(self.topics_by_id)


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerImage:
    id: int
    epoch: int
    incarnation_id: UUID
    listeners: Mapping[str, Listener]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: frozenset[UUID]
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: EMPTY)

    @property
    def active(self) -> bool:
        """Whether it may become a leader."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_directory(self, directory: UUID) -> bool:
        """Whether `directory` is online at this broker; unknown directories count as online."""
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING) or not self.directories:
            return True
        return directory in self.directories


@dataclass(frozen=True, slots=True)
class ControllerImage:
    id: int
    incarnation_id: UUID
    listeners: Mapping[str, Listener]
    features: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class ClusterImage:
    brokers: Mapping[int, BrokerImage] = field(default_factory=lambda: EMPTY)
    controllers: Mapping[int, ControllerImage] = field(default_factory=lambda: EMPTY)

    def unfenced(self) -> Iterator[BrokerImage]:
        return (broker for broker in self.brokers.values() if not broker.fenced)


@dataclass(frozen=True)
class ConfigsImage:
    by_resource: PersistentMap[tuple[int, str], Mapping[str, str]] = field(default_factory=PersistentMap)

    def of(self, resource_type: int, name: str) -> Mapping[str, str]:
        configs: Mapping[str, str] = self.by_resource.get((resource_type, name), EMPTY)
        return configs


@dataclass(frozen=True)
class FeaturesImage:
    levels: Mapping[str, int] = field(default_factory=lambda: EMPTY)

    def level(self, name: str) -> int:
        return self.levels.get(name, 0)


# A quota entity: sorted pairs of (entity type, name), a name of None being the default.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class ClientQuotasImage:
    by_entity: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=lambda: EMPTY)

    def of(self, entity: QuotaEntity) -> Mapping[str, float]:
        return self.by_entity.get(entity, EMPTY)


@dataclass(frozen=True)
class ProducerIdsImage:
    next_producer_id: int = 0


@dataclass(frozen=True)
class SecurityImage:
    """ACLs, SCRAM credential records by (user, mechanism), and delegation tokens by id."""

    acls: PersistentMap[UUID, Acl] = field(default_factory=PersistentMap)
    acl_ids: PersistentMap[Acl, UUID] = field(default_factory=PersistentMap)
    scram_credentials: Mapping[tuple[str, int], Any] = field(default_factory=lambda: EMPTY)
    delegation_tokens: PersistentMap[str, DelegationToken] = field(default_factory=PersistentMap)


@dataclass(frozen=True)
class MetadataImage:
    """`offset` is that of the last record contained, -1 for none; `epoch` is that record's epoch."""

    offset: int = -1
    epoch: int = -1
    topics: TopicsImage = field(default_factory=TopicsImage)
    cluster: ClusterImage = field(default_factory=ClusterImage)
    configs: ConfigsImage = field(default_factory=ConfigsImage)
    features: FeaturesImage = field(default_factory=FeaturesImage)
    client_quotas: ClientQuotasImage = field(default_factory=ClientQuotasImage)
    producer_ids: ProducerIdsImage = field(default_factory=ProducerIdsImage)
    security: SecurityImage = field(default_factory=SecurityImage)


EMPTY_IMAGE = MetadataImage()
