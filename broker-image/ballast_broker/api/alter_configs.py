"""AlterConfigs and IncrementalAlterConfigs: changes logger levels here and forwards the rest to the controller.

This module checks whether the resource may be named at all, and by whom; the controller knows the configs and their
valid values. A controller's own loggers are changed on its own listener.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ballast_broker.api import broker_loggers
from ballast_broker.api.authorizer import Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.forwarded import forward
from ballast_broker.api.permissions import Ask, check_alteration, check_cluster
from ballast_broker.api.topic_names import refusal
from ballast_broker.config_types import node_id
from ballast_broker.controller.commands.configs import DELETE
from ballast_broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

INCREMENTAL = 44
Outcome = tuple[int, str | None]  # error code and message


async def handle(request: Any, context: RequestContext) -> Any:
    name = "IncrementalAlterConfigs" if context.api_key == INCREMENTAL else "AlterConfigs"
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    outcomes: dict[tuple[int, str], Outcome] = {}
    remaining = []
    for each in request.resources:
        resource = (each.resource_type, each.resource_name)
        try:
            if times[resource] > 1:
                raise _invalid("Each resource must appear at most once.")
            _check_keys(each, context)
            _check_resource(each, context)
        except ApiError as error:
            outcomes[resource] = (error.code, error.message)
            continue
        if each.resource_type == RESOURCE_BROKER_LOGGER:
            outcomes[resource] = _alter_loggers(each, request.validate_only)
        else:
            remaining.append(each)
    if remaining:
        outcomes |= await _ask_controller(name, remaining, request.validate_only, context)
    return _response(name, request, outcomes)


async def handle_at_controller(request: Any, context: RequestContext, ask: Ask) -> Any:
    """Handle an IncrementalAlterConfigs sent to a controller's listener; `ask` handles everything but loggers."""
    loggers = [each for each in request.resources if each.resource_type == RESOURCE_BROKER_LOGGER]
    request.resources = [each for each in request.resources if each.resource_type != RESOURCE_BROKER_LOGGER]
    kind = message("IncrementalAlterConfigsResponse")
    answers = [
        _result(kind, each, _alter_loggers_at_controller(each, request.validate_only, context)) for each in loggers
    ]
    if loggers and not request.resources:  # an inactive controller has loggers, too
        return kind(responses=answers)
    response = await ask(request)
    response.responses = [*response.responses, *answers]
    return response


def _alter_loggers_at_controller(asked: Any, validate_only: bool, context: RequestContext) -> Outcome:
    try:
        check_cluster(Operation.CLUSTER_ACTION, context)
        _check_loggers(asked.resource_name, context)
    except ApiError as error:
        return error.code, error.message
    return _alter_loggers(asked, validate_only)


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def _check_keys(asked: Any, context: RequestContext) -> None:
    names = [each.name for each in asked.configs]
    if len(set(names)) != len(names):
        raise _invalid("Error due to duplicate config keys")
    nulls = [
        each.name
        for each in asked.configs
        if each.value is None and (context.api_key != INCREMENTAL or each.config_operation != DELETE)
    ]
    if nulls:
        raise _invalid(f"Null value not supported for : {', '.join(nulls)}")


def _check_resource(asked: Any, context: RequestContext) -> None:
    check = _CHECKS.get(asked.resource_type)
    if check is None or (asked.resource_type == RESOURCE_BROKER_LOGGER and context.api_key != INCREMENTAL):
        raise _invalid(f"Unknown resource type {asked.resource_type}")
    if asked.resource_type == RESOURCE_BROKER:  # a wrong broker id is reported before authorization
        check(asked.resource_name, context)
    check_alteration(asked.resource_type, asked.resource_name, context)
    check(asked.resource_name, context)


def _check_topic(name: str, _context: RequestContext) -> None:
    if not name:
        raise _invalid("Default topic resources are not allowed.")
    illegal = refusal(name)
    if illegal is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, illegal)


def _node_id(name: str) -> int:
    try:
        return node_id(name)
    except ValueError:
        raise _invalid(f"Node id must be an integer, but it is: {name}") from None


def _check_broker(name: str, context: RequestContext) -> None:
    expected = context.broker.node_id
    if name and _node_id(name) != expected:
        raise _invalid(f"Unexpected broker id, expected {expected}, but received {name}")


def _check_loggers(name: str, context: RequestContext) -> None:
    expected = context.broker.node_id
    if _node_id(name) != expected:
        raise _invalid(f"Unexpected node id. Expected {expected}, but received {name}")


def _check_group(name: str, _context: RequestContext) -> None:
    if not name:
        raise _invalid("Default group resources are not allowed.")


def _check_subscription(name: str, _context: RequestContext) -> None:
    if not name:
        raise _invalid("Subscription name can't be empty")


_CHECKS: dict[int, Callable[[str, RequestContext], None]] = {
    RESOURCE_TOPIC: _check_topic,
    RESOURCE_BROKER: _check_broker,
    RESOURCE_BROKER_LOGGER: _check_loggers,
    RESOURCE_GROUP: _check_group,
    RESOURCE_CLIENT_METRICS: _check_subscription,
}


def _alter_loggers(asked: Any, validate_only: bool) -> Outcome:
    try:
        broker_loggers.check(asked.configs)
    except ApiError as error:
        return error.code, error.message
    if not validate_only:
        broker_loggers.change(asked.configs)
    return ErrorCode.NONE, None


async def _ask_controller(
    name: str, resources: list[Any], validate_only: bool, context: RequestContext
) -> dict[tuple[int, str], Outcome]:
    asked = message(name + "Request")(resources=resources, validate_only=validate_only)
    try:
        response = await forward(asked, context)
    except ApiError as error:
        return {(each.resource_type, each.resource_name): (error.code, error.message) for each in resources}
    return {
        (each.resource_type, each.resource_name): (each.error_code, each.error_message) for each in response.responses
    }


def _response(name: str, request: Any, outcomes: dict[tuple[int, str], Outcome]) -> Any:
    kind = message(name + "Response")
    responses = [_result(kind, each, outcomes[each.resource_type, each.resource_name]) for each in request.resources]
    return kind(responses=responses)


def _result(kind: Any, asked: Any, outcome: Outcome) -> Any:
    error, text = outcome
    return kind.AlterConfigsResourceResponse(
        error_code=error, error_message=text, resource_type=asked.resource_type, resource_name=asked.resource_name
    )
