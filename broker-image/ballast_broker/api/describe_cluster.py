"""DescribeCluster: the cluster's brokers, by their endpoints on this listener."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import cluster_operations
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

BROKERS, CONTROLLERS = 1, 2
ENDPOINT_TYPES = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
FIRST_VERSION_WITH_FENCED = 2


async def handle(request: Any, context: RequestContext) -> Any:
    _check_endpoint_type(request.endpoint_type)
    kind = message("DescribeClusterResponse")
    version = context.version
    with_fenced = version >= FIRST_VERSION_WITH_FENCED and request.include_fenced_brokers
    registered = context.broker.image().cluster.brokers.values()
    reachable = [each for each in registered if context.listener in each.listeners]
    live = [each.id for each in reachable if not each.fenced]
    fields: dict[str, Any] = {}
    if request.include_cluster_authorized_operations:
        fields["cluster_authorized_operations"] = cluster_operations(context)
    return kind(
        cluster_id=context.broker.cluster_id,
        controller_id=live[context.correlation_id % len(live)] if live else -1,
        brokers=[
            kind.DescribeClusterBroker(
                broker_id=each.id,
                host=each.listeners[context.listener].host,
                port=each.listeners[context.listener].port,
                rack=each.rack,
                is_fenced=each.fenced,
            )
            for each in reachable
            if with_fenced or not each.fenced
        ],
        **fields,
    )


def _check_endpoint_type(asked: int) -> None:
    if asked not in ENDPOINT_TYPES:
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {asked}")
    if asked != BROKERS:
        raise ApiError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
