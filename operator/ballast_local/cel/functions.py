"""The functions of CEL and of Kubernetes' libraries (strings, lists, regex, quantities, URLs, sets). PURE.

Each entry takes the receiver first, so `x.size()` and `size(x)` are one function.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from ballast_local.cel.values import (
    CelError,
    Optional,
    Quantity,
    checked_int,
    equals,
    is_number,
    ordered,
    parse_duration,
    parse_timestamp,
    type_name,
)
from ballast_local.patterns import compile_pattern
from ballast_local.quantity import is_quantity, parse_quantity


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CelError(f"no such overload for {type_name(value)}")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CelError(f"no such overload for {type_name(value)}")
    return value


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return compile_pattern(pattern)
    except re.error as fault:
        raise CelError(f"invalid regular expression: {fault}") from None


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes, list, dict)):
        return len(value)
    raise CelError(f"no such overload: size({type_name(value)})")


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise CelError("no such overload: int(bool)")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, (int, float, str)):
        try:
            return checked_int(int(value))
        except ValueError:
            raise CelError(f"cannot convert {value!r} to int") from None
    raise CelError(f"no such overload: int({type_name(value)})")


def _double(value: Any) -> float:
    if is_number(value) or isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise CelError(f"cannot convert {value!r} to double") from None
    raise CelError(f"no such overload: double({type_name(value)})")


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise CelError(f"no such overload: string({type_name(value)})")


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false", "True", "False", "1", "0", "t", "f"):
        return value in ("true", "True", "1", "t")
    raise CelError(f"cannot convert {value!r} to bool")


def _substring(value: Any, start: int, stop: int | None = None) -> str:
    text = _text(value)
    end = len(text) if stop is None else stop
    if not 0 <= start <= end <= len(text):
        raise CelError("substring: index out of range")
    return text[start:end]


def _index_of(value: Any, wanted: Any, start: int = 0) -> int:
    if isinstance(value, list):
        return next((at for at, item in enumerate(value) if equals(item, wanted)), -1)
    return _text(value).find(_text(wanted), start)


def _last_index_of(value: Any, wanted: Any) -> int:
    if isinstance(value, list):
        return next((at for at in range(len(value) - 1, -1, -1) if equals(value[at], wanted)), -1)
    return _text(value).rfind(_text(wanted))


def _split(value: Any, separator: Any, limit: int = -1) -> list[str]:
    text = _text(value)
    if limit == 0:
        return []
    if separator == "":
        return list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(_text(separator), -1 if limit < 0 else limit - 1)


def _char_at(value: Any, position: int) -> str:
    text = _text(value)
    if not 0 <= position <= len(text):
        raise CelError(f"charAt: index out of range: {position}")
    return text[position : position + 1]


def _format(value: Any, arguments: list[Any]) -> str:
    rest = list(arguments)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if not rest:
            raise CelError("format: too few arguments")
        item = rest.pop(0)
        if match[2] == "s":
            return str(item) if isinstance(item, (list, dict)) else _string(item)
        return str(match[0] % item)

    return re.sub(r"%%|%(\.\d+)?([sdfexXob])", one, _text(value))


def _is_sorted(value: Any) -> bool:
    items = _items(value)
    for left, right in pairwise(items):
        ordered(left, right)
        if right < left:
            return False
    return True


def _sum(value: Any) -> Any:
    items = _items(value)
    total: Any = timedelta(0) if items and isinstance(items[0], timedelta) else 0
    for item in items:
        total = total + item
    return total


def _extreme(choose: Callable[..., Any]) -> Callable[[Any], Any]:
    def extreme(value: Any) -> Any:
        items = _items(value)
        if not items:
            raise CelError("min or max called on an empty list")
        for item in items[1:]:
            ordered(items[0], item)
        return choose(items)

    return extreme


def _quantity(value: Any) -> Quantity:
    try:
        return Quantity(parse_quantity(value))
    except ValueError as fault:
        raise CelError(str(fault)) from None


def _number(value: Any) -> Any:
    return value.number if isinstance(value, Quantity) else value


def _duration(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else parse_duration(_text(value))


def _timestamp(value: Any) -> datetime:
    return value if isinstance(value, datetime) else parse_timestamp(_text(value))


def _is(parse: Callable[[str], Any]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        try:
            parse(_text(value))
        except ValueError:
            return False
        return True

    return check


def _is_url(value: Any) -> bool:
    parts = urlsplit(_text(value))
    return bool(parts.scheme and (parts.netloc or parts.path)) or _text(value).startswith("/")


def _find(value: Any, pattern: Any) -> str:
    match = _regex(_text(pattern)).search(_text(value))
    return match[0] if match else ""


def _find_all(value: Any, pattern: Any, limit: int = -1) -> list[str]:
    found = [match[0] for match in _regex(_text(pattern)).finditer(_text(value))]
    return found if limit < 0 else found[:limit]


def _contains(value: Any, wanted: Any) -> bool:
    return _text(wanted) in _text(value)


def _has_all(left: Any, right: Any) -> bool:
    return all(any(equals(one, other) for other in _items(left)) for one in _items(right))


def _or_value(value: Any, fallback: Any) -> Any:
    return value.value if isinstance(value, Optional) and value.present else fallback


def _value(value: Any) -> Any:
    if not isinstance(value, Optional) or not value.present:
        raise CelError("optional.none() dereference")
    return value.value


def _duration_part(divisor: float) -> Callable[[Any], int]:
    def part(value: Any) -> int:
        if isinstance(value, timedelta):
            return int(value.total_seconds() / divisor)
        field = {3600.0: "hour", 60.0: "minute", 1.0: "second"}[divisor]
        return int(getattr(value, field))

    return part


# name → (function, fewest and most arguments, including the receiver)
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "size": (_size, 1, 1),
    "int": (_int, 1, 1),
    "uint": (_int, 1, 1),
    "double": (_double, 1, 1),
    "string": (_string, 1, 1),
    "bool": (_bool, 1, 1),
    "bytes": (lambda value: value if isinstance(value, bytes) else _text(value).encode(), 1, 1),
    "dyn": (lambda value: value, 1, 1),
    "type": (type_name, 1, 1),
    "duration": (_duration, 1, 1),
    "timestamp": (_timestamp, 1, 1),
    "startsWith": (lambda value, prefix: _text(value).startswith(_text(prefix)), 2, 2),
    "endsWith": (lambda value, suffix: _text(value).endswith(_text(suffix)), 2, 2),
    "contains": (_contains, 2, 2),
    "matches": (lambda value, pattern: _regex(_text(pattern)).search(_text(value)) is not None, 2, 2),
    "charAt": (_char_at, 2, 2),
    "indexOf": (_index_of, 2, 3),
    "lastIndexOf": (_last_index_of, 2, 2),
    "join": (lambda value, separator="": _text(separator).join(_text(item) for item in _items(value)), 1, 2),
    "lowerAscii": (lambda value: _text(value).lower(), 1, 1),
    "upperAscii": (lambda value: _text(value).upper(), 1, 1),
    "replace": (lambda value, old, new, limit=-1: _text(value).replace(old, new, limit), 3, 4),
    "split": (_split, 2, 3),
    "substring": (_substring, 2, 3),
    "trim": (lambda value: _text(value).strip(), 1, 1),
    "reverse": (lambda value: value[::-1], 1, 1),
    "format": (_format, 2, 2),
    "isSorted": (_is_sorted, 1, 1),
    "sum": (_sum, 1, 1),
    "min": (_extreme(min), 1, 1),
    "max": (_extreme(max), 1, 1),
    "find": (_find, 2, 2),
    "findAll": (_find_all, 2, 3),
    "quantity": (_quantity, 1, 1),
    "isQuantity": (is_quantity, 1, 1),
    "isGreaterThan": (lambda left, right: _number(left) > _number(right), 2, 2),
    "isLessThan": (lambda left, right: _number(left) < _number(right), 2, 2),
    "compareTo": (lambda a, b: (_number(a) > _number(b)) - (_number(a) < _number(b)), 2, 2),
    "add": (lambda left, right: Quantity(_number(left) + _number(right)), 2, 2),
    "sub": (lambda left, right: Quantity(_number(left) - _number(right)), 2, 2),
    "isInteger": (lambda value: value.number.denominator == 1, 1, 1),
    "asInteger": (lambda value: checked_int(int(value.number)), 1, 1),
    "asApproximateFloat": (lambda value: float(value.number), 1, 1),
    "sign": (lambda value: (value.number > 0) - (value.number < 0), 1, 1),
    "isURL": (_is_url, 1, 1),
    "isIP": (_is(ip_address), 1, 1),
    "isCIDR": (_is(lambda text: ip_network(text, strict=False)), 1, 1),
    "url": (lambda value: urlsplit(_text(value)), 1, 1),
    "getScheme": (lambda value: value.scheme, 1, 1),
    "getHost": (lambda value: value.netloc, 1, 1),
    "getHostname": (lambda value: value.hostname or "", 1, 1),
    "getPort": (lambda value: str(value.port or ""), 1, 1),
    "getEscapedPath": (lambda value: value.path, 1, 1),
    "sets.contains": (_has_all, 2, 2),
    "sets.equivalent": (lambda left, right: _has_all(left, right) and _has_all(right, left), 2, 2),
    "sets.intersects": (lambda a, b: any(any(equals(x, y) for y in _items(b)) for x in _items(a)), 2, 2),
    "optional.of": (lambda value: Optional(True, value), 1, 1),
    "optional.none": (lambda: Optional(False), 0, 0),
    "hasValue": (lambda value: isinstance(value, Optional) and value.present, 1, 1),
    "value": (_value, 1, 1),
    "orValue": (_or_value, 2, 2),
    "or": (lambda value, other: value if value.present else other, 2, 2),
    "getHours": (_duration_part(3600.0), 1, 1),
    "getMinutes": (_duration_part(60.0), 1, 1),
    "getSeconds": (_duration_part(1.0), 1, 1),
    "math.greatest": (lambda *items: max(items[0] if len(items) == 1 and isinstance(items[0], list) else items), 1, 9),
    "math.least": (lambda *items: min(items[0] if len(items) == 1 and isinstance(items[0], list) else items), 1, 9),
}
