"""Builds the tables that `kubectl get` prints. PURE; the current time is an argument."""

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from ballast_local import jsonpath
from ballast_local.builtin_columns import BUILT_IN_COLUMNS
from ballast_local.errors import Obj
from ballast_local.meta import parse_time
from ballast_local.resources import Resource

Cell = Callable[[Obj, datetime], Any]
_NAME = {"name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0}


def duration(seconds: float) -> str:
    """An age as kubectl formats it."""
    total = int(seconds)
    if total < 0:
        return "0s" if total > -2 else "<invalid>"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days % 365 and days < 2920 else f"{days // 365}y"


def age(timestamp: Any, now: datetime) -> str:
    if not isinstance(timestamp, str):
        return "<unknown>"
    try:
        return duration((now - parse_time(timestamp)).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"


def _custom_cell(column: Obj) -> Cell:
    path, kind = jsonpath.path(column["jsonPath"]), column.get("type")

    def cell(obj: Obj, now: datetime) -> Any:
        found = path.find(obj)
        if not found:
            return None
        if len(found) > 1:
            return json.dumps(found)
        value = found[0]
        if kind == "date":
            return age(value, now)
        if kind == "string" and not isinstance(value, str):
            return json.dumps(value) if value is not None else None
        if kind == "integer" and isinstance(value, float):
            return int(value)
        return value

    return cell


def columns_of(resource: Resource) -> list[tuple[Obj, Cell]]:
    name: tuple[Obj, Cell] = (_NAME, lambda obj, now: obj["metadata"]["name"])
    created: tuple[Obj, Cell] = (
        {"name": "Age", "type": "string", "format": "", "description": "Time since creation", "priority": 0},
        lambda obj, now: age(obj["metadata"].get("creationTimestamp"), now),
    )
    if resource.custom and resource.columns:
        found: list[tuple[Obj, Cell]] = [name]
        for column in resource.columns:
            head = {
                "name": column["name"],
                "type": column.get("type", "string"),
                "format": column.get("format", ""),
                "description": column.get("description", ""),
                "priority": column.get("priority", 0),
            }
            found.append((head, _custom_cell(column)))
        return found
    built_in = BUILT_IN_COLUMNS.get(resource.key)
    if built_in is None:
        return [name, created]
    heads: list[tuple[Obj, Cell]] = [] if resource.plural == "events" else [name]
    for title, priority, cell in built_in:
        kind = "date" if title == "Created At" else "string"
        heads.append(({"name": title, "type": kind, "format": "", "description": title, "priority": priority}, cell))
    ageless = resource.plural in ("events", "customresourcedefinitions")
    return heads if ageless else _with_age(heads, created)


def _with_age(heads: list[tuple[Obj, Cell]], created: tuple[Obj, Cell]) -> list[tuple[Obj, Cell]]:
    """Insert Age before the columns that only `-o wide` shows."""
    wide = next((at for at, (head, _) in enumerate(heads) if head["priority"]), len(heads))
    return [*heads[:wide], created, *heads[wide:]]


def table(resource: Resource, objects: Iterable[Obj], metadata: Obj, now: datetime, include: str) -> Obj:
    columns = columns_of(resource)
    rows: list[Obj] = []
    for obj in objects:
        row: Obj = {"cells": [cell(obj, now) for _, cell in columns]}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
            row["object"] = partial
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [head for head, _ in columns],
        "rows": rows,
    }
