"""Delegation tokens (KIP-48) as credentials: their HMACs, and how a broker checks them. PURE.

A token has an id, which is no secret, and an HMAC of that id keyed with a secret that all nodes share: whoever presents
the HMAC was given the token. The HMAC is stored nowhere; every node computes it from the id. To SCRAM the id is the
user name and the base64 of the HMAC the password.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache

from ballast_broker.security.scram import LEAST_ITERATIONS, Credential, credential_of, salted_password

HASH = "sha512"  # for every mechanism

MOST_KEPT = 65_536


@lru_cache(maxsize=MOST_KEPT)  # cached: finding the token of an HMAC means trying all of them
def hmac_of(secret: bytes, token_id: str) -> bytes:
    return hmac.digest(secret, token_id.encode(), HASH)


def is_hmac_of(secret: bytes, token_id: str, shown: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hmac_of(secret, token_id), shown)


def token_credential(secret: bytes, token_id: str, mechanism: str, salt: bytes) -> Credential:
    """The SCRAM credential of a user with this password. Takes milliseconds."""
    password = base64.b64encode(hmac_of(secret, token_id)).decode()
    salted = salted_password(mechanism, password, salt, LEAST_ITERATIONS)
    return credential_of(mechanism, salted, salt, LEAST_ITERATIONS)
