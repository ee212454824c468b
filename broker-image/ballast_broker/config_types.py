"""How a property's text becomes a value: Kafka's types and its rules, with errors that say what is allowed. PURE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class ConfigError(ValueError):
    """A property has a value that is not allowed; the text names the property, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must satisfy, and how that reads."""

    accepts: Callable[[Any], bool]
    text: str


def between(low: float, high: float | None = None) -> Rule:
    if high is None:
        return Rule(lambda value: value >= low, f"at least {low}")
    return Rule(lambda value: low <= value <= high, f"from {low} to {high}")


def one_of(*names: str) -> Rule:
    return Rule(lambda value: value in names, "one of " + ", ".join(names))


def each_of(*names: str) -> Rule:
    return Rule(lambda value: bool(value) and all(v in names for v in value), "a list, each one of " + ", ".join(names))


ANYTHING = Rule(lambda value: True, "anything")


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    kind: str  # boolean, int, long, double, string, list
    default: Any
    rule: Rule = ANYTHING

    @property
    def field(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        try:
            value = PARSERS[self.kind](text.strip())
        except ValueError as error:
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {error}") from None
        if value is not None and not self.rule.accepts(value):
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: Value must be {self.rule.text}")
        return value

    def text_of(self, value: Any) -> str | None:
        """As Kafka prints it when configs are described."""
        if value is None:
            return None
        if self.kind == "boolean":
            return "true" if value else "false"
        if self.kind == "list":
            return ",".join(value)
        return str(value)


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("Expected value to be either true or false")


def _whole(bound: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"Not a number of type {'INT' if bound == INT_MAX else 'LONG'}") from None
        if not -bound - 1 <= value <= bound:
            raise ValueError(f"Not a number of type {'INT' if bound == INT_MAX else 'LONG'}")
        return value

    return parse


def _double(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("Not a number of type DOUBLE") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "int": _whole(INT_MAX),
    "long": _whole(LONG_MAX),
    "double": _double,
    "string": str,
    "list": _list,
}
