"""The token with which a command authenticates (OAUTHBEARER), configured by the properties of Kafka's clients.

Like a broker's own token it is fetched, renewed, and replaced if refused, so that `status --watch` outlives the first
token. The client library asks for it in the thread that connects, so nothing here needs the caller's event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from ballast_broker.config_types import ConfigError
from ballast_broker.net.own_token import OwnTokens
from ballast_broker.security.oauth_settings import TOKEN_URL, OwnToken, oauth_settings
from ballast_broker.security.properties import BY_NAME, HANDLERS
from ballast_cli import CommandError
from ballast_operator.bearer import TokenProvider

JAAS = "sasl.jaas.config"
LOGIN_HANDLER = "sasl.login.callback.handler.class"
KNOWN = frozenset(
    {
        LOGIN_HANDLER, "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms",
        "sasl.login.refresh.window.factor", "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.scope", TOKEN_URL,
    }
)  # fmt: skip


class Tokens(TokenProvider):
    def __init__(self, own: OwnToken) -> None:
        self.refusal = ""
        self._own = OwnTokens(own)
        self._one_at_a_time = threading.Lock()

    def token(self) -> str:
        """A valid token; raises ConnectionAbortedError with the reason if there is none."""
        with self._one_at_a_time:
            try:
                found = asyncio.run(self._own.current())
            except ConnectionAbortedError as error:
                self.refusal = str(error)
                raise
            self.refusal = ""
            return found

    def refused(self, token: str) -> None:
        with self._one_at_a_time:
            self._own.refused(token)

    def extensions(self) -> dict[str, str]:
        return dict(self._own.extensions)


def tokens(given: Mapping[str, str], options: Mapping[str, str]) -> Tokens:
    """`options` are those of the login module. The first token is fetched at once, so that a failure is reported as
    such, and not as a cluster that does not answer."""

    def value(name: str) -> Any:
        known = HANDLERS.get(name) or BY_NAME[name]
        return known.parse(given[name]) if name in KNOWN and name in given else known.default

    try:
        value(LOGIN_HANDLER)
        own = oauth_settings("client", value, JAAS, options, serving=False).own
        if own is None:
            raise CommandError(
                f"{TOKEN_URL} is missing: it says where the token is to be had, by https: or from a file:"
            )
        found = Tokens(own)
        found.token()
    except (ConfigError, ConnectionAbortedError) as error:
        raise CommandError(str(error)) from None
    return found
