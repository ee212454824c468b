"""Parses and validates property values by Kafka's types and rules, with errors that tell what is allowed. PURE."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

log = logging.getLogger(__name__)

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
NUMBERS = {kind: f"Not a number of type {kind.upper()}" for kind in ("int", "long", "double")}
BLANKS = "".join(map(chr, range(ord(" ") + 1)))  # what Java's String.trim strips
STORED_KNOWN = 1_024
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)
NAME = "{name}"
"""Placeholder for the property's name in a complaint."""


class ConfigError(ValueError):
    """A property has an invalid value; the message names the property, the value and what is allowed."""


def _double_text(value: float) -> str:
    """Format as Java does: with an exponent if large or small, as in `1.0E10`."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    shortest = next(text for digits in range(18) if float(text := f"{value:.{digits}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def shown(value: Any) -> str:
    return _double_text(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint on values: `complaint` returns what is wrong, in Kafka's words, or None.

    `culprit` is the value shown in the message.
    """

    complaint: Callable[[Any], str | None]
    culprit: Callable[[Any], str] = shown


def between(low: float, high: float | None = None) -> Rule:
    def complaint(value: Any) -> str | None:
        if value < low:
            return f"Value must be at least {low}"
        if high is not None and value > high:  # NaN passes, as in Apache Kafka
            return f"Value must be no more than {high}"
        return None

    return Rule(complaint)


def between_or(low: int, high: int, other: int) -> Rule:
    text = f"Value must be between {low} and {high} or equal to {other}"
    return Rule(lambda value: None if low <= value <= high or value == other else text)


def one_of(*names: str) -> Rule:
    text = "String must be one of: " + ", ".join(names)
    return Rule(lambda value: None if value in names else text)


def empty_or(name: str) -> Rule:
    return Rule(lambda value: None if value in ("", name) else f"String must be empty or {name}")


def each_of(*names: str) -> Rule:
    text = "String must be one of: " + ", ".join(names)

    def strange(value: Any) -> list[str]:
        return [each for each in value if each not in names]

    return Rule(lambda value: text if strange(value) else None, lambda value: strange(value)[0])


ANYTHING = Rule(lambda value: None)


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    kind: str  # boolean, int, long, double, string, password, list
    default: Any
    rule: Rule = ANYTHING

    @property
    def field(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        try:
            value = PARSERS[self.kind](text.strip(BLANKS))
        except ValueError as error:
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {error}") from None
        self._check(value)
        return value

    def parse_new(self, text: str) -> Any:
        """Parse a value to be stored. Unlike `parse` it validates empty list elements, as Apache Kafka does."""
        value = self.parse(text)
        if self.kind == "list" and text.strip():
            self._check(tuple(part.strip() for part in text.split(",")))
        return value

    def stored(self, text: str) -> Any | None:
        """Parse a value from the metadata. Apache Kafka may have written it in a way unknown here: then None, with a
        warning the first time.
        """
        return _stored(self, text)

    def _check(self, value: Any) -> None:
        complaint = None if value is None else self.rule.complaint(value)
        if complaint is not None:
            culprit = self.rule.culprit(value)
            raise ConfigError(
                f"Invalid value {culprit} for configuration {self.name}: {complaint.replace(NAME, self.name)}"
            )

    def text_of(self, value: Any) -> str | None:
        """Format as Kafka does when configs are described."""
        if value is None:
            return None
        if self.kind == "boolean":
            return "true" if value else "false"
        if self.kind == "list":
            return ",".join(value)
        return shown(value)


@lru_cache(maxsize=STORED_KNOWN)
def _stored(known: Property, text: str) -> Any | None:
    try:
        return known.parse(text)
    except ConfigError as error:
        log.warning("a stored configuration is not understood, and is ignored: %s", error)
        return None


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("Expected value to be either true or false")


def _whole(bound: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if _WHOLE.fullmatch(text) else bound + 1
        if not -bound - 1 <= value <= bound:
            raise ValueError(NUMBERS["int" if bound == INT_MAX else "long"])
        return value

    return parse


node_id = _whole(INT_MAX)  # parses a node id that names a resource


def _double(text: str) -> float:
    """Parse a Java literal, which may have a suffix or be hexadecimal."""
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD"))
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    if not _DECIMAL.fullmatch(text):
        raise ValueError(NUMBERS["double"])
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "int": _whole(INT_MAX),
    "long": _whole(LONG_MAX),
    "double": _double,
    "string": str,
    "password": str,
    "list": _list,
}
