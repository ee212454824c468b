"""Showing a token (OAUTHBEARER), so that whoever gives it is told when it was not believed.

The client library's own mechanism only ends the connection then, and the next one shows the same token again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    """`refusal` is why there was no token the last time; empty where there was one."""

    refusal: str

    @abstractmethod
    def token(self) -> str:
        """One that holds."""

    @abstractmethod
    def refused(self, token: str) -> None:
        """A broker does not believe it."""


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
        # What a broker has to say of a token is what is wrong with it.
        if auth_bytes and isinstance(self.token_provider, TokenProvider):
            shown = self._first.split(b"\x01")[1].removeprefix(b"auth=Bearer ")
            self.token_provider.refused(shown.decode())


def use_for_tokens() -> None:
    """Instead of the library's own, in this process."""
    register_sasl_mechanism("OAUTHBEARER", Bearer, overwrite=True)
