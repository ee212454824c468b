"""DescribeTransactions: the coordinator's state of transactional ids."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, topic, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import by_topic


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("DescribeTransactionsResponse")
    states = [_describe(kind, name, context) for name in request.transactional_ids]
    return kind(transaction_states=states)


def _describe(kind: Any, name: str, context: RequestContext) -> Any:
    state = kind.TransactionState
    if not context.authorize(Operation.DESCRIBE, transactional_id(name)):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return state(transactional_id=name, error_code=error)
    try:
        found = context.broker.transactions.describe(name)
    except ApiError as refused:
        return state(transactional_id=name, error_code=refused.code)
    topics = {
        name: numbers
        for name, numbers in by_topic(sorted(found.partitions)).items()
        if context.may(Operation.DESCRIBE, topic(name))
    }
    return state(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[state.TopicData(topic=n, partitions=p) for n, p in topics.items()],
    )
