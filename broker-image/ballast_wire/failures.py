"""Makes the response to a request that failed as a whole, with the error where that response has room for it.

A response with a top-level error code has it there; any other repeats the request's entries (topics, partitions,
groups, resources) with the error in each. Both follow from the schemas: requests and responses have the same shape
and mostly the same names. PURE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

# Responses that repeat the request's entries although they have a top-level error code.
REPEATED_BESIDE = frozenset({"AlterPartitionReassignments", "ElectLeaders", "ListPartitionReassignments", "Metadata"})
# The response has other entries than the request: nothing to repeat.
NEVER_REPEATED = frozenset({"DescribeLogDirs"})
ERROR_CODES = frozenset({"error_code", "partition_error_code"})
# Lists that identify their entry.
IDENTITY_LISTS = frozenset({"entity"})
# Entries that get an empty name if they were requested by id.
NAMED = frozenset({"MetadataResponseTopic"})
# Values for "none" that differ from the schema's default.
NOTHING: dict[str, Any] = {
    "committed_offset": -1,
    "committed_leader_epoch": -1,
    "low_watermark": -1,
    "node_id": -1,
    "num_partitions": -1,
    "port": -1,
    "producer_epoch": -1,
    "replication_factor": -1,
    "timestamp": -1,
}


def failure_response(name: str, request: Any | None, version: int, error: ErrorCode, text: str | None) -> Any:
    """`name` is the API's, as in "Metadata"; `request` is None if it could not be decoded."""
    kind = message(name + "Response")
    response = kind(version=version)
    own_error = _has(kind, "error_code", version)
    _fill(response, kind, version, error, text)
    if name == "DescribeUserScramCredentials":
        # As in Kafka: the error once for each requested user, and nothing else.
        response.error_message = None
        result = kind.DescribeUserScramCredentialsResult
        response.results = [
            result(version=version, error_code=error, error_message=None) for _ in getattr(request, "users", None) or ()
        ]
    if name == "DescribeClientQuotas":
        response.entries = None
    if request is None or name in NEVER_REPEATED or (own_error and name not in REPEATED_BESIDE):
        return response
    asked_name, asked = _asked(name, request, version)
    lists = {field.name: field for field in _struct_lists(kind, version)}
    answers = lists.get(asked_name) or next(iter(lists.values()), None)
    if answers is not None:
        repeated = [_repeat(answers.data_class, each, version, error, text) for each in asked]
        setattr(response, answers.name, repeated)
    return response


def _fields(kind: Any, version: int) -> list[Any]:
    return [field for field in kind._struct.fields.values() if field.for_version_q(version)]


def _has(kind: Any, field_name: str, version: int) -> bool:
    return any(field.name == field_name for field in _fields(kind, version))


def _struct_lists(kind: Any, version: int) -> Iterator[Any]:
    return (field for field in _fields(kind, version) if field.is_struct_array())


def _asked(name: str, request: Any, version: int) -> tuple[str, list[Any]]:
    """The name and content of the request's first list."""
    if name == "AlterReplicaLogDirs":  # requested by directory, answered by topic
        return "topics", [topic for directory in request.dirs for topic in directory.topics]
    if name == "AlterUserScramCredentials":  # requested by kind of change, answered by user
        users = {each.name: None for each in (*request.deletions, *request.upsertions)}
        return "results", list(users)
    for field in _fields(type(request), version):
        if field.is_array():
            return field.name, list(getattr(request, field.name) or ())
    return "", []


def _fill(answer: Any, kind: Any, version: int, error: ErrorCode, text: str | None) -> None:
    for field in _fields(kind, version):
        if field.name in ERROR_CODES:
            setattr(answer, field.name, error)
        elif field.name == "error_message":
            answer.error_message = text
        elif field.name in NOTHING:
            setattr(answer, field.name, NOTHING[field.name])


def _repeat(kind: Any, asked: Any, version: int, error: ErrorCode, text: str | None) -> Any:
    """The response's entry for an entry (or a bare name or number) of the request."""
    answer = kind(version=version)
    _fill(answer, kind, version, error, text)
    if not hasattr(asked, "_struct"):
        setattr(answer, _identity(kind, version), asked)
        return answer
    says_error = _has(kind, "error_code", version)
    for field in _fields(kind, version):
        if not field.is_array():
            _copy(answer, field.name, asked)
        elif field.is_struct_array() and (field.name in IDENTITY_LISTS or not says_error):
            inner = _inner_list(asked, field.name, version)
            setattr(answer, field.name, [_repeat(field.data_class, each, version, error, text) for each in inner])
    return answer


def _copy(answer: Any, name: str, asked: Any) -> None:
    source = "name" if name == "topic_name" else name
    if name not in ("error_code", "error_message", *NOTHING) and source in asked._struct.fields:
        value = getattr(asked, source)
        setattr(answer, name, "" if value is None and name == "name" and type(answer).__name__ in NAMED else value)


def _inner_list(asked: Any, name: str, version: int) -> list[Any]:
    lists = [field.name for field in asked._struct.fields.values() if field.is_array() and field.for_version_q(version)]
    source = name if name in lists else next(iter(lists), None)
    return [] if source is None else list(getattr(asked, source) or ())


def _identity(kind: Any, version: int) -> str:
    """The field that identifies an entry: the first one that is not the error."""
    names = [each.name for each in _fields(kind, version) if not each.name.startswith("error_")]
    name: str = names[0]
    return name
