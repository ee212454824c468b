"""Finds what the API server would drop or refuse because its CRDs are older than this operator. PURE.

An older CRD accepts a spec with a newer field but silently drops the field, as if the operator ignored it. So the
schemas that the API server serves are compared with the operator's whole model.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ballast_operator.model import cluster, reassignment, topic
from ballast_operator.model.fields import fields_of, unwrap_optional
from ballast_operator.model.meta import GROUP, VERSION, Condition
from ballast_operator.model.quantity import some_of
from ballast_operator.status import EVENTS, TRUE, Verdict

Schema = Mapping[str, Any]
OUTDATED = "DefinitionsOutdated"
KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    cluster.KIND: {"spec": cluster.ClusterSpec, "status": cluster.ClusterStatus},
    topic.KIND: {"spec": topic.TopicSpec, "status": topic.TopicStatus},
    reassignment.KIND: {"spec": reassignment.ReassignmentSpec, "status": reassignment.ReassignmentStatus},
}
SHOWN = 10


def dropped_fields(document: Schema) -> tuple[str, ...]:
    """The fields and enum values that this OpenAPI document lacks; kinds that it does not describe are skipped."""
    served = {
        one["kind"]: schema
        for schema in (document.get("components") or {}).get("schemas", {}).values()
        for one in schema.get("x-kubernetes-group-version-kind") or ()
        if (one.get("group"), one.get("version")) == (GROUP, VERSION)
    }
    return tuple(
        f"{kind} {path}"
        for kind, parts in KINDS.items()
        if kind in served
        for name, cls in parts.items()
        for path in _of_field(cls, name, served[kind])
    )


def _of_field(hint: Any, name: str, schema: Schema, before: str = "") -> Iterator[str]:
    inner = (schema.get("properties") or {}).get(name)
    if inner is not None:
        yield from _of(hint, inner, f"{before}{name}")
    elif not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{before}{name}"


def _of(hint: Any, schema: Schema, path: str) -> Iterator[str]:
    hint = unwrap_optional(hint)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        for _, name, inner in fields_of(hint):
            yield from _of_field(inner, name, schema, f"{path}.")
    elif origin is tuple and isinstance(schema.get("items"), Mapping):
        yield from _of(typing.get_args(hint)[0], schema["items"], f"{path}[]")
    elif origin is not None and issubclass(origin, Mapping) and isinstance(schema.get("additionalProperties"), Mapping):
        yield from _of(typing.get_args(hint)[1], schema["additionalProperties"], f"{path}.*")
    elif isinstance(hint, type) and issubclass(hint, StrEnum) and "enum" in schema:
        yield from (f"{path} {value}" for value in hint if str(value) not in schema["enum"])


def outdated(dropped: Sequence[str]) -> Verdict | None:
    return EVENTS["DefinitionsOutdated"].says(fields=some_of(dropped, SHOWN)) if dropped else None


def outdated_condition(
    dropped: Sequence[str], before: Sequence[Condition], generation: int, now: str
) -> Condition | None:
    """The condition of a KafkaCluster while anything is dropped."""
    verdict = outdated(dropped)
    if verdict is None:
        return None
    known = next((one for one in before if one.type == OUTDATED), None)
    since = known.last_transition_time if known is not None else now
    return Condition(OUTDATED, TRUE, OUTDATED, verdict.message, since, generation)
