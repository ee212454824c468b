"""Authenticates a client over SASL, with a password or a delegation token."""

from __future__ import annotations

from typing import Any

from tests.contract.wire import WireClient

from ballast_broker.security.scram import ScramClient
from ballast_wire.messages import message

NONCE = "of-the-client"
PASSWORD = "secret"


class LoginFailed(Exception):
    """The broker refused; the text is its error."""


class TokenClient(ScramClient):
    """SCRAM with a token: its id is the user, its HMAC in base64 the password."""

    def __init__(self, mechanism: str, token_id: str, hmac: str, *, extensions: str = "tokenauth=true") -> None:
        super().__init__(mechanism, token_id, hmac, NONCE)
        self._bare += f",{extensions}"


def log_in(client: WireClient, user: str, password: str = PASSWORD) -> Any:
    """Log in with PLAIN; return the last response."""
    _shake(client, "PLAIN")
    return _say(client, f"\0{user}\0{password}".encode())


def log_in_by(client: WireClient, mechanism: str, scram: ScramClient) -> Any:
    _shake(client, mechanism)
    answer = _say(client, scram.final(bytes(_say(client, scram.first()).auth_bytes)))
    scram.check(bytes(answer.auth_bytes))
    return answer


def _shake(client: WireClient, mechanism: str) -> None:
    shaken = client.call(message("SaslHandshakeRequest")(mechanism=mechanism), 1)
    if shaken.error_code:
        raise LoginFailed(f"the handshake: {shaken.error_code}")


def _say(client: WireClient, token: bytes) -> Any:
    answer = client.call(message("SaslAuthenticateRequest")(auth_bytes=token), 2)
    if answer.error_code:
        raise LoginFailed(f"{answer.error_code} {answer.error_message}")
    return answer
