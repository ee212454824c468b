"""ListTransactions: those that this broker coordinates, by state, producer and how long they have been open."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, authorize, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.transactions import TransactionState
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_WITH_DURATION = 1
STATES = {state.value for state in TransactionState}


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ListTransactionsResponse")
    version = context.version
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    duration_ms = request.duration_filter if version >= FIRST_WITH_DURATION else -1
    now_ms = context.broker.clock.wall_ms()
    try:
        found = context.broker.transactions.list_all()
    except ApiError as error:
        return kind(version=version, error_code=error.code)
    listed = [
        kind.TransactionState(
            version=version,
            transactional_id=each.transactional_id,
            producer_id=each.now.producer_id,
            transaction_state=each.now.state.value,
        )
        for each in found
        if (not producers or each.now.producer_id in producers)
        and (not states or each.now.state.value in states)
        and (duration_ms < 0 or now_ms - each.now.started_ms > duration_ms)
        and authorize(context.principal, Operation.DESCRIBE, transactional_id(each.transactional_id))
    ]
    return kind(
        version=version,
        error_code=ErrorCode.NONE,
        unknown_state_filters=sorted(states - STATES),
        transaction_states=listed,
    )
