"""ListTransactions: those this broker coordinates, filtered by state, producer, duration and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ballast_broker.api.authorizer import Operation, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.patterns import Alphabet, BadPattern, Pattern, compiled
from ballast_broker.coordinator.transactions import Transaction, TransactionState
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_WITH_DURATION = 1
FIRST_WITH_PATTERN = 2
LONGEST_ID = 500  # longer ids match no pattern: matching costs grow with the length
STATES = {state.value for state in TransactionState}


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ListTransactionsResponse")
    version = context.version
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    duration_ms = request.duration_filter if version >= FIRST_WITH_DURATION else -1
    now_ms = context.broker.clock.wall_ms()
    try:
        found = [
            each
            for each in context.broker.transactions.list_all()
            if (not producers or each.now.producer_id in producers)
            and (not states or each.now.state.value in states)
            and (duration_ms < 0 or now_ms - each.now.started_ms > duration_ms)
            and context.may(Operation.DESCRIBE, transactional_id(each.transactional_id))
        ]
        if version >= FIRST_WITH_PATTERN and request.transactional_id_pattern:
            found = await _fitting(request.transactional_id_pattern, found)
    except ApiError as error:
        return kind(error_code=error.code)
    listed = [
        kind.TransactionState(
            transactional_id=each.transactional_id,
            producer_id=each.now.producer_id,
            transaction_state=each.now.state.value,
        )
        for each in found
    ]
    return kind(error_code=ErrorCode.NONE, unknown_state_filters=sorted(states - STATES), transaction_states=listed)


async def _fitting(text: str, found: list[Transaction]) -> list[Transaction]:
    pattern = _pattern(text, (each.transactional_id for each in found))
    return [
        each
        async for each in InTurns(found)
        if len(each.transactional_id) <= LONGEST_ID and pattern.matches(each.transactional_id)
    ]


def _pattern(text: str, ids: Iterable[str]) -> Pattern:
    try:
        return compiled(text, Alphabet(set().union(*ids)))
    except BadPattern:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION) from None
