"""Delegation tokens (KIP-48) as secrets: what is shown of one, and what a broker checks it by. PURE.

A token has an id, which is no secret, and an HMAC of that id by a secret that all nodes have: who shows the HMAC has
been given the token. It is nowhere stored; every node makes it of the id. To SCRAM the id is a user and the HMAC, in
base64, his password.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache

from ballast_broker.security.scram import LEAST_ITERATIONS, Credential, credential_of, salted_password

HASH = "sha512"  # whatever the mechanism is

MOST_KEPT = 65_536


@lru_cache(maxsize=MOST_KEPT)  # whose HMAC is shown, is found out by looking at all
def hmac_of(secret: bytes, token_id: str) -> bytes:
    return hmac.digest(secret, token_id.encode(), HASH)


def is_hmac_of(secret: bytes, token_id: str, shown: bytes) -> bool:
    """Takes as long whether much of it is right or nothing."""
    return hmac.compare_digest(hmac_of(secret, token_id), shown)


def token_credential(secret: bytes, token_id: str, mechanism: str, salt: bytes) -> Credential:
    """As for a user with this password. Takes milliseconds."""
    password = base64.b64encode(hmac_of(secret, token_id)).decode()
    salted = salted_password(mechanism, password, salt, LEAST_ITERATIONS)
    return credential_of(mechanism, salted, salt, LEAST_ITERATIONS)
