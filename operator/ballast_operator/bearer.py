"""The OAUTHBEARER mechanism that tells the token provider when a broker has rejected its token.

The client library's own mechanism only closes the connection, and the next connection presents the same token again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    """`refusal` says why the last attempt to get a token failed; empty if it succeeded."""

    refusal: str

    @abstractmethod
    def token(self) -> str:
        """A token that is still valid."""

    @abstractmethod
    def refused(self, token: str) -> None:
        """A broker has rejected this token."""


class Bearer(SaslMechanismOAuth):  # type: ignore[misc]  # the library has no types
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._first = b""

    def auth_bytes(self) -> bytes:
        found: bytes = super().auth_bytes()
        self._first = self._first or found
        return found

    def receive(self, auth_bytes: bytes) -> None:
        super().receive(auth_bytes)
        # A broker sends a non-empty challenge only to say what is wrong with the token.
        if auth_bytes and isinstance(self.token_provider, TokenProvider):
            shown = self._first.split(b"\x01")[1].removeprefix(b"auth=Bearer ")
            self.token_provider.refused(shown.decode())


def use_for_tokens() -> None:
    """Replace the library's own mechanism, process-wide."""
    register_sasl_mechanism("OAUTHBEARER", Bearer, overwrite=True)
