"""AlterClientQuotas. PURE."""

from __future__ import annotations

import ipaddress
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.pieces import one_by_one
from ballast_broker.metadata.image import QuotaEntity
from ballast_broker.metadata.snapshot import quota_record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

USER, CLIENT_ID, IP = "user", "client-id", "ip"
INT_KEYS = frozenset({"connection_creation_rate"})
LONG_KEYS = frozenset({"producer_byte_rate", "consumer_byte_rate"})
DOUBLE_KEYS = frozenset({"request_percentage", "controller_mutation_rate"})
USER_CLIENT_KEYS = LONG_KEYS | DOUBLE_KEYS
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


def alter_client_quotas(context: CommandContext, request: Any) -> Outcome:
    response = message("AlterClientQuotasResponse")(entries=[], throttle_time_ms=0)
    kind = type(response).EntryData
    seen: set[QuotaEntity] = set()

    def answer(entry: Any) -> Any:
        result = kind(error_code=0, error_message=None, entity=[])
        result.entity = [
            kind.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity
        ]
        response.entries.append(result)
        return result

    def alter(now: CommandContext, entry: Any) -> list[Any]:
        return _alter(now, entry, seen)

    return one_by_one(context, request.entries, answer, alter, response, only_looks=request.validate_only)


def _refused(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def _alter(context: CommandContext, entry: Any, seen: set[QuotaEntity]) -> list[Any]:
    entity = _entity(entry)
    if entity in seen:
        raise _refused(f"Ignoring duplicate entity {dict(entity)}")
    seen.add(entity)
    allowed = INT_KEYS if any(kind == IP for kind, _ in entity) else USER_CLIENT_KEYS
    before = context.image.client_quotas.of(entity)
    records = []
    keys: set[str] = set()
    for operation in entry.ops:
        if operation.key in keys:
            raise _refused(f"Duplicate quota key {operation.key} not updating quota for this entity {dict(entity)}")
        keys.add(operation.key)
        if operation.remove:
            if operation.key in before:
                records.append(quota_record(entity, operation.key, None))
            continue
        if operation.key not in allowed:
            raise _refused(f"Invalid configuration key {operation.key}")
        _check_value(operation.key, operation.value)
        if before.get(operation.key) != operation.value:
            records.append(quota_record(entity, operation.key, operation.value))
    return records


def _entity(entry: Any) -> QuotaEntity:
    parts: dict[str, str | None] = {}
    for each in entry.entity:
        if each.entity_type in parts:
            raise _refused(f"Invalid client quota entity, duplicate entity entry {each.entity_type}")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise _refused(f"Unhandled client quota entity type: {each.entity_type}")
        if each.entity_name == "":
            raise _refused(f"Empty {each.entity_type} not supported")
        parts[each.entity_type] = each.entity_name
    if not parts:
        raise _refused("Invalid empty client quota entity")
    if IP in parts and len(parts) > 1:
        raise _refused("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if parts.get(IP) is not None:
        _check_address(str(parts[IP]))
    return tuple(sorted(parts.items()))


def _check_address(text: str) -> None:
    # Kafka also resolves host names; a controller that waits for a name server serves nobody.
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise _refused(f"{text} is no IP address, and names of hosts are not looked up here.") from error


def _check_value(key: str, value: float) -> None:
    if not value > 0:  # also rejects NaN
        raise _refused(f"Quota {key} must be greater than 0")
    if key in DOUBLE_KEYS:
        return
    if key in INT_KEYS and value > INT_MAX:
        raise _refused(f"Proposed value for {key} is too large for an INT.")
    if value > LONG_MAX:
        raise _refused(f"Proposed value for {key} is too large for a LONG.")
    if abs(value - round(value)) > 1e-6:
        raise _refused(f"{key} cannot be a fractional value.")
