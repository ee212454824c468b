"""A Java properties file, read. PURE."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: `key=value` (or `:`), `#` and `!` comments, `\\` at the end of a line goes on."""
    found: dict[str, str] = {}
    pending = ""
    for line in text.splitlines():
        goes_on = bool(pending)
        line = pending + line.strip()
        pending = ""
        if not line or (line[0] in "#!" and not goes_on):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        cut = min((i for i in (line.find("="), line.find(":")) if i > 0), default=len(line))
        found[line[:cut].strip()] = _ESCAPE.sub(_unescaped, line[cut + 1 :].strip())
    return found


def _unescaped(match: re.Match[str]) -> str:
    """As Java reads a value: `\\n` is a new line, and `\\` before anything else goes away."""
    return chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2])
