"""Gets the token with which this node logs in to others: from an endpoint (RFC 6749, client credentials) or a file.

The token is fetched when first needed, cached, and renewed when most of its lifetime has passed, or when a peer refuses
it: its signing key may have been revoked. While no new one can be had, the old one is used as long as it is valid. Loop
thread only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from time import time
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ballast_broker.net.remote import WITHIN_S, Form, Remote, RemoteError, Timeouts
from ballast_broker.security.oauth_settings import OwnToken

log = logging.getLogger(__name__)

LEAST_BETWEEN_S = 1.0  # even if the new token is short-lived, or the same as before
LEAST_BETWEEN_REFUSED_S = 5.0  # a peer that refuses it may refuse any other token as well
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)


class _Held(NamedTuple):
    token: str
    since_s: float
    ends_at_s: float
    refused: bool = False

    def holds(self, now_s: float, share: float = 1.0) -> bool:
        return now_s < self.since_s + (self.ends_at_s - self.since_s) * share


class OwnTokens:
    def __init__(self, settings: OwnToken, now_s: Callable[[], float] = time) -> None:
        self.extensions: Mapping[str, str] = settings.extensions
        self._settings = settings
        self._now_s = now_s
        connect_ms, read_ms = settings.connect_ms, settings.read_ms
        self._remote = Remote(
            settings.endpoint,
            Timeouts(
                WITHIN_S if connect_ms is None else connect_ms / 1000, WITHIN_S if read_ms is None else read_ms / 1000
            ),
        )
        self._held: _Held | None = None
        self._failures = 0
        self._refusal = ""
        self._again_at_s = 0.0
        self._asking: asyncio.Task[None] | None = None

    def read_file(self) -> None:
        """Call at startup; RemoteError if the file has no token."""
        self._hold(self._remote.read_file().decode("utf-8", "replace").strip())

    async def current(self) -> str:
        """A valid token. ConnectionAbortedError if there is none to be had."""
        held = self._held
        if held is None or held.refused or not held.holds(self._now_s(), self._settings.renewed_at):
            await self._renewed()
        if self._held is None or not self._held.holds(self._now_s()):
            raise ConnectionAbortedError(f"there is no token to show: {self._refusal or 'the last one has ended'}")
        return self._held.token

    def refused(self, token: str) -> None:
        """A peer has refused this token."""
        if self._held is not None and self._held.token == token and not self._held.refused:
            self._held = self._held._replace(refused=True)

    async def _renewed(self) -> None:
        loop = asyncio.get_running_loop()
        if self._asking is None:
            if loop.time() < self._again_at_s:
                return
            self._asking = loop.create_task(self._ask(loop), name="a token of this node's own")
        await asyncio.shield(self._asking)

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        was_refused = self._held is not None and self._held.refused
        try:
            found = await self._remote.fetch(self._form())
            self._hold(found.decode("utf-8", "replace").strip() if self._form() is None else _token_in(found))
            self._failures, self._refusal = 0, ""
            self._again_at_s = loop.time() + (LEAST_BETWEEN_REFUSED_S if was_refused else LEAST_BETWEEN_S)
        except RemoteError as error:
            self._failures += 1
            self._again_at_s = loop.time() + self._settings.backoff.pause_s(self._failures)
            if str(error) != self._refusal:
                self._refusal = str(error)
                log.warning("this node has no new token to log in to other nodes with: %s", error)
        finally:
            self._asking = None

    def _form(self) -> Form | None:
        settings = self._settings
        if settings.endpoint.is_file:
            return None
        login = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
        fields = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
        headers = {
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cache-Control": "no-cache",
        }
        return Form(headers, urlencode(fields).encode())

    def _hold(self, token: str) -> None:
        now_s = self._now_s()
        held = _Held(token, now_s, _end_of(token))
        if self._held is not None and self._held.token == token:
            return  # a file that has not changed
        if not held.holds(now_s):
            raise RemoteError(f"what {self._settings.endpoint.url} gives has ended already")
        self._held = held


def _token_in(answer: bytes) -> str:
    try:
        token = json.loads(answer)["access_token"]
    except (ValueError, RecursionError, LookupError, TypeError):
        token = None
    if not isinstance(token, str) or not token:
        raise RemoteError("the answer of the token endpoint has no access_token")
    return token


def _end_of(token: str) -> float:
    """The token's own `exp`; the peers check the rest."""
    if _TOKEN.fullmatch(token) is None:
        raise RemoteError("what is given as a token is no JWT")
    said = token.split(".")[1]
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        ends_at_s = float(claims["exp"])
    except (ValueError, RecursionError, LookupError, TypeError, OverflowError):
        raise RemoteError("what is given as a token is no JWT with an end") from None
    if not math.isfinite(ends_at_s):
        raise RemoteError("what is given as a token has no end")
    return ends_at_s
