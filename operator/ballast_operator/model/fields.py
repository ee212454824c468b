"""Reads frozen dataclasses from the JSON of a resource, and writes them as JSON. PURE.

The classes in this package mirror `crds/` field by field (a contract test compares them), so reading needs no code per
class: a field `topic_name` is `topicName` in JSON, a nested dataclass is an object, a tuple is a list. What the schema
of the API server would have refused raises `FieldError` with the path of the field.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union

T = TypeVar("T")
Reader = Callable[[Any], Any]


# The results of `fields_of`, by class.
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
    hint: Any = cls
    try:
        found: T = _reader_of(hint)(data)
        return found
    except _WrongError as error:
        where = (path + "".join(reversed(error.where))).lstrip(".")
        raise FieldError(f"{where or cls.__name__}: {error}") from None


class _WrongError(Exception):
    """What a value should have been; the readers around it extend `where`, from the inside out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.where: list[str] = []


@cache
def _reader_of(hint: Any) -> Reader:
    """The reader for values of a type. It is built once: there may be ten thousand objects to read."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_reader(hint)
    if origin is tuple:
        return _list_reader(_reader_of(typing.get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(_reader_of(typing.get_args(hint)[1]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    return _SCALARS.get(hint, lambda value: _refuse(value, getattr(hint, "__name__", hint)))


def _object_reader(cls: type[Any]) -> Reader:
    rows = [(attribute, name, _reader_of(unwrap_optional(hint))) for attribute, name, hint in fields_of(cls)]
    needed = [(field.name, camel_case(field.name)) for field in dataclasses.fields(cls) if _has_no_default(field)]

    def read_object(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _WrongError("must be a mapping of names to values")
        values = {}
        for attribute, name, reader in rows:
            value = data.get(name)
            if value is not None:
                try:
                    values[attribute] = reader(value)
                except _WrongError as error:
                    error.where.append(f".{name}")
                    raise
        if missing := [name for attribute, name in needed if attribute not in values]:
            raise _WrongError(f"lacks {', '.join(missing)}")
        return cls(**values)

    return read_object


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _list_reader(inner: Reader) -> Reader:
    def read_list(data: Any) -> Any:
        if not isinstance(data, (list, tuple)):
            raise _WrongError("must be a list")
        return tuple(_each(inner, enumerate(data), "[{}]"))

    return read_list


def _mapping_reader(inner: Reader) -> Reader:
    def read_mapping(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _WrongError("must be a mapping of names to values")
        return dict(zip(map(str, data), _each(inner, data.items(), ".{}"), strict=True))

    return read_mapping


def _each(inner: Reader, items: Iterable[tuple[Any, Any]], where: str) -> list[Any]:
    values = []
    for key, item in items:
        try:
            values.append(inner(item))
        except _WrongError as error:
            error.where.append(where.format(key))
            raise
    return values


def _enum_reader(hint: type[StrEnum]) -> Reader:
    def read_enum(value: Any) -> Any:
        try:
            return hint(value)
        except ValueError:
            raise _WrongError(f"must be one of {', '.join(hint)}, not {_as_json(value)}") from None

    return read_enum


def _text(value: Any) -> str:
    """Text, also from scalars that YAML takes for something else. The API server sends 1e3 as 1000, 1e21 as a float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return str(value) if isinstance(value, (int, str)) else _refuse(value, "text")


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else _refuse(value, "true or false")


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else _refuse(value, "a whole number")


def _refuse(value: Any, kind: str) -> typing.NoReturn:
    raise _WrongError(f"must be {kind}, not {_as_json(value)}")


def _as_json(value: Any) -> str:
    """As its author wrote it: true and null instead of Python's True and None."""
    return json.dumps(value, ensure_ascii=False, default=str)


_SCALARS: dict[Any, Reader] = {Any: lambda value: value, str: _text, bool: _flag, int: _number}


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
