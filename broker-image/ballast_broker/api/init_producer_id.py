"""InitProducerId: a producer id for an idempotent producer; id and epoch for a transactional one."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, ResourceKind
from ballast_broker.api.context import RequestContext
from ballast_broker.api.transaction_requests import check_writer, producer_of, understood
from ballast_broker.coordinator.transactions import NO_EPOCH, NO_ID, NOBODY, ProducerIdentity
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_WITH_FENCED = 4
FIRST_EPOCH = 0


async def handle(request: Any, context: RequestContext) -> Any:
    _check_allowed(request.transactional_id, context)
    known = producer_of(request)
    half_known = known != NOBODY and (known.producer_id == NO_ID or known.epoch == NO_EPOCH)
    if half_known or request.transactional_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST)
    error, producer = ErrorCode.NONE, NOBODY
    if request.transactional_id is None:
        producer = ProducerIdentity(await context.broker.next_producer_id(), FIRST_EPOCH)
    else:
        try:
            producer = await context.broker.transactions.initialize(
                request.transactional_id, request.transaction_timeout_ms, None if known == NOBODY else known
            )
        except ApiError as refused:
            error = understood(refused.code, context.version, FIRST_WITH_FENCED)
    return message("InitProducerIdResponse")(
        error_code=error, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


def _check_allowed(asked_for: str | None, context: RequestContext) -> None:
    if asked_for is not None:
        check_writer(asked_for, context)
    elif not context.may(Operation.IDEMPOTENT_WRITE, CLUSTER) and not context.may_for_any(
        Operation.WRITE, ResourceKind.TOPIC
    ):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
