"""DeleteGroups: deletes empty groups with all their offsets."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("DeleteGroupsResponse")
    results = [
        kind.DeletableGroupResult(group_id=group_id, error_code=await _delete(group_id, context))
        async for group_id in InTurns(dict.fromkeys(request.groups_names))
    ]
    return kind(results=results)


async def _delete(group_id: str, context: RequestContext) -> ErrorCode:
    if not context.authorize(Operation.DELETE, group(group_id)):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return await context.broker.groups.delete_group(group_id)
