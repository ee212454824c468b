"""Heartbeat: keeps a member's session alive and tells it about rebalances."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = context.broker.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return message("HeartbeatResponse")(error_code=error)
