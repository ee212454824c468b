"""SCRAM for the operator's own connections: that of the client library, with names escaped as RFC 5802 demands."""

from __future__ import annotations

from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient


class _Scram(SaslMechanismScram):  # type: ignore[misc]  # the library has no types
    def __init__(self, **config: Any) -> None:
        super().__init__(**{**config, "sasl_plain_username": saslname(config["sasl_plain_username"])})


def saslname(user: str) -> str:
    """Escape a name: the library itself puts it between commas as it is, where a comma in it would end it."""
    return user.replace("=", "=3D").replace(",", "=2C")


def use_for_scram() -> None:
    """Replace the library's own mechanisms in this process."""
    for mechanism in ScramClient.MECHANISMS:
        register_sasl_mechanism(mechanism, _Scram, overwrite=True)
