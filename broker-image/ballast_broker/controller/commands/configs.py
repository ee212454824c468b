"""IncrementalAlterConfigs and AlterConfigs, for topics, brokers, groups and client metrics. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.pieces import one_by_one
from ballast_broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC
from ballast_broker.metadata.partition_records import PartitionChangeRecord
from ballast_broker.metadata.records import record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

SET, DELETE, APPEND, SUBTRACT = range(4)
OPERATION_NAMES = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
MIN_ISR = "min.insync.replicas"
MAX_VALUE_BYTES = 32_767
# A few milliseconds of work. A single resource is never split.
RESOURCES_PER_PIECE = 200


def incremental_alter_configs(context: CommandContext, request: Any) -> Outcome:
    response = message("IncrementalAlterConfigsResponse")(responses=[], throttle_time_ms=0)
    return _alter_all(context, request, response, _changes_incremental)


def alter_configs(context: CommandContext, request: Any) -> Outcome:
    """The old API: configs that are not named are reset to their defaults."""
    response = message("AlterConfigsResponse")(responses=[], throttle_time_ms=0)
    return _alter_all(context, request, response, _changes_whole)


def _alter_all(context: CommandContext, request: Any, response: Any, changes_of: Any) -> Outcome:
    """Alter each resource independently, in pieces small enough that other requests do not wait long."""
    kind = type(response).AlterConfigsResourceResponse
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)

    def answer(named: tuple[tuple[int, str], Any]) -> Any:
        (resource_type, name), _ = named
        result = kind(error_code=0, error_message=None, resource_type=resource_type, resource_name=name)
        response.responses.append(result)
        return result

    def alter(now: CommandContext, named: tuple[tuple[int, str], Any]) -> list[Any]:
        resource, wanted = named
        if counts[resource] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        _check_resource(now, *resource)
        return _alter(now, resource, wanted, changes_of)

    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    return one_by_one(
        context, [*resources.items()], answer, alter, response,
        only_looks=request.validate_only, at_a_time=RESOURCES_PER_PIECE,
    )  # fmt: skip


def _check_resource(context: CommandContext, resource_type: int, name: str) -> None:
    if resource_type == RESOURCE_TOPIC and context.image.topics.by_name(name) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if resource_type == RESOURCE_BROKER and name:
        if not name.isdecimal():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid broker name {name}")
        if int(name) not in (*context.image.cluster.brokers, *context.controllers):
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {int(name)} found.")


def _alter(context: CommandContext, resource: tuple[int, str], wanted: Any, changes_of: Any) -> list[Any]:
    before = context.image.configs.of(*resource)
    changes: dict[str, str | None] = changes_of(context, resource, wanted, before)
    after = {key: value for key, value in {**before, **changes}.items() if value is not None}
    if resource[0] == RESOURCE_TOPIC or any(value is not None for value in changes.values()):
        context.rules.validate(*resource, after)
    _check_elr(context, resource, changes)
    records = [
        record("ConfigRecord", resource_type=resource[0], resource_name=resource[1], name=key, value=value)
        for key, value in sorted(changes.items())
        if before.get(key) != value
    ]
    if before.get(MIN_ISR) != changes.get(MIN_ISR, before.get(MIN_ISR)):
        records += _clear_eligible(context, resource[1] if resource[0] == RESOURCE_TOPIC else "")
    return records


def _clear_eligible(context: CommandContext, topic_name: str) -> list[Any]:
    """Clear the ELR, also while ELR is off: with a lower minimum the ISR may commit what eligible replicas lack.

    The record also clears the last known leaders. But where the ISR is empty nothing can be committed, so the eligible
    replicas stay eligible: otherwise an offline partition would remain offline even after all its replicas are back.
    """
    topic = context.image.topics.by_name(topic_name)
    topics = context.image.topics if topic is None else [topic]
    kept = [
        PartitionChangeRecord(
            topic_id=each.id,
            partition_id=number,
            eligible_leader_replicas=partition.elr,
            last_known_elr=partition.last_known_elr,
        )
        for each in topics
        for number, partition in each.sorted_partitions()
        if not partition.isr and (partition.elr or partition.last_known_elr)
    ]
    return [record("ClearElrRecord", topic_name=topic_name), *kept]


def _check_elr(context: CommandContext, resource: tuple[int, str], changes: Mapping[str, str | None]) -> None:
    """With ELR on, min.insync.replicas is always set for the whole cluster and cannot differ per broker."""
    if not context.elr_enabled or resource[0] != RESOURCE_BROKER or MIN_ISR not in changes:
        return
    if resource[1]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        )
    if changes[MIN_ISR] is None:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        )


def _changes_incremental(
    context: CommandContext, resource: tuple[int, str], wanted: Any, before: Mapping[str, str]
) -> dict[str, str | None]:
    names = [each.name for each in wanted.configs]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [each.name for each in wanted.configs if each.value is None and each.config_operation != DELETE]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    changes: dict[str, str | None] = {}
    for each in wanted.configs:
        changes[each.name] = _changed_value(context, resource, each, before)
        if len((changes[each.name] or "").encode()) > MAX_VALUE_BYTES:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_BYTES} bytes.",
            )
    return changes


def _changed_value(
    context: CommandContext, resource: tuple[int, str], wanted: Any, before: Mapping[str, str]
) -> str | None:
    operation = wanted.config_operation
    if operation == SET:
        value: str = wanted.value
        return value
    if operation == DELETE:
        return None
    if operation not in OPERATION_NAMES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    if not context.rules.is_list(resource[0], wanted.name):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {OPERATION_NAMES[operation]} to key {wanted.name} because its type is not LIST.",
        )
    present = before.get(wanted.name)
    if present is None:
        present = context.rules.default(resource[0], wanted.name) or ""
    parts = [part.strip() for part in present.split(",") if part.strip()]
    given = [part.strip() for part in wanted.value.split(",") if part.strip()]
    if operation == APPEND:
        return ",".join(parts + [part for part in given if part not in parts])
    return ",".join(part for part in parts if part not in given)


def _changes_whole(
    _context: CommandContext, _resource: tuple[int, str], wanted: Any, before: Mapping[str, str]
) -> dict[str, str | None]:
    changes: dict[str, str | None] = dict.fromkeys(before)
    changes.update({each.name: each.value for each in wanted.configs})
    return changes
