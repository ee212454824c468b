"""Finds the error codes in a response, wherever its schema has one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple


class _Places(NamedTuple):
    codes: tuple[str, ...]
    inner: tuple[tuple[str, _Places, bool], ...]  # field, what it holds, whether it is an array


def errors_in(response: Any, version: int) -> Iterator[int]:
    """Every error code that is not 0. A hand-made response has `error_codes`."""
    kind: Any = type(response)
    if not hasattr(kind, "_struct"):
        codes: Iterator[int] = response.error_codes()
        return codes
    return filter(None, codes_in(response, version))


def codes_in(response: Any, version: int) -> Iterator[int]:
    """Every error code, including 0, of a response that is not hand-made."""
    kind: Any = type(response)
    return _find(response, _places(kind, version))


@cache
def _places(kind: Any, version: int) -> _Places:
    return _places_of(kind._struct, version)


def _places_of(struct: Any, version: int) -> _Places:
    codes, inner = [], []
    for field in struct.fields.values():
        if not field.for_version_q(version):
            continue
        if field.name.endswith("error_code"):
            codes.append(field.name)
        elif field.is_struct() or field.is_struct_array():
            found = _places_of(field, version)
            if found.codes or found.inner:
                inner.append((field.name, found, field.is_array()))
    return _Places(tuple(codes), tuple(inner))


def _find(value: Any, places: _Places) -> Iterator[int]:
    for name in places.codes:
        yield int(getattr(value, name) or 0)
    for name, inner, is_array in places.inner:
        found = getattr(value, name)
        if found is not None:
            for each in found if is_array else (found,):
                yield from _find(each, inner)
