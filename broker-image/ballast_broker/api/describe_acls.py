"""DescribeAcls: the ACLs that match a filter, grouped by resource."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.alter_acls import check_codes
from ballast_broker.api.authorizer import Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.permissions import check_cluster
from ballast_broker.metadata.acls import Acl, AclFilter
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


async def handle(request: Any, context: RequestContext) -> Any:
    check_codes(request)
    check_cluster(Operation.DESCRIBE, context)
    if not context.broker.authorizer.enforces:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    asked = AclFilter.of(request)
    kind = message("DescribeAclsResponse")
    by_resource: dict[tuple[int, str, int], list[Any]] = {}
    meant = sorted({acl for acl in context.broker.image().security.acls.values() if asked.matches(acl)})
    async for acl in InTurns(meant):
        description = _description(kind.DescribeAclsResource.AclDescription, acl)
        by_resource.setdefault((acl.kind, acl.name, acl.pattern), []).append(description)
    resources = [
        kind.DescribeAclsResource(
            resource_type=resource_type, resource_name=name, pattern_type=pattern, acls=descriptions
        )
        for (resource_type, name, pattern), descriptions in by_resource.items()
    ]
    return kind(error_code=ErrorCode.NONE, error_message="", resources=resources)


def _description(kind: Any, acl: Acl) -> Any:
    return kind(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
