"""Splits requests for the controller into what the requester is authorized for and errors for the rest.

Used by brokers before they forward, and by a controller for requests from clients other than brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, TypeVar
from uuid import UUID

from ballast_broker.api.authorizer import CLUSTER, Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.controller.commands.topic_names import METADATA_TOPIC
from ballast_broker.metadata.image import RESOURCE_BROKER_LOGGER, RESOURCE_GROUP, RESOURCE_TOPIC
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID
from ballast_wire.wording import WORDING

Ask = Callable[[Any], Awaitable[Any]]
Name = TypeVar("Name", bound=Hashable)

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 33, 44
# Requests authorized as a whole, by the operation required on the cluster.
OF_THE_CLUSTER = {
    30: Operation.ALTER,  # CreateAcls
    31: Operation.ALTER,  # DeleteAcls
    43: Operation.ALTER,  # ElectLeaders
    45: Operation.ALTER,  # AlterPartitionReassignments
    46: Operation.DESCRIBE,  # ListPartitionReassignments
    49: Operation.ALTER_CONFIGS,  # AlterClientQuotas
    51: Operation.ALTER,  # AlterUserScramCredentials
    55: Operation.DESCRIBE,  # DescribeQuorum
    57: Operation.ALTER,  # UpdateFeatures
    64: Operation.ALTER,  # UnregisterBroker
    80: Operation.ALTER,  # AddRaftVoter
    81: Operation.ALTER,  # RemoveRaftVoter
}
FIRST_DELETION_WITH_MESSAGE = 5
FIRST_DELETION_WITH_IDS = 6
UNAUTHORIZED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def ask_for_what_is_allowed(request: Any, context: RequestContext, ask: Ask) -> Any:
    """The response to the whole request; `ask` is called with the authorized part."""
    if not context.broker.authorizer.enforces:
        return await ask(request)
    operation = OF_THE_CLUSTER.get(context.api_key)
    if operation is None:
        return await _BY_RESOURCE[context.api_key](request, context, ask)
    check_cluster(operation, context)
    return await ask(request)


def check_cluster(operation: Operation, context: RequestContext) -> None:
    if not context.authorize(operation, CLUSTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise ApiError(error, WORDING[error])


async def _create_topics(request: Any, context: RequestContext, ask: Ask) -> Any:
    """Reject topics the requester may not create; hide the configs of the others if they may not be described."""
    refused = set()
    if not context.may(Operation.CREATE, CLUSTER):
        # Invalid and duplicate names are rejected by the controller, whoever asks.
        once = [name for name in _once(each.name for each in request.topics) if name != METADATA_TOPIC]
        refused = {name for name in once if not _may(Operation.CREATE, name, context)}
    kind = message("CreateTopicsResponse")
    answers = [
        kind.CreatableTopicResult(name=name, error_code=UNAUTHORIZED, error_message="Authorization failed.")
        for name in refused
    ]
    response = await _ask_for_rest(request, "topics", lambda each: each.name not in refused, ask, kind, context)
    for each in response.topics:
        if each.error_code == ErrorCode.NONE and not context.may(Operation.DESCRIBE_CONFIGS, topic(each.name)):
            each.topic_config_error_code = UNAUTHORIZED
            each.num_partitions = each.replication_factor = -1
            each.configs = []
    response.topics = [*response.topics, *answers]
    return response


def _once(names: Iterable[Name]) -> list[Name]:
    return [name for name, times in Counter(names).items() if times == 1]


def _may(operation: Operation, topic_name: str, context: RequestContext) -> bool:
    return context.authorize(operation, topic(topic_name))


async def _ask_for_rest(
    request: Any, field: str, is_allowed: Callable[[Any], bool], ask: Ask, kind: Any, context: RequestContext
) -> Any:
    """The response to the authorized part; `ask` is not called if nothing of what was requested is authorized."""
    asked = getattr(request, field)
    allowed = [each for each in asked if is_allowed(each)]
    if asked and not allowed:
        return kind()
    setattr(request, field, allowed)
    return await ask(request)


async def _delete_topics(request: Any, context: RequestContext, ask: Ask) -> Any:
    kind = message("DeleteTopicsResponse")
    if context.version < FIRST_DELETION_WITH_IDS:
        asked = [(name, ZERO_UUID) for name in request.topic_names]
    else:
        asked = [(each.name, each.topic_id or ZERO_UUID) for each in request.topics]
    refusals = {each: refusal for each in _once(asked) if (refusal := _deletion_refusal(*each, context)) is not None}
    answers = [_refused_deletion(kind, context, *each, error) for each, error in refusals.items()]
    if context.version < FIRST_DELETION_WITH_IDS:
        response = await _ask_for_rest(
            request, "topic_names", lambda name: (name, ZERO_UUID) not in refusals, ask, kind, context
        )
    else:
        response = await _ask_for_rest(
            request,
            "topics",
            lambda each: (each.name, each.topic_id or ZERO_UUID) not in refusals,
            ask,
            kind,
            context,
        )
    response.responses = [*response.responses, *answers]
    return response


def _deletion_refusal(name: str | None, topic_id: UUID, context: RequestContext) -> ErrorCode | None:
    """The error for a topic that is not forwarded. Ids unknown here are not: the controller does not authorize them."""
    if (name is None) == (topic_id == ZERO_UUID):
        return None  # invalid: the controller says so
    topics = context.broker.image().topics
    found = topics.by_name(name) if name is not None else topics.by_id(topic_id)
    if name is None and found is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    asked_for = name if found is None else found.name
    assert asked_for is not None
    if context.may(Operation.DELETE, CLUSTER) or _may(Operation.DELETE, asked_for, context):
        return None
    if found is None and context.may(Operation.DESCRIBE, topic(asked_for)):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return UNAUTHORIZED


def _refused_deletion(kind: Any, context: RequestContext, name: str | None, topic_id: UUID, error: ErrorCode) -> Any:
    """Reveal the name of a topic id only to those who may describe the topic."""
    found = context.broker.image().topics.by_id(topic_id) if name is None else None
    if found is not None and context.may(Operation.DESCRIBE, topic(found.name)):
        name = found.name
    return kind.DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=error,
        error_message=WORDING[error] if context.version >= FIRST_DELETION_WITH_MESSAGE else None,
    )


async def _create_partitions(request: Any, context: RequestContext, ask: Ask) -> Any:
    kind = message("CreatePartitionsResponse")
    once = _once(each.name for each in request.topics)
    refused = {name for name in once if not _may(Operation.ALTER, name, context)}
    answers = [
        kind.CreatePartitionsTopicResult(name=name, error_code=UNAUTHORIZED, error_message=None) for name in refused
    ]
    response = await _ask_for_rest(request, "topics", lambda each: each.name not in refused, ask, kind, context)
    response.results = [*response.results, *answers]
    return response


def check_alteration(resource_type: int, name: str, context: RequestContext) -> None:
    """Raise ApiError unless the requester may alter the configs of this resource."""
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    resource = CLUSTER
    if resource_type == RESOURCE_TOPIC:
        error, resource = UNAUTHORIZED, topic(name)
    elif resource_type == RESOURCE_GROUP:
        error, resource = ErrorCode.GROUP_AUTHORIZATION_FAILED, group(name)
    if not context.authorize(Operation.ALTER_CONFIGS, resource):
        raise ApiError(error, None if resource_type == RESOURCE_BROKER_LOGGER else WORDING[error])


async def _alter_configs(request: Any, context: RequestContext, ask: Ask) -> Any:
    """Used at a controller; brokers check each resource themselves."""
    name = "AlterConfigs" if context.api_key == ALTER_CONFIGS else "IncrementalAlterConfigs"
    kind = message(name + "Response")
    refusals: dict[tuple[int, str], ApiError] = {}
    for each in request.resources:
        try:
            check_alteration(each.resource_type, each.resource_name, context)
        except ApiError as error:
            refusals[each.resource_type, each.resource_name] = error
    response = await _ask_for_rest(
        request, "resources", lambda each: (each.resource_type, each.resource_name) not in refusals, ask, kind, context
    )
    response.responses = [
        *response.responses,
        *(
            kind.AlterConfigsResourceResponse(
                resource_type=resource_type,
                resource_name=resource_name,
                error_code=error.code,
                error_message=error.message,
            )
            for (resource_type, resource_name), error in refusals.items()
        ),
    ]
    return response


_BY_RESOURCE: dict[int, Callable[[Any, RequestContext, Ask], Awaitable[Any]]] = {
    CREATE_TOPICS: _create_topics,
    DELETE_TOPICS: _delete_topics,
    CREATE_PARTITIONS: _create_partitions,
    ALTER_CONFIGS: _alter_configs,
    INCREMENTAL_ALTER_CONFIGS: _alter_configs,
}
