"""Derives principal names from certificates: the subject as Java prints it (RFC 2253), mapped by rules.

PURE. Of the certificate's DER only the path to the subject is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

VERSION = 0xA0
KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# String types: UTF8, Printable, Teletex, IA5, Universal, BMP.
ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_TO_ESCAPE = re.compile(r'([,=+<>#;"\\])')
_RULE = re.compile(r"\s*(DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:[,\n]|$)")


class NoName(ValueError):
    """No name can be derived from this certificate."""


class RuleError(ValueError):
    """A rule is malformed."""


def subject_of(certificate: bytes) -> str:
    """The subject's distinguished name, last part first, as in `CN=orders,OU=shop,C=DE`."""
    try:
        fields = _parts(_content(_content(certificate)))
        kinds = list(fields)
        subject = kinds[5 if kinds[0][0] == VERSION else 4]
        names = [_name_of(each) for _, each in _parts(subject[1])]
    except (IndexError, ValueError) as error:
        raise NoName(f"the certificate's subject cannot be read: {error}") from error
    return ",".join(reversed(names))


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        tag, start, end = _bounds(data, position)
        yield tag, data[start:end]
        position = end


def _bounds(data: bytes, position: int) -> tuple[int, int, int]:
    tag, length, start = data[position], data[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + length > len(data):
        raise ValueError("it ends early")
    return tag, start, start + length


def _content(data: bytes) -> bytes:
    """The content of the first element."""
    _, start, end = _bounds(data, 0)
    return data[start:end]


def _name_of(content: bytes) -> str:
    """One relative distinguished name, which may have several attributes."""
    return "+".join(_attribute(each) for _, each in _parts(content))


def _attribute(content: bytes) -> str:
    _, start, end = _bounds(content, 0)
    kind, value = _dotted(content[start:end]), content[end:]
    tag, text_start, text_end = _bounds(value, 0)
    keyword = KEYWORDS.get(kind)
    if keyword is None or tag not in ENCODINGS:
        return f"{keyword or kind}=#{value.hex()}"
    return f"{keyword}={_escaped(value[text_start:text_end].decode(ENCODINGS[tag]))}"


def _dotted(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    escaped = _TO_ESCAPE.sub(r"\\\1", text).replace("\0", "\\00")
    inner = escaped.strip(" ")
    if not inner:
        return "\\ " * len(escaped)
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - len(escaped.rstrip(" "))
    return "\\ " * before + inner + "\\ " * after


# ---- rules


def name_by_rules(text: str) -> Callable[[str], str]:
    """Return the mapping of subjects to names: the first rule that matches fully wins; `DEFAULT` keeps the subject."""
    rules = list(_rules(text))

    def name_of(subject: str) -> str:
        for pattern, replacement, case in rules:
            if pattern is None:
                return subject
            if pattern.fullmatch(subject):
                name = pattern.sub(replacement, subject)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise NoName(f"no rule of ssl.principal.mapping.rules applies to {subject}")

    return name_of


def _rules(text: str) -> Iterator[tuple[re.Pattern[str] | None, Callable[[re.Match[str]], str], str]]:
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise RuleError(f"Invalid rule: `{text[position:]}`")
        position = found.end()
        if found[1] == "DEFAULT":
            yield None, lambda match: match[0], ""
            continue
        try:
            pattern = re.compile(found[2].replace("\\/", "/"))
        except re.error as error:
            raise RuleError(f"Invalid rule: `{found[1]}`: {error}") from None
        yield pattern, _replacement(found[3].replace("\\/", "/"), pattern.groups), found[4]


def _replacement(text: str, groups: int) -> Callable[[re.Match[str]], str]:
    """Java's syntax: `$1` is a group, if the pattern has it; `\\` quotes the next character."""
    parts: list[int | str] = []
    for escaped, number, plain in re.findall(r"\\(.)|\$(\d)|(.)", text, re.DOTALL):
        if number and int(number) <= groups:
            parts.append(int(number))
        else:
            parts.append(escaped or (f"${number}" if number else plain))

    def replacement(match: re.Match[str]) -> str:
        return "".join((match[each] or "") if isinstance(each, int) else each for each in parts)

    return replacement
