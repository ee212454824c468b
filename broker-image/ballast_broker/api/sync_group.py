"""SyncGroup: the leader distributes assignments, every member waits for its own."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.rebalance import SyncAsk
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_VERSION_THAT_NAMES_THE_PROTOCOL = 5


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("SyncGroupResponse")
    names_protocol = context.version >= FIRST_VERSION_THAT_NAMES_THE_PROTOCOL
    if names_protocol and (request.protocol_type is None or request.protocol_name is None):
        return kind(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b"")
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    ask = SyncAsk(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type if names_protocol else None,
        protocol_name=request.protocol_name if names_protocol else None,
        assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
    )
    result = await context.broker.groups.sync(request.group_id, ask)
    return kind(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
