"""DescribeGroups: the state, members and assignments of groups."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import NO_OPERATIONS_ASKED, Operation, authorized_operations
from ballast_broker.api.authorizer import group as group_resource
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.group import ConsumerGroup
from ballast_broker.coordinator.group import Group, GroupState
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_VERSION_THAT_SAYS_NOT_FOUND = 6


async def handle(request: Any, context: RequestContext) -> Any:
    groups = [_describe(group_id, request, context) async for group_id in InTurns(request.groups)]
    return message("DescribeGroupsResponse")(groups=groups)


def _describe(group_id: str, request: Any, context: RequestContext) -> Any:
    if not context.authorize(Operation.DESCRIBE, group_resource(group_id)):
        return _answer(context, group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    operations = NO_OPERATIONS_ASKED
    if request.include_authorized_operations:
        operations = authorized_operations(context, group_resource(group_id))
    try:
        group = context.broker.groups.describe(group_id)
    except ApiError as error:
        return _answer(context, group_id, error_code=error.code)
    if group is None or isinstance(group, ConsumerGroup):
        if context.version < FIRST_VERSION_THAT_SAYS_NOT_FOUND:
            return _answer(context, group_id, state="Dead", operations=operations)
        text = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        return _answer(context, group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text, state="Dead")
    return _answer(
        context,
        group_id,
        state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.is_in(GroupState.STABLE) else "",
        members=_members(group, context),
        operations=operations,
    )


def _members(group: Group, context: RequestContext) -> list[Any]:
    kind = message("DescribeGroupsResponse").DescribedGroup.DescribedGroupMember
    stable = group.is_in(GroupState.STABLE)
    return [
        kind(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            member_metadata=m.metadata_for(group.protocol_name) if stable else b"",
            member_assignment=m.assignment,
        )
        for m in group.members.values()
    ]


def _answer(
    context: RequestContext,
    group_id: str,
    *,
    error_code: ErrorCode = ErrorCode.NONE,
    error_message: str | None = None,
    state: str = "",
    protocol_type: str = "",
    protocol_data: str = "",
    members: list[Any] | None = None,
    operations: int = NO_OPERATIONS_ASKED,
) -> Any:
    return message("DescribeGroupsResponse").DescribedGroup(
        error_code=error_code,
        error_message=error_message,
        group_id=group_id,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol_data,
        members=members or [],
        authorized_operations=operations,
    )
