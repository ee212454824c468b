"""FindCoordinator: finds the broker coordinating a group or transactional id; creates their topics at first need."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.service import partition_for
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.wording import WORDING

FIRST_VERSION_WITH_MANY_KEYS = 4
GROUP, TRANSACTION = 0, 1
UNAUTHORIZED = (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
Found = tuple[ErrorCode, int, str, int]  # error, node, host, port


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("FindCoordinatorResponse")
    version = context.version
    many = version >= FIRST_VERSION_WITH_MANY_KEYS
    if not many:
        error, node, host, port = _find(request.key, request.key_type, context)
        return kind(
            error_code=error,
            error_message=_text(error, version),
            node_id=node,
            host=host,
            port=port,
        )
    coordinators = [
        kind.Coordinator(
            key=key,
            node_id=node,
            host=host,
            port=port,
            error_code=error,
            error_message=_text(error, version),
        )
        async for key in InTurns(request.coordinator_keys)
        for error, node, host, port in [_find(key, request.key_type, context)]
    ]
    return kind(coordinators=coordinators)


def _find(key: str, key_type: int, context: RequestContext) -> Found:
    if key_type == GROUP and not context.authorize(Operation.DESCRIBE, group(key)):
        return _nobody(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if key_type == TRANSACTION and not context.authorize(Operation.DESCRIBE, transactional_id(key)):
        return _nobody(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    name = TOPICS.get(key_type)
    if name is None:
        # Share groups are not implemented, so nobody coordinates them.
        return _nobody(ErrorCode.INVALID_REQUEST)
    image = context.broker.image()
    topic = image.topics.by_name(name)
    if topic is None:
        context.broker.create_internal_topic(name)
        return _nobody(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[partition_for(key, len(topic.partitions))].leader
    broker = image.cluster.brokers.get(leader)
    listener = broker.listeners.get(context.listener) if broker is not None and not broker.fenced else None
    if listener is None:
        return _nobody(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return ErrorCode.NONE, leader, listener.host, listener.port


def _nobody(error: ErrorCode) -> Found:
    return error, -1, "", -1


def _text(error: ErrorCode, version: int) -> str:
    if error is ErrorCode.NONE:
        return "" if version >= FIRST_VERSION_WITH_MANY_KEYS else "NONE"
    return "" if version >= FIRST_VERSION_WITH_MANY_KEYS and error in UNAUTHORIZED else WORDING[error]
