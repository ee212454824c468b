"""Reads the credentials for Prometheus from files, so that nothing secret is on a command line.

They are read anew for each use: they may have been replaced since. No error text contains anything secret. Needs only
the standard library.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ballast_rebalance.prometheus_http import PrometheusError, read_authorities, read_certificate

TOKEN, USER, PASSWORD, HEADERS, AUTHORITIES = "token", "username", "password", "headers", "ca.crt"
CERTIFICATE, KEY = "tls.crt", "tls.key"
AUTHORIZATION = "authorization"
# Headers that the query sets itself: a second value would change it, or be sent twice.
OWN = frozenset({"accept", "connection", "content-length", "content-type", "expect", "host", "transfer-encoding"})
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What urllib sends unchanged: no line break, and only ASCII, which has but one encoding.
VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
SECRET_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class AccessFiles:
    """Where the credentials are.

    `secret` is a directory like a mounted Secret: `token`, or `username` and `password`; `headers`, a line
    `Name: value` for each; `ca.crt`; `tls.crt` and `tls.key`. `token` and `authorities`, if given, take precedence over
    those there. `headers` are those that are not secret, such as a tenant's.
    """

    secret: Path | None = None
    token: Path | None = None
    authorities: Path | None = None
    headers: Sequence[tuple[str, str]] = ()

    def read(self) -> dict[str, str]:
        """As options of the data source: texts, as executors cannot read the driver's files. Raises PrometheusError."""
        if self.secret is not None and not any((self.secret / name).is_file() for name in _NAMES):
            raise PrometheusError(f"{self.secret} has none of the files {', '.join(_NAMES)}")
        headers = [*self.headers, *self._secret_headers(), *self._authorization()]
        twice = {name.lower() for name, _ in headers}
        if len(twice) != len(headers):
            raise PrometheusError("a header for Prometheus is given twice, of which it would get one")
        return {
            "secretHeaders": json.dumps(headers) if headers else "",
            "secretCertificate": self._certificate(),
            "authorities": self._authorities(),
        }

    def _authorization(self) -> list[tuple[str, str]]:
        user, password = self._of_secret(USER), self._of_secret(PASSWORD)
        token = self.token or self._of_secret(TOKEN)
        if user is None and password is None:
            return [] if token is None else [("Authorization", f"Bearer {_token(token)}")]
        if user is None or password is None:
            raise PrometheusError(f"{self.secret} has one of {USER} and {PASSWORD}: both are needed")
        if token is not None:
            raise PrometheusError(f"{token} and {user} are both there: who asks is one of them")
        name = _line(user)
        if ":" in name:
            raise PrometheusError(f"{user} has a colon, which no user's name can have (basic authentication)")
        pair = f"{name}:{_line(password)}".encode()
        return [("Authorization", f"Basic {base64.b64encode(pair).decode()}")]

    def _secret_headers(self) -> list[tuple[str, str]]:
        file = self._of_secret(HEADERS)
        if file is None:
            return []
        lines = enumerate(_text(file).splitlines(), 1)
        return [_header(text, f"line {number} of {file}") for number, text in lines if text.strip()]

    def _authorities(self) -> str:
        """Empty if those apply that the machine trusts."""
        file = self.authorities or self._of_secret(AUTHORITIES)
        if file is None:
            return ""
        try:
            return read_authorities(_text(file))
        except PrometheusError as error:
            raise PrometheusError(f"in {file} {error}") from error

    def _certificate(self) -> str:
        """The client certificate with its key; empty if there is none."""
        certificate, key = self._of_secret(CERTIFICATE), self._of_secret(KEY)
        if certificate is None and key is None:
            return ""
        if certificate is None or key is None:
            raise PrometheusError(f"{self.secret} has one of {CERTIFICATE} and {KEY}: both are needed")
        try:
            return read_certificate(f"{_text(key)}\n{_text(certificate)}")
        except PrometheusError as error:
            raise PrometheusError(f"{certificate} and {KEY} {error}") from error

    def _of_secret(self, name: str) -> Path | None:
        file = self.secret / name if self.secret is not None else None
        return file if file is not None and file.exists() else None


_NAMES = (TOKEN, USER, PASSWORD, HEADERS, AUTHORITIES, CERTIFICATE, KEY)


def header(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE of a command line, which everybody can see: no secret is taken. Raises ValueError."""
    name, equals, value = text.partition("=")
    if name.strip().lower() == AUTHORIZATION:
        raise ValueError("what says who asks is read from files: --prometheus-secret or --prometheus-token")
    if not equals or not _is_header(name, value):
        raise ValueError(f"{name!r}: it is no header such as X-Scope-OrgID=team-a, or one that a query has itself")
    return name, value


def headers_of(text: str) -> tuple[tuple[str, str], ...]:
    """The headers in the text that `read` made of them."""
    found: Iterable[Sequence[str]] = json.loads(text) if text else ()
    return tuple((name, value) for name, value in found)


def _header(line: str, where: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    if not _is_header(name, value.strip()):
        raise PrometheusError(f"{where} is no header such as `X-Scope-OrgID: team-a`, or one that a query has itself")
    return name, value.strip()


def _is_header(name: str, value: str) -> bool:
    return name.lower() not in OWN and bool(NAME.fullmatch(name) and VALUE.fullmatch(value))


def _token(file: Path) -> str:
    text = _text(file).strip()
    if not SECRET_TOKEN.fullmatch(text):
        why = "one is a single word in ASCII" if text else "it is empty"
        raise PrometheusError(f"{file} has no token: {why}")
    return text


def _line(file: Path) -> str:
    """The file's only line, without the newline that editors and `echo` append."""
    text = _text(file).removesuffix("\n").removesuffix("\r")
    if not text or not text.isprintable():
        raise PrometheusError(f"{file} is empty or has more than one line")
    return text


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PrometheusError(f"{file}, for Prometheus, cannot be read: {why}") from error
