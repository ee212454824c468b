"""Fetches a single resource by HTTP, or from a file, in a thread, so that the loop never waits.

Bounds: one request at a time, `MOST_BYTES` of response, `WITHIN_S` from its first to its last byte, `GIVEN_UP_S` for
everything, name lookup included. Redirects are not followed and no proxy is used. The thread is a daemon: a node that
stops does not wait for it.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from ballast_broker.security.oauth_settings import Endpoint
from ballast_broker.security.tls import TlsContexts, reason_of

MOST_BYTES = 1024 * 1024
PIECE_BYTES = 64 * 1024
WITHIN_S = 10.0
GIVEN_UP_S = 20.0
OK = 200


class RemoteError(Exception):
    """The fetch failed; the message says why, and contains no secret."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float = WITHIN_S
    read_s: float = WITHIN_S


@dataclass(frozen=True, slots=True)
class Form:
    """A body to POST, with its headers."""

    headers: Mapping[str, str]
    body: bytes


class Remote:
    """Loop thread only, except what runs in the thread."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts = Timeouts()) -> None:
        self.endpoint = endpoint
        self._timeouts = timeouts
        self._tls = None if endpoint.tls is None else TlsContexts(endpoint.tls, monotonic, server=False)
        self._busy = False

    async def fetch(self, form: Form | None = None) -> bytes:
        """Fetch the content; RemoteError if there is no usable response."""
        if self._busy:
            raise RemoteError(f"{self.endpoint.url} has not answered yet to what it was asked before")
        self._busy = True
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bytes | RemoteError] = loop.create_future()

        def settle(found: bytes | RemoteError) -> None:
            if not ended.done():
                ended.set_result(found)

        def work() -> None:
            try:
                found = self._asked(form)
            finally:
                self._busy = False  # here, since the loop may have ended and another one may fetch
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, found)

        try:
            threading.Thread(target=work, name="ballast-remote", daemon=True).start()
        except RuntimeError as error:  # no more threads on this machine
            self._busy = False
            raise RemoteError(f"{self.endpoint.url}: {error}") from None
        try:
            async with asyncio.timeout(GIVEN_UP_S):
                found = await ended
        except TimeoutError:
            raise RemoteError(f"{self.endpoint.url} does not answer within {GIVEN_UP_S:g} s") from None
        if isinstance(found, RemoteError):
            raise found
        return found

    # -- in the thread --------------------------------------------------------------------------------------------
    def _asked(self, form: Form | None) -> bytes | RemoteError:
        try:
            return self.read_file() if self.endpoint.is_file else self._request(form)
        except RemoteError as error:
            return error
        except (OSError, http.client.HTTPException, ValueError) as error:
            return RemoteError(f"{self.endpoint.url}: {reason_of(error) or type(error).__name__}")

    def read_file(self) -> bytes:
        """Read a file endpoint; may also be called before there is a loop."""
        try:
            with Path(self.endpoint.path).open("rb") as file:
                found = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise RemoteError(f"{self.endpoint.path} cannot be read: {error.strerror}") from None
        return _bounded(found, self.endpoint.path)

    def _request(self, form: Form | None) -> bytes:
        endpoint, until_s = self.endpoint, monotonic() + WITHIN_S
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(self._timeouts.read_s)
            headers = {"Accept": "application/json", "Connection": "close", **({} if form is None else form.headers)}
            method, body = ("GET", None) if form is None else ("POST", form.body)
            connection.request(method, endpoint.path, body, headers)
            with connection.getresponse() as answer:
                found = _read(answer, until_s, endpoint.url)
        finally:
            connection.close()
        if answer.status != OK:
            raise RemoteError(f"{endpoint.url} answers {answer.status} {_printable(answer.reason, 40)}{_said(found)}")
        return found

    def _connection(self) -> http.client.HTTPConnection:
        endpoint, timeout_s = self.endpoint, self._timeouts.connect_s
        if self._tls is None:
            return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
        return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout_s, context=self._tls.current())


def _read(answer: http.client.HTTPResponse, until_s: float, url: str) -> bytes:
    pieces, size = [], 0
    while piece := answer.read1(PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            break
        if monotonic() > until_s:
            raise RemoteError(f"{url} answers for longer than {WITHIN_S:g} s")
    return _bounded(b"".join(pieces), url)


def _bounded(found: bytes, where: str) -> bytes:
    if len(found) > MOST_BYTES:
        raise RemoteError(f"{where} has more than {MOST_BYTES} bytes")
    return found


def _said(body: bytes) -> str:
    """The printable part of an error response (RFC 6749, section 5.2)."""
    text = _printable(body.decode("utf-8", "replace"), 200)
    return f": {text}" if text else ""


def _printable(text: str, most: int) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:most]).strip()
