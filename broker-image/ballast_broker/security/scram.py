"""SCRAM (RFC 5802, RFC 7677), server and client, as Kafka speaks it: no channel binding, no SASLprep. PURE.

An unknown user is challenged like any other, with a salt that is always the same for the name, so that user names
cannot be probed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16_384
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MOST_FOUND = 8
Salted = dict[tuple[bytes, int], bytes]  # (salt, iterations) → salted password
BY_TOKEN = "tokenauth"  # Kafka's extension: the user is a delegation token's id
MECHANISM_CODES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_FIRST = re.compile(r"(?P<header>(?P<binding>[nyp])(?:=[^,]*)?,(?:a=(?P<authorization>[^,]*))?,)"
                    r"(?P<bare>(?:m=[^,]*,)?n=(?P<name>[^,]*),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
                    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))")  # fmt: skip
_FINAL = re.compile(r"(?P<without_proof>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[^,]+)*?),p=(?P<proof>[^,]*)")
_SERVER_FIRST = re.compile(r"r=(?P<nonce>[^,]+),s=(?P<salt>[^,]+),i=(?P<iterations>\d{1,9})(?:,.*)?")


class ScramError(ValueError):
    """The other side failed to authenticate or violated the protocol. The message contains no secret."""


class Credential(NamedTuple):
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class TokenLogin(NamedTuple):
    """What a client gets that authenticates with an existing delegation token."""

    owner: str
    credential: Credential
    lifetime_ms: Callable[[], int]


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The stored form of a password, which does not suffice to authenticate."""
    name = HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(salt, iterations, stored, hmac.digest(salted, b"Server Key", name))


class ScramServer:
    """One authentication: `step` answers the client's messages; `user` is valid once `done`."""

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], Credential | None],
        nonce: str,
        secret: bytes,
        find_token: Callable[[str, bytes], TokenLogin | None] = lambda token_id, salt: None,
    ) -> None:
        """`find_token` also gets the salt to use."""
        self._hash = HASHES[mechanism]
        self._find = find
        self._find_token = find_token
        self._token: TokenLogin | None = None
        self._own_nonce = nonce
        self._secret = secret
        self._header = self._nonce = self._exchange = ""
        self._credential: Credential | None = None
        self._credential_is_real = False
        self.user = ""
        self.by_token = False
        self.done = False
        self.lifetime_ms: int | None = None  # passwords do not expire

    def step(self, message: bytes) -> bytes:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise ScramError("Invalid SCRAM message format") from None
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None or found["binding"] == "p":
            raise ScramError("Invalid SCRAM client first message format")
        if found["bare"].startswith("m="):
            raise ScramError("SCRAM extensions that are mandatory are not supported")
        self.user = _name_of(found["name"])
        if found["authorization"] is not None and _name_of(found["authorization"]) != self.user:
            raise ScramError("Client requested an authorization id that is different from username")
        self._header, self._nonce = found["header"], found["nonce"] + self._own_nonce
        extensions = dict(pair.split("=", 1) for pair in found["extensions"].split(",")[1:])
        self.by_token = extensions.get(BY_TOKEN, "").lower() == "true"
        known = self._of_token() if self.by_token else self._find(self.user)
        self._credential_is_real = known is not None
        credential = self._credential = known or self._nobody()
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._exchange = f"{found['bare']},{answer}"
        return answer.encode()

    def _of_token(self) -> Credential | None:
        self._token = self._find_token(self.user, self._own_salt())
        return None if self._token is None else self._token.credential

    def _nobody(self) -> Credential:
        nothing = bytes(hashlib.new(self._hash).digest_size)
        return Credential(self._own_salt(), LEAST_ITERATIONS, nothing, nothing)

    def _own_salt(self) -> bytes:
        return hmac.digest(self._secret, self.user.encode(), "sha256")

    def _final(self, text: str, credential: Credential) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise ScramError("Invalid SCRAM client final message format")
        if found["nonce"] != self._nonce:
            raise ScramError("Invalid client nonce in the final client message.")
        if _decoded(found["binding"]) != self._header.encode():
            raise ScramError("Invalid channel binding in the final client message.")
        exchange = f"{self._exchange},{found['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, exchange, self._hash)
        proof = _decoded(found["proof"])
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        right = hmac.compare_digest(hashlib.new(self._hash, key).digest(), credential.stored_key)
        if not right or len(proof) != len(signature) or not self._credential_is_real:
            raise ScramError("Invalid client credentials")
        if self._token is not None:
            self.user, self.lifetime_ms = self._token.owner, self._token.lifetime_ms()
            if self.lifetime_ms <= 0:
                raise ScramError("the delegation token has expired")
        self.done = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, exchange, self._hash))


class ScramClient:
    """One authentication: send `first`, answer the server by `final`, verify its last message by `check`.

    Salting a password takes milliseconds: `found` caches it across authentications. `by_token`: the user is a
    delegation token's id, its base64 HMAC the password.
    """

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, found: Salted | None = None, *,
        by_token: bool = False,
    ) -> None:  # fmt: skip
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._found: Salted = {} if found is None else found
        extension = f",{BY_TOKEN}=true" if by_token else ""
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{extension}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        text = answer.decode(errors="replace")
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce) or len(found["nonce"]) == len(self._nonce):
            raise ScramError("Invalid SCRAM server first message format")
        iterations = int(found["iterations"])
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise ScramError(f"the server asks for {iterations} iterations")
        salt = _decoded(found["salt"])
        salted = self._salted(salt, iterations)
        key = hmac.digest(salted, b"Client Key", self._hash)
        known = credential_of(self._mechanism, salted, salt, iterations)
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={found['nonce']}"
        exchange = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(known.stored_key, exchange, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._expected = b"v=" + base64.b64encode(hmac.digest(known.server_key, exchange, self._hash))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _salted(self, salt: bytes, iterations: int) -> bytes:
        known = self._found.get((salt, iterations))
        if known is None:
            known = salted_password(self._mechanism, self._password, salt, iterations)
            if len(self._found) >= MOST_FOUND:  # each server has one salt for us, which seldom changes
                self._found.clear()
            self._found[salt, iterations] = known
        return known

    def check(self, answer: bytes) -> None:
        """Verify that the server knows the password as well."""
        if not hmac.compare_digest(answer, self._expected):
            raise ScramError("the server does not know the password")


def _name_of(text: str) -> str:
    if re.search(r"=(?!2C|3D)", text) or not text:
        raise ScramError("Invalid username in SCRAM client first message")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # includes binascii.Error; non-ASCII raises a plain ValueError
        raise ScramError("Invalid SCRAM message format") from None
