"""JSONPath as in Kubernetes, for printer columns and kubectl's `get` and `wait`. PURE.

Supports fields, `[0]`, `[*]`, slices, `..`, filters, and templates with ranges. A missing field yields nothing. Raises
ValueError for invalid or unsupported syntax.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

Step = Callable[[Any], list[Any]]
NAME = re.compile(r"(?:\\.|[^\s.\[\]{}()\\'\"=<>!|,])+")
QUOTED = re.compile(r"'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\"")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(\d+))?\]")
INDEXES = re.compile(r"-?\d+(?:,-?\d+)*\]")
OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True)
class Path:
    steps: tuple[Step, ...]

    def find(self, value: Any) -> list[Any]:
        found = [value]
        for step in self.steps:
            found = [one for each in found for one in step(each)]
        return found


@dataclass(frozen=True)
class Range:
    over: Path
    parts: list[str | Path | Range]


Template = list[str | Path | Range]


@lru_cache(maxsize=1024)
def path(text: str) -> Path:
    """Parse a path; its braces and first dot are optional: `{.status.phase}`, `status.phase`."""
    match = re.fullmatch(r"\{(.+)\}|([^{].*)", text, re.DOTALL)
    if match is None:
        raise ValueError(f"{text!r} is no JSONPath such as '{{.status.phase}}'")
    inner = match[1] or match[2]
    reader = _Reader(text, inner if inner[0] in ".[$@" else f".{inner}")
    found = reader.path()
    reader.end()
    return found


def template(text: str) -> Template:
    """Parse text with paths in braces, `{"\\n"}`, and `{range PATH}...{end}`."""
    reader = _Reader(text, text)
    parts = reader.parts(nested=False)
    reader.end()
    return parts


def rendered(parts: Template, value: Any) -> str:
    return "".join(_rendered(parts, value))


def _rendered(parts: Template, value: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Path):
            yield " ".join(map(shown, part.find(value)))
        else:
            for one in part.over.find(value):
                yield from _rendered(part.parts, one)


def shown(value: Any) -> str:
    """Strings as they are, everything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


class _Reader:
    def __init__(self, whole: str, text: str) -> None:
        self._whole, self._text, self._at = whole, text, 0

    def end(self) -> None:
        if self._at < len(self._text):
            self._refuse(f"{self._text[self._at :]!r} is not understood")

    def parts(self, nested: bool) -> Template:
        found: Template = []
        while self._at < len(self._text):
            brace = self._text.find("{", self._at)
            brace = len(self._text) if brace < 0 else brace
            if brace > self._at:
                found.append(self._text[self._at : brace])
            self._at = brace + 1
            if brace == len(self._text):
                break
            self._blanks()
            if self._take("end"):
                self._need("}")
                if not nested:
                    self._refuse("{end} has no {range ...}")
                return found
            found.append(self._action())
        if nested:
            self._refuse("{range ...} has no {end}")
        return found

    def _action(self) -> str | Path | Range:
        if self._take("range "):
            self._blanks()
            over = self.path()
            self._need("}")
            return Range(over, self.parts(nested=True))
        part: str | Path | None = self._quoted()
        if part is None:
            part = self.path()
        self._need("}")
        return part

    def path(self) -> Path:
        rooted = self._take("$") or self._take("@")
        steps: list[Step] = []
        while True:
            if self._take(".."):
                steps += [_and_below, _all if self._take("*") else _field(self._name())]
            elif self._take("."):
                if self._take("*"):
                    steps.append(_all)
                elif NAME.match(self._text, self._at):
                    steps.append(_field(self._name()))
                elif steps or rooted:
                    self._refuse("a name is missing behind a dot")
                else:
                    rooted = True  # "{.}" is the whole object
            elif self._take("["):
                steps.append(self._bracket())
            else:
                break
        if not steps and not rooted:
            self._refuse(f"{self._text[self._at :]!r} is not understood")
        return Path(tuple(steps))

    def _bracket(self) -> Step:
        if self._take("*]"):
            return _all
        if self._take("?("):
            test = self._filter()
            self._need(")")
            self._need("]")
            return lambda value: [one for one in _all(value) if test(one)]
        if match := INDEXES.match(self._text, self._at):
            self._at = match.end()
            return _items([int(number) for number in match[0][:-1].split(",")])
        if match := SLICE.match(self._text, self._at):
            self._at = match.end()
            bounds = slice(*(int(number) if number else None for number in match.groups()))
            return lambda value: value[bounds] if isinstance(value, list) else []
        names = [self._quoted()]
        while self._take(","):
            self._blanks()
            names.append(self._quoted())
        self._need("]")
        fields = [_field(name) for name in names if name is not None]
        if len(fields) < len(names):
            self._refuse("what is in [ ] is no number, no 'name', no * and no ?(...)")
        return lambda value: [one for field in fields for one in field(value)]

    def _filter(self) -> Callable[[Any], bool]:
        left = self._operand()
        self._blanks()
        match = OPERATOR.match(self._text, self._at)
        if match is None:
            return lambda value: bool(left(value))
        self._at = match.end()
        self._blanks()
        right, compare = self._operand(), COMPARE[match[0]]
        self._blanks()

        def holds(value: Any) -> bool:
            pairs = [(one, other) for one in left(value) for other in right(value)]
            try:
                return any(compare(one, other) for one, other in pairs)
            except TypeError:  # a string and a number have no order
                return False

        return holds

    def _operand(self) -> Callable[[Any], list[Any]]:
        self._blanks()
        if (text := self._quoted()) is not None:
            return lambda _: [text]
        if match := NUMBER.match(self._text, self._at):
            self._at = match.end()
            number = json.loads(match[0])
            return lambda _: [number]
        for word, truth in (("true", True), ("false", False)):
            if self._take(word):
                return lambda _, truth=truth: [truth]  # type: ignore[misc]
        return self.path().find

    def _quoted(self) -> str | None:
        match = QUOTED.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), match[0][1:-1])

    def _name(self) -> str:
        match = NAME.match(self._text, self._at)
        if match is None:
            self._refuse("a name is missing behind a dot")
        self._at = match.end()
        return re.sub(r"\\(.)", r"\1", match[0])

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _need(self, text: str) -> None:
        self._blanks()
        if not self._take(text):
            self._refuse(f"{text!r} is missing before {self._text[self._at :]!r}")

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self._whole!r} is no JSONPath: {why}")


def _field(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _items(indexes: list[int]) -> Step:
    def step(value: Any) -> list[Any]:
        count = len(value) if isinstance(value, list) else 0
        return [value[index] for index in indexes if -count <= index < count]

    return step


def _all(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _and_below(value: Any) -> list[Any]:
    return [value, *(one for each in _all(value) for one in _and_below(each))]
