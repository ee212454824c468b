"""InitProducerId: a number for an idempotent producer. Transactions are not built yet, and refused by name."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, ResourceKind, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

UNKNOWN = -1
FIRST_EPOCH = 0


async def handle(request: Any, context: RequestContext) -> Any:
    _check_allowed(request.transactional_id, context)
    if (request.producer_id == UNKNOWN) != (request.producer_epoch == UNKNOWN) or request.transactional_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # Producers take this as final. An error that they retry would keep them waiting for ever.
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    producer_id = await context.broker.next_producer_id()
    return message("InitProducerIdResponse")(
        version=context.version, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=FIRST_EPOCH
    )


def _check_allowed(asked_for: str | None, context: RequestContext) -> None:
    if asked_for is not None:
        if not context.authorize(Operation.WRITE, transactional_id(asked_for)):
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not context.may(Operation.IDEMPOTENT_WRITE, CLUSTER) and not context.may_for_any(
        Operation.WRITE, ResourceKind.TOPIC
    ):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
