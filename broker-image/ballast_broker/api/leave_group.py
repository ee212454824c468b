"""LeaveGroup: members leave at once instead of timing out."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_VERSION_WITH_MANY_MEMBERS = 3


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.authorize(Operation.READ, group(request.group_id)):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    kind = message("LeaveGroupResponse")
    many = context.version >= FIRST_VERSION_WITH_MANY_MEMBERS
    members = [(m.member_id, m.group_instance_id) for m in request.members] if many else [(request.member_id, None)]
    try:
        errors = await context.broker.groups.leave(request.group_id, members)
    except ApiError as error:
        return kind(error_code=error.code, members=[])
    if not many:
        return kind(error_code=errors[0])
    answers = [
        kind.MemberResponse(member_id=m, group_instance_id=instance, error_code=error)
        for (m, instance), error in zip(members, errors, strict=True)
    ]
    return kind(error_code=ErrorCode.NONE, members=answers)
