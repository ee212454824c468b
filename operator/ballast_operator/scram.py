"""SCRAM for the operator's own connections: the client library's, whose names are written as RFC 5802 has them."""

from __future__ import annotations

from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient


class _Scram(SaslMechanismScram):  # type: ignore[misc]  # the library has no types
    def __init__(self, **config: Any) -> None:
        super().__init__(**{**config, "sasl_plain_username": saslname(config["sasl_plain_username"])})


def saslname(user: str) -> str:
    """The library puts a name between commas as it is, where one of its own would end it."""
    return user.replace("=", "=3D").replace(",", "=2C")


def use_for_scram() -> None:
    """Instead of the library's own, in this process."""
    for mechanism in ScramClient.MECHANISMS:
        register_sasl_mechanism(mechanism, _Scram, overwrite=True)
