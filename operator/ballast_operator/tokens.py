"""Gets tokens for clusters that want OAUTHBEARER from an identity provider (RFC 6749, client credentials).

The client library asks in the thread that connects; there a connection to each of the provider's addresses takes
`WITHIN_S` at most, and so does the whole of the answer. A token is reused until most of its lifetime has passed or a
broker rejects it, as its signing key may have been withdrawn. If no newer one can be had, it is used until it expires.
Only https and http are supported, and redirects are not followed: whoever may create a KafkaCluster must not be able to
read the operator's files.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from ballast_operator.bearer import TokenProvider
from ballast_operator.pem import believing

WITHIN_S = 5.0
MOST_BYTES = 1024 * 1024
RENEWED_AT = 0.8  # of a token's lifetime
AGAIN_S = 1.0  # a provider is not asked more often
AGAIN_REFUSED_S = 5.0  # brokers that have rejected one token may reject the next one, too
MOST_WORDS = 200


class TokenError(Exception):
    """There is no token; the text says why, and contains no secret."""


@dataclass(frozen=True, slots=True)
class _Held:
    token: str
    renewed_at_s: float
    ends_at_s: float
    refused: bool = False


@dataclass(repr=False)
class ClientCredentials(TokenProvider):
    """Equal instances get equivalent tokens."""

    uri: str
    client_id: str
    client_secret: str
    scope: str | None = None
    ca_pem: str | None = None
    refusal: str = field(default="", compare=False)
    _failure: str = field(default="", compare=False)  # of the last attempt
    _held: _Held | None = field(default=None, compare=False)
    _again_at_s: float = field(default=-math.inf, compare=False)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def token(self) -> str:
        with self._one_at_a_time:
            now_s = time.time()
            if self._held is None or self._held.refused or now_s >= self._held.renewed_at_s:
                self._renew(now_s)
            if self._held is None or now_s >= self._held.ends_at_s:
                self.refusal = self._failure
                raise TokenError(self.refusal)
            self.refusal = ""
            return self._held.token

    def refused(self, token: str) -> None:
        with self._one_at_a_time:
            if self._held is not None and self._held.token == token:
                self._held = replace(self._held, refused=True)

    def _renew(self, now_s: float) -> None:
        if time.monotonic() < self._again_at_s:
            return
        pause_s = AGAIN_REFUSED_S if self._held is not None and self._held.refused else AGAIN_S
        try:
            token = _token_in(self._answer())
            ends_at_s = _end_of(token)
            if ends_at_s <= now_s:
                raise TokenError(f"the token that {self.uri} gives has ended already")
            self._held = _Held(token, now_s + (ends_at_s - now_s) * RENEWED_AT, ends_at_s)
        except (TokenError, OSError, http.client.HTTPException, ValueError) as error:
            self._failure = str(error) if isinstance(error, TokenError) else f"{self.uri}: {_words(error)}"
        finally:
            self._again_at_s = time.monotonic() + pause_s

    def _answer(self) -> bytes:
        parts = urlsplit(self.uri)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Connection": "close",
        }
        connection = self._connection(parts.scheme, str(parts.hostname), parts.port)
        connection.response_class = _Answer
        try:
            connection.request("POST", path, urlencode(form), headers)
            with connection.getresponse() as answer:
                found = _read(answer)
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise TokenError(f"{self.uri} answers {answer.status}{_said(found)}")
        return found

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=WITHIN_S)
        return http.client.HTTPSConnection(host, port, timeout=WITHIN_S, context=believing(self.ca_pem))


class _Answer(http.client.HTTPResponse):
    """An answer that has to be there as a whole within `WITHIN_S`, however it comes in."""

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp = io.BufferedReader(_Timed(sock, self.fp.detach(), time.monotonic() + WITHIN_S))


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: io.RawIOBase, until_s: float) -> None:
        self._sock, self._raw, self._until_s = sock, raw, until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(answer: http.client.HTTPResponse) -> bytes:
    found = answer.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise TokenError("the token endpoint's answer is too long")
    return found


def _token_in(answer: bytes) -> str:
    try:
        token = json.loads(answer)["access_token"]
    except (ValueError, RecursionError, LookupError, TypeError):
        token = None
    if not isinstance(token, str) or not token:
        raise TokenError("the token endpoint's answer has no access_token")
    return token


def _end_of(token: str) -> float:
    """The expiry that the token claims; brokers check the rest. One without an expiry is rejected."""
    try:
        said = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        ends_at_s = float(claims["exp"])
    except (ValueError, RecursionError, LookupError, TypeError, OverflowError):
        ends_at_s = math.nan
    if not math.isfinite(ends_at_s) or not token.isascii() or not token.isprintable():
        raise TokenError("the token endpoint gives no JWT with an end (exp)")
    return ends_at_s


def _said(body: bytes) -> str:
    """The fields that RFC 6749 defines for errors. Nothing else is quoted: the server may be no provider at all."""
    try:
        found = json.loads(body)
        words = [str(found[name]) for name in ("error", "error_description") if name in found]
    except (ValueError, RecursionError, TypeError):
        return ""
    text = "".join(each if each.isprintable() else " " for each in ": ".join(words)[:MOST_WORDS])
    return f": {text}" if text else ""


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
