"""A plan as a Reassignment resource, and back.

Up to 1,000 rows go into `spec.partitions` if they fit in one object; larger plans are split into ConfigMaps, which
`spec.planFrom` names in order (OPR-30). PURE: builds plain dictionaries and talks to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast_planner.plan import Plan, PlanFormatError, Target, plan_hash, rows_from_spec, spec_rows

API_VERSION = "ballast.dev/v1alpha1"
KIND = "Reassignment"
MAX_ROWS = 1_000
# `kubectl apply` stores the object again in its own annotations, with quotes escaped; those are limited to 256 KiB.
MAX_OBJECT_BYTES = 192 * 1024
PLAN_KEY = "partitions.json"
MANAGED_LABEL = "app.kubernetes.io/managed-by"


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """Everything but the rows. Throttles are Kubernetes quantities per second, for instance `50Mi`."""

    name: str
    namespace: str
    cluster: str
    approval: str = "Required"
    inter_broker_throttle: str | None = None
    intra_broker_throttle: str | None = None
    moves_per_broker: int | None = None
    moves_per_directory: int | None = None
    expires_at: str | None = None
    input_time: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def reassignment_resources(plan: Plan, options: ResourceOptions) -> list[dict[str, Any]]:
    """The Reassignment, preceded by the ConfigMaps that it refers to, if any."""
    rows = spec_rows(plan.moves)
    spec: dict[str, Any] = {"clusterRef": {"name": options.cluster}, "approval": options.approval}
    spec["planHash"] = plan_hash(plan)
    config_maps: list[dict[str, Any]] = []
    if len(rows) <= MAX_ROWS and len(json.dumps(rows, separators=(",", ":"))) <= MAX_OBJECT_BYTES:
        spec["partitions"] = rows
    else:
        config_maps = _config_maps(rows, options)
        spec["planFrom"] = [{"configMapRef": {"name": item["metadata"]["name"]}} for item in config_maps]
    spec |= _limits(options)
    resource = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(options.name, options) | {"annotations": dict(options.annotations)},
        "spec": spec,
    }
    return [*config_maps, resource]


def rows_from_resource(resource: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, Any]]) -> tuple[Target, ...]:
    """The target rows of a Reassignment; `config_maps` maps the names in `planFrom` to their ConfigMaps."""
    spec = resource["spec"]
    if "partitions" in spec:
        return rows_from_spec(spec["partitions"])
    rows: list[Mapping[str, Any]] = []
    for source in spec.get("planFrom", ()):
        name = source["configMapRef"]["name"]
        if name not in config_maps:
            raise PlanFormatError(f"ConfigMap {name} of planFrom does not exist")
        data = config_maps[name].get("data") or {}
        if source.get("key", PLAN_KEY) not in data:
            raise PlanFormatError(f"ConfigMap {name} has no key {source.get('key', PLAN_KEY)}")
        rows.extend(json.loads(data[source.get("key", PLAN_KEY)]))
    return rows_from_spec(rows)


def _limits(options: ResourceOptions) -> dict[str, Any]:
    throttle = {"interBroker": options.inter_broker_throttle, "intraBroker": options.intra_broker_throttle}
    concurrent = {"perBroker": options.moves_per_broker, "perDirectory": options.moves_per_directory}
    limits: dict[str, Any] = {
        "throttle": {key: value for key, value in throttle.items() if value is not None},
        "maxConcurrentMoves": {key: value for key, value in concurrent.items() if value is not None},
        "expiresAt": options.expires_at,
        "inputTime": options.input_time,
    }
    return {key: value for key, value in limits.items() if value}


def _metadata(name: str, options: ResourceOptions) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": options.namespace,
        "labels": {MANAGED_LABEL: "ballast", "ballast.dev/cluster": options.cluster} | dict(options.labels),
    }


def _config_maps(rows: Sequence[Mapping[str, Any]], options: ResourceOptions) -> list[dict[str, Any]]:
    chunks: list[list[str]] = [[]]
    size = 2
    for row in rows:
        text = json.dumps(row, separators=(",", ":"))
        # The limit applies to the whole object; the margin leaves room for what surrounds the data.
        if chunks[-1] and size + len(text) + 1 > MAX_OBJECT_BYTES - 8 * 1024:
            chunks.append([])
            size = 2
        chunks[-1].append(text)
        size += len(text) + 1
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(f"{options.name}-plan-{index}", options),
            "data": {PLAN_KEY: "[" + ",".join(chunk) + "]"},
        }
        for index, chunk in enumerate(chunks)
    ]
