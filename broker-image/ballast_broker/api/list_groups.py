"""ListGroups: the groups this broker coordinates, filtered by state and type."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, group
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.group import ConsumerGroup
from ballast_broker.coordinator.group import CONSUMER, Group
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ListGroupsResponse")
    states = {s.casefold() for s in request.states_filter or ()}
    types = {t.casefold() for t in request.types_filter or ()}
    try:
        groups = context.broker.groups.list_groups()
    except ApiError as error:
        return kind(error_code=error.code, groups=[])
    sees_all = context.may(Operation.DESCRIBE, CLUSTER)
    listed = [
        kind.ListedGroup(
            group_id=each.group_id,
            protocol_type=CONSUMER if isinstance(each, ConsumerGroup) else each.protocol_type or "",
            group_state=each.state.value,
            group_type=_type_of(each),
        )
        async for each in InTurns(groups)
        if (sees_all or context.may(Operation.DESCRIBE, group(each.group_id)))
        and (not states or each.state.value.casefold() in states)
        and (not types or _type_of(each) in types)
    ]
    return kind(error_code=ErrorCode.NONE, groups=listed)


def _type_of(group: Group | ConsumerGroup) -> str:
    return CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE
