"""AddOffsetsToTxn: adds a group's partition of the offsets topic to a transaction."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_broker.api.transaction_requests import check_writer, producer_of, understood
from ballast_broker.coordinator.store import OFFSETS_TOPIC
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

FIRST_WITH_FENCED = 2


async def handle(request: Any, context: RequestContext) -> Any:
    check_writer(request.transactional_id, context)
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    where = TopicPartition(OFFSETS_TOPIC, context.broker.groups.partition_of(request.group_id))
    asked = request.transactional_id, producer_of(request), [where], 0
    error = ErrorCode.NONE
    try:
        await context.broker.transactions.add_partitions_when_free(*asked)
    except ApiError as refused:
        error = understood(refused.code, context.version, FIRST_WITH_FENCED)
    return message("AddOffsetsToTxnResponse")(error_code=error)
