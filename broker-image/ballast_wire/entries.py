"""Counts the array elements of a message, nested ones included: what a request costs depends on them. PURE."""

from __future__ import annotations

from functools import cache
from typing import Any

_Arrays = tuple[tuple[str, "_Arrays"], ...]  # array fields, each with the array fields of its elements


def entries_in(message: Any, version: int, most: int) -> int:
    """The number of array elements; stops counting once it exceeds `most`."""
    kind: Any = type(message)
    return _count(message, _arrays(kind, version), most)


def things_in(response: Any, version: int, most: int) -> int:
    """The same for a response; 0 for a hand-made one, which is already encoded."""
    return entries_in(response, version, most) if hasattr(type(response), "_struct") else 0


@cache
def _arrays(kind: Any, version: int) -> _Arrays:
    return _arrays_of(kind._struct, version)


def _arrays_of(struct: Any, version: int) -> _Arrays:
    fields = [field for field in struct.fields.values() if field.for_version_q(version) and field.is_array()]
    return tuple((field.name, _arrays_of(field, version) if field.is_struct_array() else ()) for field in fields)


def _count(value: Any, arrays: _Arrays, most: int) -> int:
    counted = 0
    for name, inner in arrays:
        found = getattr(value, name) or ()
        counted += len(found)
        for each in found if inner else ():
            if counted > most:
                return counted
            counted += _count(each, inner, most - counted)
    return counted
