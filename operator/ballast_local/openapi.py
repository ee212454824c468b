"""Builds OpenAPI v3 documents, one per group and version, with what kubectl's explain, apply and edit need. PURE."""

import copy
import hashlib
import json

from ballast_local.builtin_schemas import REF, BuiltInSchemas
from ballast_local.errors import Obj
from ballast_local.resources import Registry, Resource

_PATCH_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": True}}
    for name, kind in (
        ("dryRun", "string"),
        ("fieldManager", "string"),
        ("fieldValidation", "string"),
        ("force", "boolean"),
    )
]


def _document_path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index(registry: Registry) -> Obj:
    paths: Obj = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = _document_path(group, version)
            rows = [(row.plural, row.schema) for row in registry.rows(group, version)]
            digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(registry: Registry, schemas: BuiltInSchemas, group: str, version: str) -> Obj:
    rows = registry.rows(group, version)
    components: Obj = schemas.closure([schemas.model_of(row) for row in rows if not row.custom])
    components = copy.deepcopy(components)
    meta = schemas.closure(["V1ObjectMeta"])
    paths: Obj = {}
    for row in rows:
        name = _schema_name(row, schemas)
        if row.custom:
            components.update(copy.deepcopy(meta))
            components[name] = _custom_schema(row, bool(meta))
        schema = components.setdefault(name, {"type": "object"})
        schema["x-kubernetes-group-version-kind"] = [{"group": row.group, "version": row.version, "kind": row.kind}]
        paths.update(_paths(row, name))
    info = {"title": "Kubernetes", "version": "v1.34.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": components}}


def _schema_name(row: Resource, schemas: BuiltInSchemas) -> str:
    if not row.custom:
        return schemas.model_of(row)
    return ".".join([*reversed(row.group.split(".")), row.version, row.kind])


def _custom_schema(row: Resource, has_meta: bool) -> Obj:
    schema = copy.deepcopy(row.schema or {"type": "object"})
    properties = schema.setdefault("properties", {})
    properties.setdefault("apiVersion", {"type": "string", "description": "The version of this kind, with its group."})
    properties.setdefault("kind", {"type": "string", "description": "The kind of this object."})
    described = "Name, namespace, labels, annotations and what the server keeps about the object."
    properties["metadata"] = {"description": described, "type": "object"}
    if has_meta:
        properties["metadata"] = {"description": described, "allOf": [{"$ref": REF + "V1ObjectMeta"}]}
    return schema


def _paths(row: Resource, schema: str) -> Obj:
    base = f"/{_document_path(row.group, row.version)}"
    if row.namespaced:
        base += "/namespaces/{namespace}"
    content = {"application/json": {"schema": {"$ref": REF + schema}}}
    kind = {"group": row.group, "version": row.version, "kind": row.kind}

    def operation(action: str, parameters: list[Obj] | None = None) -> Obj:
        return {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
            "parameters": parameters or [],
            "responses": {"200": {"description": "OK", "content": content}},
        }

    collection = {"get": operation("list"), "post": operation("post", _PATCH_PARAMETERS)}
    if not row.stored:
        return {f"{base}/{row.plural}": {"post": collection["post"]}}
    item = {
        "get": operation("get"),
        "put": operation("put", _PATCH_PARAMETERS),
        "patch": operation("patch", _PATCH_PARAMETERS),
        "delete": operation("delete"),
    }
    return {f"{base}/{row.plural}": collection, f"{base}/{row.plural}/{{name}}": item}
