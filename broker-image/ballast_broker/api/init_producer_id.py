"""InitProducerId: a number for an idempotent producer. Transactions are not built yet, and refused by name."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, authorize
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

UNKNOWN = -1
FIRST_EPOCH = 0


async def handle(request: Any, context: RequestContext) -> Any:
    if (request.producer_id == UNKNOWN) != (request.producer_epoch == UNKNOWN) or request.transactional_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # Producers take this as final. An error that they retry would keep them waiting for ever.
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if not authorize(context.principal, Operation.IDEMPOTENT_WRITE, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    producer_id = await context.broker.next_producer_id()
    return message("InitProducerIdResponse")(
        version=context.version, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=FIRST_EPOCH
    )
