"""How many things a request names, by which goes what its answer costs: elements of arrays, and those in them. PURE."""

from __future__ import annotations

from functools import cache
from typing import Any

_Arrays = tuple[tuple[str, "_Arrays"], ...]  # fields that are arrays, and those of their elements


def entries_in(message: Any, version: int, most: int) -> int:
    """Counts no further than it takes to find more than `most`."""
    kind: Any = type(message)
    return _count(message, _arrays(kind, version), most)


def things_in(response: Any, version: int, most: int) -> int:
    """The same of an answer; one that is made by hand is there already."""
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
