"""CreateAcls and DeleteAcls. PURE."""

from __future__ import annotations

from enum import IntEnum
from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, CommandContext, Outcome
from ballast_broker.metadata.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from ballast_broker.metadata.records import record
from ballast_broker.metadata.snapshot import acl_record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

NO_AUTHORIZER = "No Authorizer is configured."
MOST_LOOKED_AT = 2_000_000  # entries scanned by all filters of a request: blocks everything else for a second or two


def create_acls(context: CommandContext, request: Any) -> Outcome:
    """Create the valid entries (existing ones count as created) and reject the others individually."""
    _check_authorizer(context)
    kind = message("CreateAclsResponse").AclCreationResult
    results = []
    new: dict[Acl, None] = {}
    for each in request.creations:
        acl = Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        error = _refusal(acl)
        if error is not None:
            results.append(kind(error_code=int(ErrorCode.INVALID_REQUEST), error_message=error))
            continue
        if acl not in context.image.security.acl_ids:
            new[acl] = None
        results.append(kind(error_code=0, error_message=""))
    if len(new) > MAX_RECORDS_PER_BATCH:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    records = [acl_record(context.new_id(), acl) for acl in new]
    return Outcome(records, message("CreateAclsResponse")(throttle_time_ms=0, results=results))


def _check_authorizer(context: CommandContext) -> None:
    if not context.config.has_authorizer:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def _refusal(acl: Acl) -> str | None:
    """The reason to reject this entry, in Kafka's words; None if it is valid."""
    if acl.kind == ResourceKind.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.name:
        return "Invalid empty resource name"
    kind, pattern = _known(ResourceKind, acl.kind), _known(PatternType, acl.pattern)
    operation, permission = _known(Operation, acl.operation), _known(Permission, acl.permission)
    if kind in (ResourceKind.UNKNOWN, ResourceKind.ANY):
        return f"Invalid resourceType {kind.name}"
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {pattern.name}"
    if operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {operation.name}"
    if permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {permission.name}"
    if ":" not in acl.principal:
        why = "no colon is present separating the principal type from the principal name"
        return f"Could not parse principal from `{acl.principal}` ({why})"
    return None


def _known(codes: type[IntEnum], code: int) -> IntEnum:
    return codes(code) if code in codes.__members__.values() else codes(0)


def delete_acls(context: CommandContext, request: Any) -> Outcome:
    """Each filter's result lists everything it matches, including what another filter of the request matches."""
    _check_authorizer(context)
    _check_size(request, context)
    kind = message("DeleteAclsResponse").DeleteAclsFilterResult
    results = []
    gone: dict[UUID, None] = {}
    for each in request.filters:
        asked = AclFilter.of(each)
        error = _unknown_in(asked)
        if error is not None:
            results.append(kind(error_code=int(ErrorCode.INVALID_REQUEST), error_message=error, matching_acls=[]))
            continue
        found = _meant(asked, context)
        gone |= dict.fromkeys(found)
        if len(gone) > MAX_RECORDS_PER_BATCH:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot remove more than {MAX_RECORDS_PER_BATCH} acls in a single delete operation.",
            )
        matching = [_matching(kind.DeleteAclsMatchingAcl, acl) for acl in found.values()]
        results.append(kind(error_code=0, error_message=None, matching_acls=matching))
    records = [record("RemoveAccessControlEntryRecord", id=acl_id) for acl_id in gone]
    return Outcome(records, message("DeleteAclsResponse")(throttle_time_ms=0, filter_results=results))


def _unknown_in(asked: AclFilter) -> str | None:
    if not (_known(ResourceKind, asked.kind) and _known(PatternType, asked.pattern)):
        return "Unknown patternFilter."
    if not (_known(Operation, asked.operation) and _known(Permission, asked.permission)):
        return "Unknown entryFilter."
    return None


def _meant(asked: AclFilter, context: CommandContext) -> dict[UUID, Acl]:
    security = context.image.security
    only = asked.exact_acl
    if only is not None:
        acl_id = security.acl_ids.get(only)
        return {} if acl_id is None else {acl_id: only}
    return {acl_id: acl for acl_id, acl in security.acls.items() if asked.matches(acl)}


def _check_size(request: Any, context: CommandContext) -> None:
    wide = sum(1 for each in request.filters if AclFilter.of(each).exact_acl is None)
    if wide * len(context.image.security.acls) > MOST_LOOKED_AT:
        text = f"{wide} filters that may mean many acls are too many for {len(context.image.security.acls)} acls."
        raise ApiError(ErrorCode.POLICY_VIOLATION, text)


def _matching(kind: Any, acl: Acl) -> Any:
    return kind(
        error_code=0,
        error_message=None,
        resource_type=acl.kind,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
