"""JoinGroup: a member joins the next generation, and waits for it."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, group
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.group import Protocol
from ballast_broker.coordinator.rebalance import JoinAsk
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

FIRST_VERSION_THAT_ASKS_FOR_AN_ID = 4
FIRST_VERSION_THAT_SKIPS_ASSIGNMENTS = 9
FIRST_VERSION_WITH_NO_PROTOCOL = 7
MOST_OF_A_NAME = 1000  # the member id has to fit into responses and into the group's record


async def handle(request: Any, context: RequestContext) -> Any:
    version = context.version
    if not context.authorize(Operation.READ, group(request.group_id)):
        return _refused(version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    name = (request.group_instance_id or context.client_id or "")[:MOST_OF_A_NAME]
    ask = JoinAsk(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(p.name, bytes(p.metadata)) for p in request.protocols),
        fresh_member_id=f"{name}-{context.fresh_id()}",
        requires_known_member_id=version >= FIRST_VERSION_THAT_ASKS_FOR_AN_ID and request.group_instance_id is None,
        supports_skipping_assignment=version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENTS,
    )
    result = await context.broker.groups.join(request.group_id, ask)
    kind = message("JoinGroupResponse")
    protocol_name = result.protocol_name
    if protocol_name is None and version < FIRST_VERSION_WITH_NO_PROTOCOL:
        protocol_name = ""
    return kind(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            kind.JoinGroupResponseMember(
                member_id=m.member_id, group_instance_id=m.group_instance_id, metadata=m.metadata
            )
            for m in result.members
        ],
    )


def _refused(version: int, error: ErrorCode) -> Any:
    protocol_name = "" if version < FIRST_VERSION_WITH_NO_PROTOCOL else None
    return message("JoinGroupResponse")(error_code=error, generation_id=-1, protocol_name=protocol_name, members=[])
