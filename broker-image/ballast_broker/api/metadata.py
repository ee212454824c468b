"""Metadata: brokers, by their endpoints on this listener, and topics, by name, by id or all."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ballast_broker.api.authorizer import (
    CLUSTER,
    NO_OPERATIONS_ASKED,
    Operation,
    authorized_operations,
    cluster_operations,
    topic,
)
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import (
    INTERNAL_TOPICS,
    endpoint,
    leader_error,
    live_brokers,
    offline_replicas,
    reachable_leader,
)
from ballast_broker.api.topic_names import is_legal
from ballast_broker.metadata.image import BrokerImage, ClusterImage, MetadataImage, PartitionRegistration, TopicImage
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.metadata import Broker, MetadataResponse, Partition, encode_partition, encode_topic
from ballast_wire.names import ZERO_UUID

FIRST_VERSION_WHERE_EMPTY_IS_NONE = 1
FIRST_VERSION_THAT_CAN_FORBID_CREATION = 4
FIRST_VERSION_WITH_LISTENER_ERRORS = 6
FIRST_VERSION_WITH_IDS = 12
CLUSTER_OPERATIONS_VERSIONS = range(8, 11)


async def handle(request: Any, context: RequestContext) -> Any:
    _check_names_and_ids(request, context.version)
    image = context.broker.image()
    # The whole response is built from one image.
    turn = Turn()
    topics = [await _topic(found, request, context, image, turn) for found in _wanted(request, context, image)]
    topics += _missing_ids(request, context, image)
    topics += _missing_names(request, context, image)
    live = live_brokers(image.cluster, context.listener)
    operations = NO_OPERATIONS_ASKED
    if context.version in CLUSTER_OPERATIONS_VERSIONS and request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    brokers = [_broker(each, context.listener) for each in live]
    controller_id = _somebody([each.id for each in live], context)
    return MetadataResponse(context.version, brokers, context.broker.cluster_id, controller_id, topics, operations)


def _check_names_and_ids(request: Any, version: int) -> None:
    for asked in request.topics or ():
        by_id = bool(asked.topic_id) and asked.topic_id != ZERO_UUID
        if version < FIRST_VERSION_WITH_IDS and (asked.name is None or by_id):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if asked.name is None and not by_id:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka


def _asks_for_all(request: Any, version: int) -> bool:
    return request.topics is None or (version < FIRST_VERSION_WHERE_EMPTY_IS_NONE and not request.topics)


def _ids(request: Any) -> list[Any]:
    """The requested topic ids; if there are any, names are ignored."""
    ids = [asked.topic_id for asked in request.topics or () if asked.topic_id and asked.topic_id != ZERO_UUID]
    return list(dict.fromkeys(ids))


def _names(request: Any) -> list[str]:
    return [] if _ids(request) else list(dict.fromkeys(asked.name for asked in request.topics or ()))


def _may_describe(name: str, context: RequestContext) -> bool:
    return context.authorize(Operation.DESCRIBE, topic(name))


def _may_create(name: str, context: RequestContext) -> bool:
    return context.may(Operation.CREATE, CLUSTER) or context.authorize(Operation.CREATE, topic(name))


def _wanted(request: Any, context: RequestContext, image: MetadataImage) -> list[TopicImage]:
    if _asks_for_all(request, context.version):
        return [each for each in image.topics if context.may(Operation.DESCRIBE, topic(each.name))]
    found = [image.topics.by_id(each) for each in _ids(request)]
    found += [image.topics.by_name(name) for name in _names(request)]
    return [each for each in found if each is not None and _may_describe(each.name, context)]


def _missing_ids(request: Any, context: RequestContext, image: MetadataImage) -> list[bytes]:
    answers = []
    for each in _ids(request):
        found = image.topics.by_id(each)
        if found is None:
            answers.append(_failed(context, None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id=each))
        elif not _may_describe(found.name, context):  # do not reveal its name
            answers.append(_failed(context, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic_id=each))
    return answers


def _missing_names(request: Any, context: RequestContext, image: MetadataImage) -> list[bytes]:
    answers, creatable = [], []
    may_create = context.broker.config.auto_create_topics_enable and (
        context.version < FIRST_VERSION_THAT_CAN_FORBID_CREATION or request.allow_auto_topic_creation
    )
    for name in _names(request):
        if not _may_describe(name, context):  # do not reveal whether it is internal
            answers.append(_failed(context, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, internal=False))
            continue
        if image.topics.by_name(name) is not None:
            continue
        operations = _operations(name, request, context)
        if may_create and not _may_create(name, context):
            answers.append(_failed(context, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif not is_legal(name):
            answers.append(_failed(context, name, ErrorCode.INVALID_TOPIC_EXCEPTION, operations=operations))
        else:
            creatable.append(name)
            answers.append(_failed(context, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, operations=operations))
    if may_create and creatable:
        context.broker.create_topics_automatically(creatable, context.asker_to_tell)
    return answers


def _operations(name: str, request: Any, context: RequestContext) -> int:
    if not request.include_topic_authorized_operations:
        return NO_OPERATIONS_ASKED
    return authorized_operations(context, topic(name))


def _somebody(broker_ids: list[int], context: RequestContext) -> int:
    """Report any live broker as the controller, since all of them forward; spread over requests."""
    return broker_ids[context.correlation_id % len(broker_ids)] if broker_ids else -1


def _broker(broker: BrokerImage, listener: str) -> Broker:
    at = broker.listeners[listener]
    return Broker(broker.id, at.host, at.port, broker.rack)


def _failed(
    context: RequestContext,
    name: str | None,
    error: ErrorCode,
    *,
    topic_id: UUID = ZERO_UUID,
    internal: bool | None = None,
    operations: int = NO_OPERATIONS_ASKED,
) -> bytes:
    return encode_topic(
        context.version,
        error=error,
        name=name,
        topic_id=topic_id,
        internal=name in INTERNAL_TOPICS if internal is None else internal,
        partitions=(),
        operations=operations,
    )


async def _topic(found: TopicImage, request: Any, context: RequestContext, image: MetadataImage, turn: Turn) -> bytes:
    partitions = []
    for number, partition in found.sorted_partitions():
        partitions.append(encode_partition(_partition(number, partition, context, image.cluster), context.version))
        await turn.ends_if_long()
    return encode_topic(
        context.version,
        error=ErrorCode.NONE,
        name=found.name,
        topic_id=found.id,
        internal=found.name in INTERNAL_TOPICS,
        partitions=partitions,
        operations=_operations(found.name, request, context),
    )


def _partition(
    number: int, partition: PartitionRegistration, context: RequestContext, cluster: ClusterImage
) -> Partition:
    listener, version = context.listener, context.version
    error = leader_error(partition, cluster, listener)
    if error is ErrorCode.LISTENER_NOT_FOUND and version < FIRST_VERSION_WITH_LISTENER_ERRORS:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    replicas, isr = partition.replicas, partition.isr
    if version == 0:  # version 0 has no offline replicas: leave out unreachable ones
        replicas = tuple(each for each in replicas if endpoint(cluster, each, listener) is not None)
        isr = tuple(each for each in isr if endpoint(cluster, each, listener) is not None)
        if error is ErrorCode.NONE and (len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return Partition(
        error,
        number,
        reachable_leader(partition, cluster, listener),
        partition.leader_epoch,
        replicas,
        isr,
        offline_replicas(partition, cluster, listener),
    )
