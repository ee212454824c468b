"""ListConfigResources: resources whose configs can be described; in version 0, client metrics only."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_TOPIC,
    RESOURCE_TYPES,
    MetadataImage,
)
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_VERSION_WITH_TYPES = 1


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    types = [RESOURCE_CLIENT_METRICS]
    if context.version >= FIRST_VERSION_WITH_TYPES:
        types = list(dict.fromkeys(request.resource_types)) or list(RESOURCE_TYPES)
    if not set(types) <= set(RESOURCE_TYPES):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    kind = message("ListConfigResourcesResponse")
    image = context.broker.image()
    resources = [
        kind.ConfigResource(resource_name=name, resource_type=each) for each in types for name in _names(each, image)
    ]
    return kind(error_code=ErrorCode.NONE, config_resources=resources)


def _names(resource_type: int, image: MetadataImage) -> list[str]:
    if resource_type == RESOURCE_TOPIC:
        return list(image.topics.sorted_names)
    if resource_type in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(image.cluster.brokers)]
    return sorted(name for each, name in image.configs.by_resource if each == resource_type)
