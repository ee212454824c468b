"""The JSONPath of printer columns and scale paths: `.a.b`, `[0]`, `[*]`, `['k']`, `[?(@.x=="y")]`. PURE."""

import re
from functools import lru_cache
from typing import Any

Step = tuple[str, Any]
_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)
    |\[\?\(\s*@(?P<path>[^=!<>]*?)\s*(?:(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*)?\)\]
    |\[(?P<star>\*)\]
    |\[(?P<index>-?\d+)\]
    |\[(?P<key>'[^']*'|"[^"]*")\]
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def parse_path(text: str) -> tuple[Step, ...]:
    """ValueError for what is not understood."""
    text = text.strip().strip("{}").removeprefix("$")
    if not text.startswith((".", "[")):
        text = "." + text
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"cannot understand the JSON path {text!r} at {position}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["name"] is not None:
        name = re.sub(r"\\(.)", r"\1", match["name"])
        return ("all", None) if name == "*" else ("field", name)
    if match["star"]:
        return ("all", None)
    if match["index"]:
        return ("index", int(match["index"]))
    if match["key"]:
        return ("field", match["key"][1:-1])
    value = match["value"]
    if value is not None and value[0] in "'\"":
        value = value[1:-1]
    return ("filter", (parse_path(match["path"] or "."), match["op"], value))


def find(steps: tuple[Step, ...], value: Any) -> list[Any]:
    found = [value]
    for kind, argument in steps:
        found = [result for one in found for result in _advance(kind, argument, one)]
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _advance(kind: str, argument: Any, value: Any) -> list[Any]:
    if kind == "field":
        return [value[argument]] if isinstance(value, dict) and argument in value else []
    if kind == "all":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if kind == "index":
        return [value[argument]] if isinstance(value, list) and -len(value) <= argument < len(value) else []
    path, operator, wanted = argument
    kept: list[Any] = []
    for item in value if isinstance(value, list) else []:
        held = find(path, item)
        if held and (operator is None or (_text(held[0]) == wanted) == (operator == "==")):
            kept.append(item)
    return kept
