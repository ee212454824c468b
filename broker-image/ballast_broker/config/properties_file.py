"""Parses Java properties files. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterator

_END_OF_LINE = re.compile(r"\r\n|\n|\r")
_BLANKS = " \t\f"
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def text_of(data: bytes) -> str:
    """Decode as UTF-8, or else as Latin-1, which Java always assumes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> dict[str, str]:
    """Parse `key=value` lines (or `:`, or a blank), `#` and `!` comments; `\\` continues a line.

    Trailing blanks of a value are stripped, as Kafka does for every property.
    """
    found: dict[str, str] = {}
    for line in _whole_lines(text):
        key = _KEY.match(line)
        assert key is not None  # it may be empty
        found[_unescaped(key[1])] = _unescaped(line[key.end() :]).rstrip(_BLANKS)
    return found


def _whole_lines(text: str) -> Iterator[str]:
    """Join continued lines and drop comments; the last line may end in a continuation."""
    whole, goes_on = "", False
    for part in _END_OF_LINE.split(text):
        line = part.lstrip(_BLANKS)
        if not goes_on and line.startswith(("#", "!")):
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if goes_on else line
        if whole and not goes_on:
            yield whole
            whole = ""
    if whole:
        yield whole


def _unescaped(text: str) -> str:
    """Unescape as Java does: `\\n` is a newline; before any other character `\\` is dropped."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]), text)
