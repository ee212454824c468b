"""Reads frozen dataclasses from the JSON of a resource, and writes them as such. PURE.

The classes in this package mirror `crds/` field by field (a contract test compares them), so reading needs no code per
class: a field `topic_name` is `topicName` in JSON, a nested dataclass is an object, a tuple is a list. What the schema
of the API server would have refused raises `FieldError` with the path of the field.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, Union

T = TypeVar("T")


# What was found out about a class once; classes do not change.
_FIELDS: dict[type[Any], tuple[tuple[str, str, Any], ...]] = {}


class FieldError(ValueError):
    """A resource holds something that its schema does not allow."""


def camel_case(name: str) -> str:
    """The JSON name of a field; a trailing underscore only keeps Python's keywords apart (`from_`)."""
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)


def fields_of(cls: type[Any]) -> tuple[tuple[str, str, Any], ...]:
    """(attribute, JSON name, type) of every field."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls)
        _FIELDS[cls] = tuple((f.name, camel_case(f.name), hints[f.name]) for f in dataclasses.fields(cls))
    return _FIELDS[cls]


def unwrap_optional(hint: Any) -> Any:
    """`X | None` → X."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0]
    return hint


def read(cls: type[T], data: Any, path: str = "") -> T:
    """An instance of the dataclass from JSON; absent fields take the class's defaults."""
    if not isinstance(data, Mapping):
        raise FieldError(f"{path or cls.__name__}: expected an object")
    values: dict[str, Any] = {}
    for attribute, name, hint in fields_of(cls):
        if data.get(name) is not None:
            values[attribute] = _value(unwrap_optional(hint), data[name], f"{path}.{name}" if path else name)
    try:
        return cls(**values)
    except TypeError as error:
        raise FieldError(f"{path or cls.__name__}: {error}") from None


def _value(hint: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read(hint, data, path)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise FieldError(f"{path}: expected a list")
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, f"{path}[{index}]") for index, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise FieldError(f"{path}: expected an object")
        inner = typing.get_args(hint)[1]
        return {str(key): _value(inner, item, f"{path}.{key}") for key, item in data.items()}
    return _scalar(hint, data, path)


def _scalar(hint: Any, data: Any, path: str) -> Any:
    if hint is Any:
        return data
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(data)
        except ValueError:
            raise FieldError(f"{path}: {data!r} is none of {', '.join(hint)}") from None
    if hint is str and isinstance(data, (str, int)) and not isinstance(data, bool):
        return str(data)
    if hint is bool and isinstance(data, bool):
        return data
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    raise FieldError(f"{path}: {data!r} is no {getattr(hint, '__name__', hint)}")


def write(instance: Any) -> dict[str, Any]:
    """The JSON of a dataclass; fields that are None or empty are left out."""
    result: dict[str, Any] = {}
    for attribute, name, _ in fields_of(type(instance)):
        value = getattr(instance, attribute)
        if value is None or value == () or value == {}:
            continue
        result[name] = _json(value)
    return result


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return write(value)
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    return value
