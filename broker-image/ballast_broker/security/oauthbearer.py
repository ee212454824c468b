"""OAUTHBEARER (RFC 7628): parses and builds the client's first message; the response to an invalid token. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

MOST_BYTES = 16 * 1024  # limit of a client's message
INVALID_TOKEN = b'{"status":"invalid_token"}'
AFTER_FAILURE = b"\x01"  # the client's answer to that, since in SASL it has the last word
_KEY, _VALUE = "[A-Za-z]+", "[\x21-\x7e \t\r\n]+"
_NAME = "(?:[^=,\\0\x80-\U0010ffff]|=2C|=3D)+"
_FIRST = re.compile(f"n,(?:a=(?P<wanted>{_NAME}))?,\x01(?P<pairs>(?:{_KEY}={_VALUE}\x01)*)\x01")
_AUTH = re.compile(r"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
EXTENSION_KEY, EXTENSION_VALUE = re.compile(_KEY), re.compile(_VALUE)


class OauthbearerError(ValueError):
    """The message is malformed."""


class First(NamedTuple):
    wanted: str  # the authorization id; empty: as the token says
    token: str
    extensions: Mapping[str, str]


def parse_first(message: bytes) -> First:
    if len(message) > MOST_BYTES:
        raise OauthbearerError(f"a message of {len(message)} bytes")
    found = _FIRST.fullmatch(message.decode("latin-1"))
    if found is None:
        raise OauthbearerError("Invalid OAUTHBEARER client first message")
    pairs = [pair.partition("=")[::2] for pair in found["pairs"].split("\x01") if pair]
    named = dict(pairs)
    if len(named) != len(pairs):
        raise OauthbearerError("Invalid OAUTHBEARER client first message: something is said twice")
    auth = _AUTH.fullmatch(named.pop("auth", ""))
    if auth is None:
        raise OauthbearerError("Invalid OAUTHBEARER client first message: 'auth' has no bearer's token")
    wanted = (found["wanted"] or "").replace("=2C", ",").replace("=3D", "=")
    return First(wanted, auth["token"], named)


def first_message(token: str, extensions: Mapping[str, str]) -> bytes:
    more = "".join(f"\x01{key}={value}" for key, value in extensions.items())
    return f"n,,\x01auth=Bearer {token}{more}\x01\x01".encode()
