"""AllocateProducerIds: allocates blocks of producer ids that no two brokers share. PURE."""

from __future__ import annotations

from typing import Any

from ballast_broker.controller.commands.brokers import check_broker_epoch
from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.metadata.records import record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

BLOCK_SIZE = 1_000
INT64_MAX = 2**63 - 1


def allocate_producer_ids(context: CommandContext, request: Any) -> Outcome:
    check_broker_epoch(context, request.broker_id, request.broker_epoch)
    first = context.image.producer_ids.next_producer_id
    if first > INT64_MAX - BLOCK_SIZE:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
        )
    allocated = record(
        "ProducerIdsRecord",
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + BLOCK_SIZE,
    )
    response = message("AllocateProducerIdsResponse")(
        error_code=0, throttle_time_ms=0, producer_id_start=first, producer_id_len=BLOCK_SIZE
    )
    return Outcome([allocated], response)
