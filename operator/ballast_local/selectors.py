"""Parses and matches label and field selectors. PURE."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ballast_local.errors import Obj, bad_request

LabelPredicate = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^\s*([^\s!=(),]+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_COMPARE = re.compile(r"^\s*([^\s!=(),<>]+)\s*(==|=|!=|>|<)\s*([^\s,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=(),]+)\s*$")


def _split(text: str) -> list[str]:
    parts: list[str] = []
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _requirement(text: str) -> LabelPredicate:
    if match := _SET.match(text):
        key, operator, values = match[1], match[2], {value.strip() for value in match[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _COMPARE.match(text):
        key, operator, value = match[1], match[2], match[3]
        if operator in ("=", "=="):
            return lambda labels: labels.get(key) == value
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return _ordered(key, operator, value)
    if match := _EXISTS.match(text):
        key = match[2]
        if match[1]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: {text!r}")


def _ordered(key: str, operator: str, value: str) -> LabelPredicate:
    try:
        bound = int(value)
    except ValueError:
        raise bad_request(f"for {operator!r} the value must be an integer: {value!r}") from None

    def compare(labels: Mapping[str, str]) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if operator == ">" else number < bound

    return compare


def parse_labels(text: str | None) -> LabelPredicate | None:
    """The predicate of a labelSelector; None if everything matches."""
    requirements = [_requirement(part) for part in _split(text or "")]
    if not requirements:
        return None
    return lambda labels: all(requirement(labels) for requirement in requirements)


def field_value(obj: Obj, path: str) -> str:
    """The text that a field selector compares: empty if absent, booleans in lower case."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_fields(text: str | None) -> list[tuple[str, bool, str]]:
    """Parse a fieldSelector into terms (path, whether equal or not, value)."""
    terms: list[tuple[str, bool, str]] = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = re.match(r"^\s*([\w.\-/]+)\s*(==|=|!=)\s*(.*?)\s*$", part)
        if match is None:
            raise bad_request(f"invalid field selector: {part!r}; can't understand it")
        terms.append((match[1], match[2] != "!=", match[3]))
    return terms


def fields_match(terms: list[tuple[str, bool, str]], obj: Obj) -> bool:
    return all((field_value(obj, path) == value) == equal for path, equal, value in terms)


def selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Match a LabelSelector object (matchLabels, matchExpressions); here, an empty or absent one matches nothing."""
    if not selector:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
        present = key in labels
        holds = {
            "In": present and labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": present,
            "DoesNotExist": not present,
        }.get(operator, False)
        if not holds:
            return False
    return True
