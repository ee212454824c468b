"""Sets defaults of CustomResourceDefinitions and validates them. PURE."""

import re
from typing import Any

from ballast_local.errors import Obj, cause
from ballast_local.patterns import compile_pattern
from ballast_local.rules import rule_faults

_TYPES = ("object", "array", "string", "integer", "number", "boolean")


def default_definition(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def check_definition(new: Obj, old: Obj | None) -> list[Obj]:
    spec = new["spec"]
    causes: list[Obj] = []
    group, names = spec.get("group", ""), spec["names"]
    plural = names.get("plural", "")
    if new["metadata"]["name"] != f"{plural}.{group}":
        text = f'Invalid value: "{new["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        causes.append(cause("FieldValueInvalid", text, "metadata.name"))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        text = f'Unsupported value: "{spec.get("scope")}": supported values: "Cluster", "Namespaced"'
        causes.append(cause("FieldValueNotSupported", text, "spec.scope"))
    if not names.get("kind"):
        causes.append(cause("FieldValueRequired", "Required value", "spec.names.kind"))
    if spec["conversion"].get("strategy") != "None":
        text = "Invalid value: the embedded Kubernetes API has no conversion webhooks"
        causes.append(cause("FieldValueInvalid", text, "spec.conversion.strategy"))
    causes += _check_versions(spec.get("versions") or [])
    if old is not None:
        kept = (("spec.group", old["spec"]["group"], group), ("spec.scope", old["spec"]["scope"], spec.get("scope")))
        causes += [
            cause("FieldValueInvalid", f'Invalid value: "{now}": field is immutable', field)
            for field, was, now in kept
            if was != now
        ]
    return causes


def _check_versions(versions: list[Obj]) -> list[Obj]:
    causes: list[Obj] = []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        causes.append(cause("FieldValueInvalid", text, "spec.versions"))
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            causes.append(
                cause("FieldValueRequired", "Required value: schemas are required", f"{path}.schema.openAPIV3Schema")
            )
            continue
        where = f"{path}.schema.openAPIV3Schema"
        if schema.get("type") != "object":
            text = f'Invalid value: "{schema.get("type", "")}": must be object at the root'
            causes.append(cause("FieldValueInvalid", text, f"{where}.type"))
        causes += check_structure(schema, where)
        causes += _check_metadata((schema.get("properties") or {}).get("metadata") or {}, where)
        causes += rule_faults(schema, where)
        scale = (version.get("subresources") or {}).get("scale")
        for field in ("specReplicasPath", "statusReplicasPath") if scale is not None else ():
            if not str((scale or {}).get(field, "")).startswith("."):
                causes.append(cause("FieldValueRequired", "Required value", f"{path}.subresources.scale.{field}"))
    return causes


def _check_metadata(schema: Obj, path: str) -> list[Obj]:
    """The API defines metadata: a schema may only restrict name and generateName."""
    named = set(schema.get("properties") or {}) <= {"name", "generateName"}
    if set(schema) <= {"type", "properties"} and named:
        return []
    text = "Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
    return [cause("FieldValueForbidden", text, f"{path}.properties[metadata]")]


def check_structure(schema: Obj, path: str) -> list[Obj]:
    """Check that a schema is structural: every node has a type, and lists, patterns and keywords are valid."""
    causes: list[Obj] = []
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    kind = schema.get("type")
    if not kind and not free:
        causes.append(
            cause("FieldValueRequired", "Required value: must not be empty for specified object fields", f"{path}.type")
        )
    if kind and kind not in _TYPES:
        causes.append(cause("FieldValueNotSupported", f'Unsupported value: "{kind}"', f"{path}.type"))
    if "properties" in schema and "additionalProperties" in schema:
        text = "Forbidden: additionalProperties and properties are mutual exclusive"
        causes.append(cause("FieldValueForbidden", text, f"{path}.additionalProperties"))
    causes += [
        cause("FieldValueForbidden", f"Forbidden: {word} is not supported", f"{path}.{word}")
        for word in ("$ref", "definitions", "dependencies", "patternProperties", "deprecated", "discriminator", "id")
        if word in schema
    ]
    if schema.get("uniqueItems"):
        causes.append(
            cause("FieldValueForbidden", "Forbidden: uniqueItems cannot be set to true", f"{path}.uniqueItems")
        )
    if kind == "array" and not isinstance(schema.get("items"), dict):
        causes.append(cause("FieldValueRequired", "Required value: must be specified", f"{path}.items"))
    if "pattern" in schema:
        causes += _check_pattern(schema["pattern"], path)
    causes += _check_list_type(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        causes += check_structure(child, f"{path}.properties[{name}]")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            causes += check_structure(schema[word], f"{path}.{word}")
    return causes


def _check_pattern(pattern: Any, path: str) -> list[Obj]:
    try:
        compile_pattern(pattern)
    except (re.error, TypeError) as fault:
        text = f"Invalid value: {pattern!r}: must be a valid regular expression, but isn't: {fault}"
        return [cause("FieldValueInvalid", text, f"{path}.pattern")]
    return []


def _check_list_type(schema: Obj, path: str) -> list[Obj]:
    if schema.get("x-kubernetes-list-type") != "map":
        return []
    keys = schema.get("x-kubernetes-list-map-keys") or []
    where = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        return [
            cause("FieldValueRequired", "Required value: must not be empty if x-kubernetes-list-type is map", where)
        ]
    items = schema.get("items") or {}
    required, properties = items.get("required") or [], items.get("properties") or {}
    causes: list[Obj] = []
    for key in keys:
        if key not in properties:
            causes.append(cause("FieldValueInvalid", f'Invalid value: "{key}": must be a property of the items', where))
        elif key not in required and "default" not in properties[key]:
            why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            text = f"Required value: {why}"
            causes.append(cause("FieldValueRequired", text, f"{path}.items.properties[{key}].default"))
    return causes
