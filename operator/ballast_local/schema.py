"""Structural schemas: pruning, defaulting and validation of custom resources. PURE.

Messages have kube-apiserver's wording. Schemas have passed `crd_checks`.
"""

import copy
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ballast_local.cel.values import equals
from ballast_local.errors import Obj, cause
from ballast_local.field_sets import item_element
from ballast_local.field_types import SchemaType
from ballast_local.patterns import compile_pattern

_META = ("apiVersion", "kind", "metadata")


def prune(schema: Obj, value: Any, path: str = "", root: bool = True) -> list[str]:
    """Remove unknown fields in place; returns their paths."""
    dropped: list[str] = []
    if isinstance(value, dict):
        embedded = root or schema.get("x-kubernetes-embedded-resource")
        properties = schema.get("properties") or {}
        more = schema.get("additionalProperties")
        preserve = schema.get("x-kubernetes-preserve-unknown-fields")
        for name in list(value):
            below = f"{path}.{name}" if path else name
            if embedded and name in _META:
                continue
            if name in properties:
                dropped += prune(properties[name], value[name], below, False)
            elif isinstance(more, dict):
                dropped += prune(more, value[name], below, False)
            elif not preserve and more is not True:
                del value[name]
                dropped.append(below)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for position, item in enumerate(value):
            dropped += prune(schema["items"], item, f"{path}[{position}]", False)
    return dropped


def apply_defaults(schema: Obj, value: Any) -> None:
    """Fill in defaults in place; a null in a field that is not nullable counts as absent."""
    if isinstance(value, dict):
        properties: Obj = schema.get("properties") or {}
        for name, child in properties.items():
            missing = name not in value or (value[name] is None and not child.get("nullable"))
            if missing and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            elif name in value and value[name] is None and not child.get("nullable"):
                del value[name]
            if name in value:
                apply_defaults(child, value[name])
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for name, member in value.items():
                if name not in properties:
                    apply_defaults(more, member)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            apply_defaults(schema["items"], item)


ABSENT = object()


def validate(schema: Obj, value: Any, path: str = "", old: Any = ABSENT) -> list[Obj]:
    """Find everything that is wrong with a value, as causes of a Status.

    Parts that are unchanged from `old` are not checked (ratcheting): a definition that became stricter must not prevent
    other changes."""
    if old is not ABSENT and equals(value, old):
        return []
    if value is None:
        if schema.get("nullable") or not schema.get("type"):
            return []
        return [_type_cause(path, schema["type"], "null")]
    wrong_type = _check_type(schema, value, path)
    if wrong_type:
        return wrong_type
    causes: list[Obj] = []
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(one) for one in schema["enum"])
        message = f"Unsupported value: {_shown(value)}: supported values: {supported}"
        causes.append(cause("FieldValueNotSupported", message, path or "<nil>"))
    if isinstance(value, str):
        causes += _check_string(schema, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        causes += _check_number(schema, value, path)
    elif isinstance(value, dict):
        causes += _check_object(schema, value, path, old if isinstance(old, dict) else {})
    elif isinstance(value, list):
        causes += _check_list(schema, value, path, old)
    return causes + _check_composites(schema, value, path)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, (dict, list)) else json.dumps(value)[:200]


def _fault(path: str, value: Any, text: str) -> Obj:
    return cause(
        "FieldValueInvalid", f"Invalid value: {_shown(value)}: {path or '<nil>'} in body {text}", path or "<nil>"
    )


_TYPE_NAMES: list[tuple[type, str]] = [(bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"),
                                       (dict, "object"), (list, "array")]  # fmt: skip


def _type_name(value: Any) -> str:
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "null")


def _type_cause(path: str, wanted: str, found: str) -> Obj:
    shown = path or "<nil>"
    message = f'Invalid value: "{found}": {shown} in body must be of type {wanted}: "{found}"'
    return cause("FieldValueTypeInvalid", message, shown)


def _check_type(schema: Obj, value: Any, path: str) -> list[Obj]:
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        return [] if fits else [_type_cause(path, "integer,string", _type_name(value))]
    wanted = schema.get("type")
    found = _type_name(value)
    whole = found == "number" and wanted == "integer" and float(value).is_integer()
    if not wanted or found == wanted or (found == "integer" and wanted == "number") or whole:
        return []
    return [_type_cause(path, wanted, found)]


def _check_string(schema: Obj, value: str, path: str) -> list[Obj]:
    causes: list[Obj] = []
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        text = f"Too long: may not be more than {schema['maxLength']} bytes"
        causes.append(cause("FieldValueTooLong", text, path))
    if "minLength" in schema and len(value) < schema["minLength"]:
        causes.append(_fault(path, value, f"should be at least {schema['minLength']} chars long"))
    if "pattern" in schema and not compile_pattern(schema["pattern"]).search(value):
        causes.append(_fault(path, value, f"should match '{schema['pattern']}'"))
    check = _FORMATS.get(schema.get("format", ""))
    if check is not None and not check(value):
        causes.append(_fault(path, value, f"must be of type {schema['format']}: {json.dumps(value)}"))
    return causes


def is_date_time(text: Any) -> bool:
    try:
        return "T" in text.upper() and datetime.fromisoformat(text.upper().replace("Z", "+00:00")).tzinfo is not None
    except (ValueError, AttributeError):
        return False


def _is_date(text: str) -> bool:
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is not None and is_date_time(text + "T00:00:00Z")


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": is_date_time,
    "date": _is_date,
    "duration": lambda text: re.fullmatch(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|0", text) is not None,
    "uuid": lambda text: re.fullmatch(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", text) is not None,
    "uri": lambda text: re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", text) is not None,
    "ipv4": lambda text: re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", text) is not None,
    "byte": lambda text: re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text) is not None,
}


def _check_number(schema: Obj, value: float, path: str) -> list[Obj]:
    causes: list[Obj] = []
    if "minimum" in schema:
        low = schema["minimum"]
        if schema.get("exclusiveMinimum") and value <= low:
            causes.append(_fault(path, value, f"should be greater than {low}"))
        elif value < low:
            causes.append(_fault(path, value, f"should be greater than or equal to {low}"))
    if "maximum" in schema:
        high = schema["maximum"]
        if schema.get("exclusiveMaximum") and value >= high:
            causes.append(_fault(path, value, f"should be less than {high}"))
        elif value > high:
            causes.append(_fault(path, value, f"should be less than or equal to {high}"))
    if "multipleOf" in schema and value % schema["multipleOf"]:
        causes.append(_fault(path, value, f"should be a multiple of {schema['multipleOf']}"))
    bits = {"int32": 31, "int64": 63}.get(schema.get("format", ""))
    if bits and not -(2**bits) <= value < 2**bits:
        causes.append(_fault(path, value, f"must be of type {schema['format']}: {_shown(value)}"))
    return causes


def _check_object(schema: Obj, value: Obj, path: str, old: Obj) -> list[Obj]:
    causes: list[Obj] = []
    missing = [name for name in schema.get("required") or () if name not in value]
    causes += [cause("FieldValueRequired", "Required value", f"{path}.{name}" if path else name) for name in missing]
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        text = f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
        causes.append(cause("FieldValueTooMany", text, path))
    if "minProperties" in schema and len(value) < schema["minProperties"]:
        causes.append(_fault(path, value, f"should have at least {schema['minProperties']} properties"))
    properties = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    for name, member in value.items():
        child = properties.get(name) or (more if isinstance(more, dict) else None)
        if child is not None:
            below = f"{path}.{name}" if path else name
            causes += validate(child, member, below, old.get(name, ABSENT))
    return causes


def _check_list(schema: Obj, value: list[Any], path: str, old: Any) -> list[Obj]:
    causes: list[Obj] = []
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        text = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        causes.append(cause("FieldValueTooMany", text, path))
    if "minItems" in schema and len(value) < schema["minItems"]:
        causes.append(_fault(path, value, f"should have at least {schema['minItems']} items"))
    items = schema.get("items")
    if isinstance(items, dict):
        kind = SchemaType(schema)
        held = {item_element(item, kind): item for item in old} if kind.list_keys and isinstance(old, list) else {}
        for position, item in enumerate(value):
            was = held.get(item_element(item, kind), ABSENT) if held else ABSENT
            causes += validate(items, item, f"{path}[{position}]", was)
    return causes + _check_duplicates(schema, value, path)


def _check_duplicates(schema: Obj, value: list[Any], path: str) -> list[Obj]:
    kind = schema.get("x-kubernetes-list-type")
    keys: list[str] = schema.get("x-kubernetes-list-map-keys") or []
    if kind not in ("set", "map"):
        return []
    seen: set[str] = set()
    causes: list[Obj] = []
    for position, item in enumerate(value):
        identity = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
        text = json.dumps(identity, sort_keys=True)
        if text in seen:
            causes.append(cause("FieldValueDuplicate", f"Duplicate value: {text}", f"{path}[{position}]"))
        seen.add(text)
    return causes


def _check_composites(schema: Obj, value: Any, path: str) -> list[Obj]:
    causes: list[Obj] = []
    for part in schema.get("allOf") or ():
        causes += validate(part, value, path)
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        tried = [validate(part, value, path) for part in schema["anyOf"]]
        if all(tried):
            causes.append(_fault(path, value, "must validate at least one schema (anyOf)"))
            causes += tried[0]
    if "oneOf" in schema:
        fitting = sum(not validate(part, value, path) for part in schema["oneOf"])
        if fitting != 1:
            found = "Found none valid" if not fitting else f"Found {fitting} valid alternatives"
            causes.append(_fault(path, value, f"must validate one and only one schema (oneOf). {found}"))
    if "not" in schema and not validate(schema["not"], value, path):
        causes.append(_fault(path, value, "must not validate the schema (not)"))
    return causes
