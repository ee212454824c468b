"""A whole request refused, said in the form that its response has: on top, or for each of its entries. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

# Responses that have an error code, and those that have also a message, of their own.
_TOP_LEVEL = {
    "AlterPartition": False,
    "AllocateProducerIds": False,
    "AlterPartitionReassignments": True,
    "ListPartitionReassignments": True,
    "AssignReplicasToDirs": False,
    "BrokerHeartbeat": False,
    "BrokerRegistration": False,
    "ControllerRegistration": True,
    "DescribeQuorum": True,
    "ElectLeaders": False,
    "UnregisterBroker": True,
    "UpdateFeatures": True,
}


def error_response(name: str, request: Any, error: ApiError) -> Any:
    """`name` is that of the API, without Request."""
    response = message(f"{name}Response")()
    if name in _TOP_LEVEL:
        response.error_code = int(error.code)
        if _TOP_LEVEL[name]:
            response.error_message = error.message
        return response
    _PER_ENTRY[name](response, request, error)
    return response


def _fill(entry: Any, error: ApiError) -> Any:
    entry.error_code = int(error.code)
    entry.error_message = error.message
    return entry


def _create_topics(response: Any, request: Any, error: ApiError) -> None:
    kind = type(response).CreatableTopicResult
    response.topics = [_fill(kind(name=each.name), error) for each in request.topics]


def _delete_topics(response: Any, request: Any, error: ApiError) -> None:
    kind = type(response).DeletableTopicResult
    named = [kind(name=name) for name in request.topic_names or ()]
    both = [kind(name=each.name, topic_id=each.topic_id) for each in request.topics or ()]
    response.responses = [_fill(each, error) for each in named + both]


def _create_partitions(response: Any, request: Any, error: ApiError) -> None:
    kind = type(response).CreatePartitionsTopicResult
    response.results = [_fill(kind(name=each.name), error) for each in request.topics]


def _alter_configs(response: Any, request: Any, error: ApiError) -> None:
    kind = type(response).AlterConfigsResourceResponse
    response.responses = [
        _fill(kind(resource_type=each.resource_type, resource_name=each.resource_name), error)
        for each in request.resources
    ]


def _alter_client_quotas(response: Any, request: Any, error: ApiError) -> None:
    kind = type(response).EntryData
    response.entries = []
    for entry in request.entries:
        answer = _fill(kind(), error)
        answer.entity = [
            kind.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity
        ]
        response.entries.append(answer)


_PER_ENTRY: dict[str, Callable[[Any, Any, ApiError], None]] = {
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    "IncrementalAlterConfigs": _alter_configs,
    "AlterConfigs": _alter_configs,
    "AlterClientQuotas": _alter_client_quotas,
}
_ENTRY_LISTS = ("topics", "responses", "results", "entries")


def is_not_controller(response: Any) -> bool:
    """Whether the whole request has to be sent to another controller."""
    code = int(ErrorCode.NOT_CONTROLLER)
    fields = type(response).fields
    if "error_code" in fields:
        return bool(response.error_code == code)
    for name in _ENTRY_LISTS:
        if name in fields:
            entries = getattr(response, name)
            return bool(entries) and all(getattr(each, "error_code", 0) == code for each in entries)
    return False
