"""SCRAM for commands, with a password or a delegation token.

The client library's own SCRAM can neither say that the user is a token's id nor escape commas and equals signs in user
names.
"""

from __future__ import annotations

import secrets
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism

from ballast_broker.security.scram import HASHES, ScramClient, ScramError


class TokenId(str):
    """A user name that is a delegation token's id; the library passes it to the mechanism like any other."""

    __slots__ = ()


class Scram(SaslMechanism):  # type: ignore[misc]  # the library has no types
    def __init__(self, **config: Any) -> None:
        self._mechanism: str = config["sasl_mechanism"]
        self._user: str = config["sasl_plain_username"]
        password, nonce = config["sasl_plain_password"], secrets.token_urlsafe(24)
        by_token = isinstance(self._user, TokenId)
        self._client = ScramClient(self._mechanism, self._user, password, nonce, by_token=by_token)
        self._next = self._client.first()
        self._received = 0

    def auth_bytes(self) -> bytes:
        return self._next

    def receive(self, auth_bytes: bytes) -> None:
        try:
            if self._received:
                self._client.check(auth_bytes)
            else:
                self._next = self._client.final(auth_bytes)
        except ScramError as error:
            raise SaslAuthenticationFailedError(f"{self._mechanism} as {self._user} failed: {error}") from None
        self._received += 1

    def is_done(self) -> bool:
        return self._received == 2

    def is_authenticated(self) -> bool:
        return self.is_done()

    def auth_details(self) -> str:
        return f"Authenticated as {self._user} via SASL / {self._mechanism}"


def use_for_scram() -> None:
    """Replace the library's own SCRAM in this process."""
    for each in HASHES:
        register_sasl_mechanism(each, Scram, overwrite=True)
