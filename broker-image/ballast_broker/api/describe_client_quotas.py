"""DescribeClientQuotas: the quotas of users, client ids and addresses that match a filter."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.controller.commands.quotas import CLIENT_ID, IP, USER
from ballast_broker.metadata.image import QuotaEntity
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

EXACT, DEFAULT, ANY = range(3)
MATCH_NAMES = {EXACT: "MATCH_TYPE_EXACT", DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = _wanted(request.components)
    quotas = context.broker.image().client_quotas.by_entity
    entries = [
        _entry(entity, values)
        async for entity, values in InTurns(quotas.items())
        if values and _matches(entity, wanted, request.strict)
    ]
    kind = message("DescribeClientQuotasResponse")
    return kind(error_code=ErrorCode.NONE, error_message="", entries=entries)


def _wanted(components: list[Any]) -> dict[str, tuple[int, str | None]]:
    """Entity type → required match type and name."""
    wanted: dict[str, tuple[int, str | None]] = {}
    for each in components:
        if not each.entity_type:
            raise _invalid("Invalid empty entity type.")
        if each.entity_type in wanted:
            raise _invalid(f"Entity type {each.entity_type} cannot appear more than once in the filter.")
        if each.match_type not in MATCH_NAMES:
            raise _invalid(f"Unknown match type {each.match_type}")
        if each.match_type == EXACT and each.match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if each.match_type != EXACT and each.match is not None:
            raise _invalid(f"Request specified {MATCH_NAMES[each.match_type]}, but also specified a match string.")
        wanted[each.entity_type] = (each.match_type, each.match)
    for entity_type in wanted:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
    if IP in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return wanted


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def _matches(entity: QuotaEntity, wanted: dict[str, tuple[int, str | None]], strict: bool) -> bool:
    names = dict(entity)
    if strict and len(names) != len(wanted):
        return False
    for entity_type, (match_type, match) in wanted.items():
        if entity_type not in names:
            return False
        if match_type != ANY and names[entity_type] != match:  # the default entity's name is None, as is its match
            return False
    return True


def _entry(entity: QuotaEntity, values: Any) -> Any:
    kind = message("DescribeClientQuotasResponse").EntryData
    return kind(
        entity=[kind.EntityData(entity_type=name, entity_name=value) for name, value in entity],
        values=[kind.ValueData(key=key, value=value) for key, value in values.items()],
    )
