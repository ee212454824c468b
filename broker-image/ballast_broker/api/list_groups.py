"""ListGroups: the groups that this broker answers for, by state and type."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.group import ConsumerGroup
from ballast_broker.coordinator.group import CONSUMER, Group
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
        return kind(version=context.version, error_code=error.code, groups=[])
    listed = [
        kind.ListedGroup(
            version=context.version,
            group_id=group.group_id,
            protocol_type=CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or "",
            group_state=group.state.value,
            group_type=_type_of(group),
        )
        for group in groups
        if (not states or group.state.value.casefold() in states) and (not types or _type_of(group) in types)
    ]
    return kind(version=context.version, error_code=ErrorCode.NONE, groups=listed)


def _type_of(group: Group | ConsumerGroup) -> str:
    return CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE
