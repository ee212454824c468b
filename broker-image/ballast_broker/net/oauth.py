"""OAUTHBEARER on the server's side: a client is who the token that it shows says. Loop thread only.

Imported only where a listener asks for it: with it comes what checks signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time

from ballast_broker.net.sasl import Later, Refused
from ballast_broker.net.token_keys import TokenKeys
from ballast_broker.security.oauth_settings import TokenRules
from ballast_broker.security.oauthbearer import INVALID_TOKEN, parse_first
from ballast_broker.security.tokens import TokenError, UnknownKey, identity

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TokenChecker:
    """What is the same for all connections of a listener."""

    keys: TokenKeys
    rules: TokenRules
    now_s: Callable[[], float] = time

    def begin(self, tell: Tell) -> Oauthbearer:
        return Oauthbearer(self, tell)


class Oauthbearer:
    """One authentication. `tell`: what is wrong with a token, which its owner is not told."""

    def __init__(self, checker: TokenChecker, tell: Tell) -> None:
        self._checker = checker
        self._tell = tell
        self._asked_anew = False
        self._failed = False
        self.user = ""
        self.by_token = False
        self.done = False
        self.lifetime_ms: int | None = None

    def step(self, message: bytes) -> bytes:
        if self._failed:  # whatever it says now that it knows: the exchange has to end so
            raise Refused(INVALID_TOKEN.decode())
        first, now_s = parse_first(message), self._checker.now_s()
        try:
            found = identity(first.token, self._checker.keys.keys, self._checker.rules, now_s)
        except TokenError as error:
            if isinstance(error, UnknownKey):
                self._wait_for_keys()
            self._failed = True
            self._tell(str(error))
            return INVALID_TOKEN
        if first.wanted and first.wanted != found.name:
            raise Refused(
                f"Authentication failed: Client requested an authorization id ({first.wanted}) that is different from "
                f"the token's principal name ({found.name})"
            )
        self.user, self.done = found.name, True
        self.lifetime_ms = max(int((found.ends_at_s - now_s) * 1000), 0)
        return b""

    def _wait_for_keys(self) -> None:
        """Once: a key that is used for the first time may have been published since keys were asked for."""
        if not self._asked_anew:
            self._asked_anew = True
            ready = self._checker.keys.anew()
            if ready is not None:
                raise Later(ready)
