"""Implements OAUTHBEARER on the server's side: the client's token names its principal. Loop thread only.

Imported only if a listener uses it, since it brings in the library that checks signatures.
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
    """The part shared by all connections of a listener."""

    keys: TokenKeys
    rules: TokenRules
    now_s: Callable[[], float] = time

    def begin(self, tell: Tell) -> Oauthbearer:
        return Oauthbearer(self, tell)


class Oauthbearer:
    """One authentication. `tell` gets the reason why a token is refused, which the client is not told."""

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
        if self._failed:  # the client's acknowledgement, whatever it is: the exchange has to end this way
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
        """Fetch the keys again, once: a new key may have been published since the last fetch."""
        if not self._asked_anew:
            self._asked_anew = True
            ready = self._checker.keys.anew()
            if ready is not None:
                raise Later(ready)
