"""The changes that a batch of records makes to an image, and the resulting image. PURE.

`replay` takes records in order; `apply` builds the new image at a cost proportional to the changes, `applying` does so
in steps. The `*_changed` fields tell publishers what changed. A record that does not fit its image raises
`MalformedRecord`: the log and this node disagree, and it must not continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ballast_broker.metadata.acls import Acl
from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.image import (
    RESOURCE_TOPIC,
    BrokerImage,
    ClientQuotasImage,
    ClusterImage,
    ConfigsImage,
    ControllerImage,
    FeaturesImage,
    Listener,
    MetadataImage,
    PartitionRegistration,
    ProducerIdsImage,
    QuotaEntity,
    SecurityImage,
    TopicImage,
    TopicsImage,
    collision_key,
)
from ballast_broker.metadata.partition_merge import merge_change, registration_of
from ballast_broker.metadata.persistent import Making, PersistentMap, at_once
from ballast_broker.metadata.records import MalformedRecord, known_id, name_of

NO_PARTITIONS: PersistentMap[int, PartitionRegistration] = PersistentMap()


@dataclass(slots=True)
class TopicDelta:
    """What changed in one topic: `partitions` has the changed and new ones only."""

    id: UUID
    name: str
    base: TopicImage | None
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        return self.base is None

    def current(self, partition: int) -> PartitionRegistration | None:
        changed = self.partitions.get(partition)
        if changed is not None or self.base is None:
            return changed
        return self.base.partitions.get(partition)

    def previous(self, partition: int) -> PartitionRegistration | None:
        return None if self.base is None else self.base.partitions.get(partition)


class MetadataDelta:
    """`compared`: computed by comparing with a snapshot, so removals are not backed by records."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.compared = False
        self.topics_changed: dict[UUID, TopicDelta] = {}
        self.topics_deleted: dict[UUID, TopicImage] = {}
        self.brokers_changed: dict[int, BrokerImage | None] = {}
        self.controllers_changed: dict[int, ControllerImage] = {}
        self.configs_changed: dict[tuple[int, str], dict[str, str | None]] = {}
        self.features_changed: dict[str, int] = {}
        self.client_quotas_changed: dict[QuotaEntity, dict[str, float | None]] = {}
        self.acls_changed: dict[UUID, Acl | None] = {}
        self.scram_changed: dict[tuple[str, int], Any] = {}
        self.tokens_changed: dict[str, DelegationToken | None] = {}
        self.next_producer_id: int | None = None
        self._created_ids: dict[str, UUID] = {}

    # ------------------------------------------------------------------ reading what is, with the changes so far

    def topic_by_name(self, name: str) -> UUID | None:
        created = self._created_ids.get(name)
        if created is not None:
            return created
        topic_id: UUID | None = self.image.topics.ids_by_name.get(name)
        return None if topic_id in self.topics_deleted else topic_id

    def broker(self, broker_id: int) -> BrokerImage | None:
        if broker_id in self.brokers_changed:
            return self.brokers_changed[broker_id]
        return self.image.cluster.brokers.get(broker_id)

    # ------------------------------------------------------------------ records

    def replay(self, record: Any) -> None:
        name = name_of(record)
        handler = _HANDLERS.get(name)
        if handler is None:
            raise MalformedRecord(f"no meaning known for {name}")
        handler(self, record)

    def _topic(self, topic_id: UUID, what: str) -> TopicDelta:
        delta = self.topics_changed.get(topic_id)
        if delta is None:
            base = None if topic_id in self.topics_deleted else self.image.topics.by_id(topic_id)
            if base is None:
                raise MalformedRecord(f"{what} for topic {topic_id}, which does not exist")
            delta = self.topics_changed[topic_id] = TopicDelta(topic_id, base.name, base)
        return delta

    def _replay_topic(self, record: Any) -> None:
        topic_id = known_id(record.topic_id)
        if self.topic_by_name(record.name) is not None:
            raise MalformedRecord(f"topic {record.name} is created twice")
        self.topics_changed[topic_id] = TopicDelta(topic_id, record.name, None)
        self._created_ids[record.name] = topic_id

    def _replay_remove_topic(self, record: Any) -> None:
        topic_id = known_id(record.topic_id)
        delta = self._topic(topic_id, "RemoveTopicRecord")
        del self.topics_changed[topic_id]
        self._created_ids.pop(delta.name, None)
        self.configs_changed.pop((RESOURCE_TOPIC, delta.name), None)
        if delta.base is not None:
            self.topics_deleted[topic_id] = delta.base

    def _replay_partition(self, record: Any) -> None:
        topic = self._topic(known_id(record.topic_id), "PartitionRecord")
        topic.partitions[record.partition_id] = registration_of(record)

    def _replay_partition_change(self, record: Any) -> None:
        topic = self._topic(known_id(record.topic_id), "PartitionChangeRecord")
        current = topic.current(record.partition_id)
        if current is None:
            raise MalformedRecord(f"change of {topic.name}-{record.partition_id}, which does not exist")
        topic.partitions[record.partition_id] = merge_change(current, record)

    def _replay_clear_elr(self, record: Any) -> None:
        topics = [record.topic_name] if record.topic_name else list(self._all_topic_names())
        for name in topics:
            topic_id = self.topic_by_name(name)
            if topic_id is None:
                raise MalformedRecord(f"ClearElrRecord for topic {name}, which does not exist")
            self._clear_elr(topic_id)

    def _all_topic_names(self) -> set[str]:
        kept = {topic.name for topic in self.image.topics if topic.id not in self.topics_deleted}
        return kept | set(self._created_ids)

    def _clear_elr(self, topic_id: UUID) -> None:
        topic = self._topic(topic_id, "ClearElrRecord")
        base = topic.base.partitions if topic.base is not None else {}
        for partition in {*base, *topic.partitions}:
            current = topic.current(partition)
            if current is not None and (current.elr or current.last_known_elr):
                # Kafka leaves the partition epoch alone here.
                topic.partitions[partition] = replace(current, elr=(), last_known_elr=())

    def _replay_register_broker(self, record: Any) -> None:
        self.brokers_changed[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=known_id(record.incarnation_id),
            listeners=_listeners_of(record),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=frozenset(known_id(each) for each in record.log_dirs or ()),
            features=_features_of(record),
        )

    def _replay_registration_change(self, record: Any) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch, "BrokerRegistrationChangeRecord")
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["directories"] = frozenset(known_id(each) for each in record.log_dirs)
        self.brokers_changed[broker.id] = replace(broker, **changes)

    def _replay_fence(self, record: Any) -> None:
        self.brokers_changed[record.id] = replace(self._registered(record.id, record.epoch, "fence"), fenced=True)

    def _replay_unfence(self, record: Any) -> None:
        self.brokers_changed[record.id] = replace(self._registered(record.id, record.epoch, "unfence"), fenced=False)

    def _replay_unregister(self, record: Any) -> None:
        self._registered(record.broker_id, record.broker_epoch, "UnregisterBrokerRecord")
        self.brokers_changed[record.broker_id] = None

    def _registered(self, broker_id: int, epoch: int, what: str) -> BrokerImage:
        broker = self.broker(broker_id)
        if broker is None or broker.epoch != epoch:
            raise MalformedRecord(f"{what} for broker {broker_id} at epoch {epoch}, which is not registered")
        return broker

    def _replay_register_controller(self, record: Any) -> None:
        self.controllers_changed[record.controller_id] = ControllerImage(
            record.controller_id, known_id(record.incarnation_id), _listeners_of(record), _features_of(record)
        )

    def _replay_config(self, record: Any) -> None:
        resource = (record.resource_type, record.resource_name)
        self.configs_changed.setdefault(resource, {})[record.name] = record.value

    def _replay_feature(self, record: Any) -> None:
        self.features_changed[record.name] = record.feature_level

    def _replay_client_quota(self, record: Any) -> None:
        entity = tuple(sorted((each.entity_type, each.entity_name) for each in record.entity))
        self.client_quotas_changed.setdefault(entity, {})[record.key] = None if record.remove else record.value

    def _replay_producer_ids(self, record: Any) -> None:
        self.next_producer_id = record.next_producer_id

    def _replay_acl(self, record: Any) -> None:
        self.acls_changed[known_id(record.id)] = Acl.of(record)

    def _replay_remove_acl(self, record: Any) -> None:
        self.acls_changed[known_id(record.id)] = None

    def _replay_scram(self, record: Any) -> None:
        self.scram_changed[record.name, record.mechanism] = record

    def _replay_remove_scram(self, record: Any) -> None:
        self.scram_changed[record.name, record.mechanism] = None

    def _replay_token(self, record: Any) -> None:
        self.tokens_changed[record.token_id] = DelegationToken.of(record)

    def _replay_remove_token(self, record: Any) -> None:
        self.tokens_changed[record.token_id] = None

    def _replay_nothing(self, record: Any) -> None:
        """A record that changes no image."""

    # ------------------------------------------------------------------ the new image

    def apply(self, offset: int | None = None, epoch: int | None = None) -> MetadataImage:
        """The image after the replayed records; `offset` and `epoch` are those of the last record."""
        return at_once(self.applying(offset, epoch))

    def applying(self, offset: int | None = None, epoch: int | None = None) -> Making[MetadataImage]:
        """As `apply`, in steps; nothing may be replayed between them."""
        image = self.image
        return MetadataImage(
            offset=image.offset if offset is None else offset,
            epoch=image.epoch if epoch is None else epoch,
            topics=(yield from self._topics()),
            cluster=self._cluster(),
            configs=(yield from self._configs()),
            features=self._features(),
            client_quotas=(yield from self._client_quotas()),
            producer_ids=image.producer_ids
            if self.next_producer_id is None
            else ProducerIdsImage(self.next_producer_id),
            security=(yield from self._security()),
        )

    def _topics(self) -> Making[TopicsImage]:
        before = self.image.topics
        if not self.topics_changed and not self.topics_deleted:
            return before
        by_id: dict[UUID, TopicImage] = {}
        for topic_id, delta in self.topics_changed.items():
            partitions: Any = NO_PARTITIONS if delta.base is None else delta.base.partitions
            by_id[topic_id] = TopicImage(delta.name, topic_id, (yield from partitions.changing(delta.partitions)))
            yield
        deleted_names = [t.name for t in self.topics_deleted.values() if t.name not in self._created_ids]
        return TopicsImage(
            (yield from before.topics_by_id.changing(by_id, self.topics_deleted)),
            (yield from before.ids_by_name.changing(self._created_ids, deleted_names)),
            (yield from self._collisions(before)),
            (yield from self._reassigning(before)),
        )

    def _collisions(self, before: TopicsImage) -> Making[PersistentMap[str, frozenset[str]]]:
        changed: dict[str, set[str]] = {}
        for topic in self.topics_deleted.values():
            key = collision_key(topic.name)
            if key is not None:
                changed.setdefault(key, set(before.names_by_collision_key.get(key, ()))).discard(topic.name)
            yield
        for name in self._created_ids:
            key = collision_key(name)
            if key is not None:
                changed.setdefault(key, set(before.names_by_collision_key.get(key, ()))).add(name)
            yield
        kept: dict[str, frozenset[str]] = {}
        for key, names in changed.items():
            if names:
                kept[key] = frozenset(names)
            yield
        return (yield from before.names_by_collision_key.changing(kept, changed.keys() - kept.keys()))

    def _reassigning(self, before: TopicsImage) -> Making[PersistentMap[tuple[UUID, int], bool]]:
        begun: dict[tuple[UUID, int], bool] = {}
        ended: list[tuple[UUID, int]] = []
        for topic_id, delta in self.topics_changed.items():
            for partition, registration in delta.partitions.items():
                if registration.is_reassigning:
                    begun[topic_id, partition] = True
                elif before.reassigning:
                    ended.append((topic_id, partition))
                yield
        if before.reassigning:
            for topic_id, topic in self.topics_deleted.items():
                ended.extend((topic_id, partition) for partition in topic.partitions)
                yield
        return (yield from before.reassigning.changing(begun, ended))

    def _cluster(self) -> ClusterImage:
        before = self.image.cluster
        if not self.brokers_changed and not self.controllers_changed:
            return before
        brokers = {**before.brokers, **self.brokers_changed}
        kept = {broker_id: broker for broker_id, broker in sorted(brokers.items()) if broker is not None}
        return ClusterImage(kept, {**before.controllers, **self.controllers_changed})

    def _configs(self) -> Making[ConfigsImage]:
        updates: dict[tuple[int, str], Any] = {}
        dropped = {(RESOURCE_TOPIC, topic.name) for topic in self.topics_deleted.values()}
        removed = list(dropped)
        for resource, changes in self.configs_changed.items():
            merged = _edited({} if resource in dropped else self.image.configs.of(*resource), changes)
            if merged:
                updates[resource] = merged
            else:
                removed.append(resource)
            yield
        if not updates and not removed:
            return self.image.configs
        return ConfigsImage((yield from self.image.configs.by_resource.changing(updates, removed)))

    def _features(self) -> FeaturesImage:
        if not self.features_changed:
            return self.image.features
        levels = {**self.image.features.levels, **self.features_changed}
        return FeaturesImage({name: level for name, level in levels.items() if level})

    def _client_quotas(self) -> Making[ClientQuotasImage]:
        if not self.client_quotas_changed:
            return self.image.client_quotas
        merged = dict(self.image.client_quotas.by_entity)
        for entity, changes in self.client_quotas_changed.items():
            quotas = _edited(merged.get(entity, {}), changes)
            if quotas:
                merged[entity] = quotas
            else:
                merged.pop(entity, None)
            yield
        return ClientQuotasImage(merged)

    def _security(self) -> Making[SecurityImage]:
        before = self.image.security
        if not self.acls_changed and not self.scram_changed and not self.tokens_changed:
            return before
        new: dict[UUID, Acl] = {}
        ids: dict[Acl, UUID] = {}
        gone: dict[UUID, Acl] = {}
        for acl_id, acl in self.acls_changed.items():
            if acl is not None:
                new[acl_id], ids[acl] = acl, acl_id
            old = before.acls.get(acl_id)
            if old is not None:
                gone[acl_id] = old
            yield
        tokens = {token_id: token for token_id, token in self.tokens_changed.items() if token is not None}
        return SecurityImage(
            (yield from before.acls.changing(new, gone)),
            (yield from before.acl_ids.changing(ids, gone.values())),
            _edited(before.scram_credentials, self.scram_changed),
            (yield from before.delegation_tokens.changing(tokens, self.tokens_changed.keys() - tokens.keys())),
        )


def _edited(before: Any, changes: Any) -> dict[Any, Any]:
    merged = {**before, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def _listeners_of(record: Any) -> dict[str, Listener]:
    return {each.name: Listener(each.host, each.port, each.security_protocol) for each in record.end_points}


def _features_of(record: Any) -> dict[str, tuple[int, int]]:
    return {each.name: (each.min_supported_version, each.max_supported_version) for each in record.features}


_HANDLERS: dict[str, Callable[[MetadataDelta, Any], None]] = {
    "TopicRecord": MetadataDelta._replay_topic,
    "RemoveTopicRecord": MetadataDelta._replay_remove_topic,
    "PartitionRecord": MetadataDelta._replay_partition,
    "PartitionChangeRecord": MetadataDelta._replay_partition_change,
    "ClearElrRecord": MetadataDelta._replay_clear_elr,
    "RegisterBrokerRecord": MetadataDelta._replay_register_broker,
    "BrokerRegistrationChangeRecord": MetadataDelta._replay_registration_change,
    "FenceBrokerRecord": MetadataDelta._replay_fence,
    "UnfenceBrokerRecord": MetadataDelta._replay_unfence,
    "UnregisterBrokerRecord": MetadataDelta._replay_unregister,
    "RegisterControllerRecord": MetadataDelta._replay_register_controller,
    "ConfigRecord": MetadataDelta._replay_config,
    "FeatureLevelRecord": MetadataDelta._replay_feature,
    "ClientQuotaRecord": MetadataDelta._replay_client_quota,
    "ProducerIdsRecord": MetadataDelta._replay_producer_ids,
    "AccessControlEntryRecord": MetadataDelta._replay_acl,
    "RemoveAccessControlEntryRecord": MetadataDelta._replay_remove_acl,
    "UserScramCredentialRecord": MetadataDelta._replay_scram,
    "RemoveUserScramCredentialRecord": MetadataDelta._replay_remove_scram,
    "DelegationTokenRecord": MetadataDelta._replay_token,
    "RemoveDelegationTokenRecord": MetadataDelta._replay_remove_token,
    "NoOpRecord": MetadataDelta._replay_nothing,
}
