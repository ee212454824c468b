"""Finds nulls that a message's schema does not allow: the engine accepts them, but Kafka refuses the message."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

TEXTS = frozenset({"string", "bytes", "records"})


class _Check(NamedTuple):
    name: str
    refuses_null: bool
    inner: tuple[_Check, ...]
    is_array: bool
    of_texts: bool  # an array of strings: none of them may be null


def misplaced_null(message: Any, version: int) -> str | None:
    """The path of the first field that is null and must not be; None if there is none."""
    kind: Any = type(message)
    return _find(message, _checks(kind, version))


@cache
def _checks(kind: Any, version: int) -> tuple[_Check, ...]:
    return _checks_of(kind._struct, version)


def _checks_of(struct: Any, version: int) -> tuple[_Check, ...]:
    """Checks only for fields that can be wrong, or contain such fields."""
    checks = []
    for field in struct.fields.values():
        if not field.for_version_q(version):
            continue
        is_array = field.is_array()
        inner = _checks_of(field, version) if field.is_struct() or field.is_struct_array() else ()
        refuses = (is_array or field.type_str in TEXTS) and not field.nullable_for_version_q(version)
        if refuses or inner:
            of_texts = is_array and not inner and field.type_str.removeprefix("[]") in TEXTS
            checks.append(_Check(field.name, refuses, inner, is_array, of_texts))
    return tuple(checks)


def _find(value: Any, checks: tuple[_Check, ...]) -> str | None:
    for name, refuses_null, inner, is_array, of_texts in checks:
        found = getattr(value, name)
        if found is None:
            if refuses_null:
                return name
        elif of_texts:
            if None in found:
                return name
        elif inner:
            for each in found if is_array else (found,):
                path = _find(each, inner)
                if path is not None:
                    return f"{name}.{path}"
    return None
