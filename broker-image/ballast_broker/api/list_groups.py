"""ListGroups: the groups that this broker answers for, by state and type."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, group
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

TYPE = "classic"


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ListGroupsResponse")
    states = {s.casefold() for s in request.states_filter or ()}
    types = {t.casefold() for t in request.types_filter or ()}
    try:
        groups = context.broker.groups.list_groups()
    except ApiError as error:
        return kind(version=context.version, error_code=error.code, groups=[])
    if not context.may(Operation.DESCRIBE, CLUSTER):  # who may describe the cluster sees all
        groups = [each for each in groups if context.may(Operation.DESCRIBE, group(each.group_id))]
    listed = [
        kind.ListedGroup(
            version=context.version,
            group_id=each.group_id,
            protocol_type=each.protocol_type or "",
            group_state=each.state.value,
            group_type=TYPE,
        )
        for each in groups
        if (not states or each.state.value.casefold() in states) and (not types or TYPE.casefold() in types)
    ]
    return kind(version=context.version, error_code=ErrorCode.NONE, groups=listed)
