"""EndTxn: commits or aborts a transaction; from version 5 on the response has the producer's next epoch."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.api.transaction_requests import check_writer, producer_of, understood
from ballast_broker.coordinator.transactions import NOBODY
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_WITH_FENCED = 2
FIRST_WITH_BUMP = 5


async def handle(request: Any, context: RequestContext) -> Any:
    check_writer(request.transactional_id, context)
    error, producer = ErrorCode.NONE, NOBODY
    try:
        producer = await context.broker.transactions.end(
            request.transactional_id,
            producer_of(request),
            request.committed,
            2 if context.version >= FIRST_WITH_BUMP else 0,
        )
    except ApiError as refused:
        error = understood(refused.code, context.version, FIRST_WITH_FENCED)
    return message("EndTxnResponse")(error_code=error, producer_id=producer.producer_id, producer_epoch=producer.epoch)
