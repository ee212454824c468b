"""CEL's value types beyond JSON, and comparison of values. PURE.

JSON numbers are Python's int and float; a timestamp is an aware datetime, a duration a timedelta.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any


class CelError(Exception):
    """An expression could not be evaluated: no such key, no such overload, overflow, ..."""


@dataclass(frozen=True, slots=True)
class Optional:
    """optional.of(value), or optional.none() if not present."""

    present: bool
    value: Any = None


@dataclass(frozen=True, slots=True)
class Quantity:
    number: Fraction


def type_name(value: Any) -> str:
    names: list[tuple[type, str]] = [
        (bool, "bool"), (int, "int"), (float, "double"), (str, "string"), (bytes, "bytes"), (list, "list"),
        (dict, "map"), (datetime, "google.protobuf.Timestamp"), (timedelta, "google.protobuf.Duration"),
        (Optional, "optional_type"), (Quantity, "kubernetes.Quantity"),
    ]  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), "null_type")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equals(left: Any, right: Any) -> bool:
    if is_number(left) and is_number(right):
        return bool(left == right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equals(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equals(member, right[key]) for key, member in left.items())
    return type(left) is type(right) and bool(left == right)


def ordered(left: Any, right: Any) -> None:
    """Raise CelError unless the two can be compared by <."""
    if is_number(left) and is_number(right):
        return
    if type(left) is type(right) and isinstance(left, (str, bytes, bool, datetime, timedelta)):
        return
    raise CelError(f"no such overload: {type_name(left)} < {type_name(right)}")


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def parse_duration(text: str) -> timedelta:
    if text == "0":
        return timedelta(0)
    match = re.fullmatch(r"([-+]?)((?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+)", text)
    if match is None:
        raise CelError(f"invalid duration: {text!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", match[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return timedelta(seconds=-seconds if match[1] == "-" else seconds)


def parse_timestamp(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise CelError(f"invalid timestamp: {text!r}") from None
    if moment.tzinfo is None:
        raise CelError(f"invalid timestamp: {text!r}")
    return moment.astimezone(UTC)


def checked_int(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise CelError("integer overflow")
    return value
