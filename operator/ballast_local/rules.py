"""Compiles and checks x-kubernetes-validations: the CEL rules of a schema, on a new and an old object. PURE."""

import json
from dataclasses import dataclass, field
from typing import Any

from ballast_local.cel import CelError, CelSyntaxError, Program, compile_expression
from ballast_local.cel.compiler import unescape
from ballast_local.cel.parser import Ident, Node, Select
from ballast_local.cel.values import Optional, equals
from ballast_local.errors import Obj, cause
from ballast_local.field_sets import item_element
from ballast_local.field_types import SchemaType

_ABSENT = object()


@dataclass(slots=True)
class _Rule:
    program: Program
    message: str
    message_program: Program | None
    reason: str
    field_path: str
    transition: bool
    optional_old: bool


@dataclass(slots=True)
class _Place:
    """A node of the schema that has rules at or below it."""

    rules: list[_Rule] = field(default_factory=list)
    properties: dict[str, "_Place"] = field(default_factory=dict)
    additional: "_Place | None" = None
    items: "_Place | None" = None
    type: SchemaType = field(default_factory=lambda: SchemaType({}))

    def is_empty(self) -> bool:
        return not (self.rules or self.properties or self.additional or self.items)


def _compile_rule(rule: Obj) -> _Rule:
    program = compile_expression(rule["rule"], ("self", "oldSelf"))
    expression = rule.get("messageExpression")
    return _Rule(
        program,
        rule.get("message", ""),
        compile_expression(expression, ("self", "oldSelf")) if expression else None,
        rule.get("reason", "FieldValueInvalid"),
        rule.get("fieldPath", ""),
        "oldSelf" in program.names,
        bool(rule.get("optionalOldSelf")),
    )


def _compile_place(schema: Obj) -> _Place:
    place = _Place(type=SchemaType(schema))
    place.rules = [_compile_rule(rule) for rule in schema.get("x-kubernetes-validations") or ()]
    for name, child in (schema.get("properties") or {}).items():
        below = _compile_place(child)
        if not below.is_empty():
            place.properties[name] = below
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            below = _compile_place(schema[key])
            if not below.is_empty():
                setattr(place, "additional" if key == "additionalProperties" else "items", below)
    return place


class RuleSet:
    def __init__(self, schema: Obj) -> None:
        self._root = _compile_place(schema)

    def check(self, new: Obj, old: Obj | None) -> list[Obj]:
        causes: list[Obj] = []
        _walk(self._root, new, _ABSENT if old is None else old, "", causes)
        return causes


def _walk(place: _Place, value: Any, old: Any, path: str, causes: list[Obj]) -> None:
    unchanged = bool(place.rules) and old is not _ABSENT and equals(value, old)
    for rule in place.rules:
        if unchanged and not rule.transition:
            continue  # ratcheting: if it fails, the rule is newer than the value
        failure = _run(rule, value, old, path)
        if failure is not None:
            causes.append(failure)
    if isinstance(value, dict):
        before: Any = old if isinstance(old, dict) else {}
        for name, child in place.properties.items():
            if value.get(name) is not None:
                _walk(child, value[name], before.get(name, _ABSENT), f"{path}.{name}" if path else name, causes)
        if place.additional is not None:
            for name, member in value.items():
                _walk(place.additional, member, before.get(name, _ABSENT), f"{path}[{name}]", causes)
    elif isinstance(value, list) and place.items is not None:
        known = {}
        if place.type.list_keys and isinstance(old, list):
            known = {item_element(item, place.type): item for item in old}
        for position, item in enumerate(value):
            was = known.get(item_element(item, place.type), _ABSENT) if known else _ABSENT
            _walk(place.items, item, was, f"{path}[{position}]", causes)


def _run(rule: _Rule, value: Any, old: Any, path: str) -> Obj | None:
    variables: dict[str, Any] = {"self": value}
    if rule.optional_old:
        variables["oldSelf"] = Optional(old is not _ABSENT, None if old is _ABSENT else old)
    elif rule.transition:
        if old is _ABSENT:
            return None
        variables["oldSelf"] = old
    try:
        if rule.program.evaluate(variables) is True:
            return None
        message = rule.message or f"failed rule: {rule.program.text}"
    except CelError as fault:
        message = f"rule: {rule.program.text}: evaluation error: {fault}"
    else:
        message = _message(rule, variables) or message
    shown = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else value
    prefixes = {
        "FieldValueInvalid": f"Invalid value: {json.dumps(shown)}: ",
        "FieldValueForbidden": "Forbidden: ",
        "FieldValueRequired": "Required value: ",
        "FieldValueDuplicate": f"Duplicate value: {json.dumps(shown)}",
    }
    where = (path + rule.field_path).lstrip(".") or "<nil>"
    return cause(rule.reason, prefixes.get(rule.reason, "") + message, where)


def _message(rule: _Rule, variables: dict[str, Any]) -> str:
    if rule.message_program is None:
        return ""
    try:
        text = rule.message_program.evaluate(variables)
    except CelError:
        return ""
    return text if isinstance(text, str) and text.strip() and "\n" not in text else ""


# checking rules when a definition is written


def rule_faults(schema: Obj, path: str) -> list[Obj]:
    """Find faults in the rules themselves: syntax, unknown names, fields that the schema does not have."""
    causes: list[Obj] = []
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        where = f"{path}.x-kubernetes-validations[{index}].rule"
        for expression in filter(None, (rule.get("rule"), rule.get("messageExpression"))):
            try:
                program = compile_expression(expression, ("self", "oldSelf"))
                missing = _unknown_field(program.node, schema)
            except CelSyntaxError as fault:
                causes.append(
                    cause(
                        "FieldValueInvalid",
                        f"Invalid value: {json.dumps(expression)}: compilation failed: {fault}",
                        where,
                    )
                )
                continue
            if missing:
                text = f"Invalid value: {json.dumps(expression)}: compilation failed: undefined field '{missing}'"
                causes.append(cause("FieldValueInvalid", text, where))
        if not rule.get("rule"):
            causes.append(cause("FieldValueRequired", "Required value", where))
    for name, child in (schema.get("properties") or {}).items():
        causes += rule_faults(child, f"{path}.properties[{name}]")
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            causes += rule_faults(schema[key], f"{path}.{key}")
    return causes


# The fields of metadata that a rule at the root of an object may use.
NAMES: Obj = {"name": {"type": "string"}, "generateName": {"type": "string"}}


def _schema_at(node: Node, schema: Obj) -> tuple[Obj | None, str | None]:
    """The schema of a chain of selections from self (None if unknown), and the first field that is missing."""
    if isinstance(node, Ident):
        return (schema if node.name in ("self", "oldSelf") else None), None
    if not isinstance(node, Select) or node.optional:
        return None, None
    above, missing = _schema_at(node.operand, schema)
    if above is None or missing:
        return None, missing
    name = unescape(node.field)
    properties = above.get("properties") or {}
    if name == "metadata" and isinstance(node.operand, Ident):
        below = properties.get(name) or {}
        return below | {"type": "object", "properties": NAMES | (below.get("properties") or {})}, None
    if name in properties:
        return properties[name], None
    open_ended = (
        above.get("additionalProperties") or above.get("type") != "object" or name in ("metadata", "kind", "apiVersion")
    )
    if open_ended or above.get("x-kubernetes-preserve-unknown-fields"):
        return None, None
    return None, node.field


def _unknown_field(node: Any, schema: Obj) -> str | None:
    if isinstance(node, Select):
        missing = _schema_at(node, schema)[1]
        return missing or _unknown_field(node.operand, schema)
    if isinstance(node, tuple):
        return next(filter(None, (_unknown_field(child, schema) for child in node)), None)
    for name in getattr(node, "__dataclass_fields__", ()):
        child = getattr(node, name)
        if not isinstance(child, str):
            found = _unknown_field(child, schema)
            if found:
                return found
    return None
