"""Converts an image to the records of a snapshot, in an order that can be replayed. PURE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from ballast_broker.metadata.acls import Acl
from ballast_broker.metadata.image import (
    RESOURCE_TOPIC,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from ballast_broker.metadata.partition_records import PartitionRecord
from ballast_broker.metadata.records import record


def image_records(image: MetadataImage) -> Iterator[Any]:
    """Features first (they determine how to read the rest), then brokers, topics, configs and the rest.

    Topics and configs are unsorted: sorting a hundred thousand names takes too long.
    """
    yield from _features(image)
    for controller in image.cluster.controllers.values():
        yield controller_record(controller)
    for broker in image.cluster.brokers.values():
        yield broker_record(broker)
    for topic in image.topics.topics_by_id.values():
        yield from topic_records(topic)
    yield from _configs(image)
    yield from _quotas(image)
    if image.producer_ids.next_producer_id:
        yield record(
            "ProducerIdsRecord", broker_id=-1, broker_epoch=-1, next_producer_id=image.producer_ids.next_producer_id
        )
    yield from image.security.scram_credentials.values()
    for token in sorted(image.security.delegation_tokens.values()):
        yield token.record()
    for acl_id, acl in image.security.acls.items():
        yield acl_record(acl_id, acl)


def _features(image: MetadataImage) -> Iterator[Any]:
    levels = dict(image.features.levels)
    if "metadata.version" in levels:
        yield record("FeatureLevelRecord", name="metadata.version", feature_level=levels.pop("metadata.version"))
    for name, level in levels.items():
        yield record("FeatureLevelRecord", name=name, feature_level=level)


def _endpoints(kind: Any, listeners: Any) -> list[Any]:
    return [
        kind(name=name, host=each.host, port=each.port, security_protocol=each.security_protocol)
        for name, each in listeners.items()
    ]


def _feature_ranges(kind: Any, features: Any) -> list[Any]:
    return [
        kind(name=name, min_supported_version=low, max_supported_version=high) for name, (low, high) in features.items()
    ]


def broker_record(broker: BrokerImage) -> Any:
    result = record(
        "RegisterBrokerRecord",
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=sorted(broker.directories),
    )
    result.end_points = _endpoints(type(result).BrokerEndpoint, broker.listeners)
    result.features = _feature_ranges(type(result).BrokerFeature, broker.features)
    return result


def controller_record(controller: ControllerImage) -> Any:
    result = record("RegisterControllerRecord", controller_id=controller.id, incarnation_id=controller.incarnation_id)
    result.end_points = _endpoints(type(result).ControllerEndpoint, controller.listeners)
    result.features = _feature_ranges(type(result).ControllerFeature, controller.features)
    return result


def topic_records(topic: TopicImage) -> Iterator[Any]:
    yield record("TopicRecord", name=topic.name, topic_id=topic.id)
    for partition, registration in topic.sorted_partitions():
        yield partition_record(topic.id, partition, registration)


def partition_record(topic_id: UUID, partition: int, registration: PartitionRegistration) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=registration.replicas,
        isr=registration.isr,
        removing_replicas=registration.removing_replicas,
        adding_replicas=registration.adding_replicas,
        leader=registration.leader,
        leader_recovery_state=registration.leader_recovery_state,
        leader_epoch=registration.leader_epoch,
        partition_epoch=registration.partition_epoch,
        directories=registration.directories,
        eligible_leader_replicas=registration.elr or None,
        last_known_elr=registration.last_known_elr or None,
    )


def _configs(image: MetadataImage) -> Iterator[Any]:
    for (resource_type, name), configs in image.configs.by_resource.items():
        if resource_type == RESOURCE_TOPIC and image.topics.by_name(name) is None:
            continue
        for key, value in sorted(configs.items()):
            yield record("ConfigRecord", resource_type=resource_type, resource_name=name, name=key, value=value)


def _quotas(image: MetadataImage) -> Iterator[Any]:
    for entity, quotas in image.client_quotas.by_entity.items():
        for key, value in quotas.items():
            yield quota_record(entity, key, value)


def acl_record(acl_id: UUID, acl: Acl) -> Any:
    return record(
        "AccessControlEntryRecord",
        id=acl_id,
        resource_type=acl.kind,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def quota_record(entity: Any, key: str, value: float | None) -> Any:
    """A `value` of None removes the key."""
    result = record("ClientQuotaRecord", key=key, value=value or 0.0, remove=value is None)
    kind = type(result).EntityData
    result.entity = [kind(entity_type=each, entity_name=name) for each, name in entity]
    return result
