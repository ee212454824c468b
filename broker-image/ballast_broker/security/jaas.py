"""Parses a property with a JAAS configuration of one login module: `CLASS required key="value" ... ;`. PURE.

Errors use Kafka's wording and never quote the text, which contains passwords.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|"((?:[^"\\]|\\.)*)"|([;=])|([^\s";=]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b"}
FLAGS = ("required", "requisite", "sufficient", "optional")


class JaasError(ValueError):
    """The message never contains a value."""


class LoginModule(NamedTuple):
    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    text: str
    is_mark: bool  # an unquoted `;` or `=`


def parse_login_module(text: str) -> LoginModule:
    tokens = _tokens(text)
    if not tokens:
        raise JaasError("JAAS config property does not contain any login modules")
    name = tokens.pop(0)
    if name.is_mark:
        raise JaasError("Login module not specified in JAAS config")
    if not tokens or tokens[0].is_mark or tokens[0].text.lower() not in FLAGS:
        raise JaasError("Login module control flag not specified in JAAS config")
    tokens.pop(0)
    options: dict[str, str] = {}
    while tokens and tokens[0] != (";", True):
        key = tokens.pop(0)
        is_option = not key.is_mark and tokens[:1] == [("=", True)]
        if options and not is_option:  # it may be the rest of a password
            said = f"The value of key '{next(reversed(options))}' in JAAS config is followed by something else"
            raise JaasError(f"{said}: with a blank or = in it, it has to be in quotes")
        if not is_option or len(tokens) < 2 or tokens[1].is_mark:
            raise JaasError(f"Value not specified for key '{key.text}' in JAAS config")
        options[key.text] = tokens[1].text
        del tokens[:2]
    if not tokens:
        raise JaasError("JAAS config entry not terminated by semi-colon")
    if len(tokens) > 1:
        raise JaasError("JAAS config property contains more than one login module: only one is allowed")
    return LoginModule(name.text, options)


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError("a quote in JAAS config has no end")
        quoted, mark, word = match.groups()
        if quoted is not None:
            found.append(_Token(_ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), quoted), False))
        elif mark or word:
            found.append(_Token(mark or word, bool(mark)))
        position = match.end()
    return found
