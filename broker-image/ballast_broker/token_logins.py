"""Logins by delegation token, from the metadata and the shared secret."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ballast_broker.metadata.delegation_tokens import DelegationToken, parted
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.security.delegation import token_credential
from ballast_broker.security.scram import Credential, TokenLogin

MOST_FOUND = 1_000


class TokenLogins:
    """Computing a token's credential takes milliseconds, so credentials are cached."""

    def __init__(self, secret: bytes, image: Callable[[], MetadataImage], wall_ms: Callable[[], int]) -> None:
        self._secret = secret
        self._image = image
        self._wall_ms = wall_ms
        self._found: dict[tuple[str, str, bytes], Credential] = {}

    def find(self, token_id: str, mechanism: str, salt: bytes) -> TokenLogin | None:
        """None for a token that does not exist (any more)."""
        token = self._image().security.delegation_tokens.get(token_id)
        if token is None:
            return None
        credential = self._credential(token_id, mechanism, salt)
        return TokenLogin(parted(token.owner)[1], credential, partial(self._lifetime_ms, token))

    def _credential(self, token_id: str, mechanism: str, salt: bytes) -> Credential:
        key = token_id, mechanism, salt
        known = self._found.get(key)
        if known is None:
            known = token_credential(self._secret, token_id, mechanism, salt)
            if len(self._found) >= MOST_FOUND:
                del self._found[next(iter(self._found))]
            self._found[key] = known
        return known

    def _lifetime_ms(self, token: DelegationToken) -> int:
        return min(token.expires_ms, token.ends_ms) - self._wall_ms()
