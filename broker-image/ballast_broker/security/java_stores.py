"""Converts Java keystores and truststores, JKS and PKCS12, to PEM. PURE.

The format is detected by the first bytes: Java also accepts either under both names. The password opens everything in a
PKCS12; in a JKS it proves integrity and opens keys, which may have their own password.
"""

from __future__ import annotations

import hashlib
import hmac
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

JKS_MAGIC, JCEKS_MAGIC, PEM_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"-----BEGIN"
KEY_ENTRY, CERTIFICATE_ENTRY = 1, 2
SHA1_BYTES = 20
PROOF = b"Mighty Aphrodite"  # what Java hashes between password and content
NO_KEY = "it has no private key with a certificate in it"
WRONG = "its password is not the right one, or the file is spoilt"


class StoreError(ValueError):
    """The message names neither the file nor the password."""


def keystore_pem(data: bytes, password: str | None, key_password: str | None = None) -> str:
    """The private key, unencrypted, and its certificate chain; `key_password`, if the key has its own."""
    if _is_jks(data):
        return _key_of(_read_jks(data, password), key_password or password)
    found = _read_pkcs12(data, password)
    if found.key is None or found.cert is None:
        raise StoreError(NO_KEY)
    if key_password not in (None, password):
        raise StoreError("ssl.key.password is not that of the store, and in a PKCS12 the key has the store's")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return key + "".join(map(_pem_of, _chain(found.cert.certificate, _others(found))))


def truststore_pem(data: bytes, password: str | None) -> str:
    """The trusted certificates.

    As in Java, the own certificate of a JKS key is trusted, but not its issuers; a PKCS12 does not tell which is which.
    """
    if _is_jks(data):
        entries = _read_jks(data, password)
        trusted = entries.trusted + [certificate for key in entries.keys for certificate in key.chain[:1]]
    else:
        found = _read_pkcs12(data, password)
        if found.key is not None:
            raise StoreError("it has a private key in it: a truststore is to have nothing but certificates")
        own = [] if found.cert is None else [found.cert.certificate]
        trusted = [_pem_of(certificate) for certificate in own + _others(found)]
    if not trusted:
        raise StoreError("it has no certificate in it")
    return "".join(trusted)


def _is_jks(data: bytes) -> bool:
    if data.startswith(JCEKS_MAGIC):
        raise StoreError("it is a JCEKS; keytool -importkeystore -deststoretype PKCS12 makes a PKCS12 of it")
    if data.lstrip().startswith(PEM_MAGIC):
        raise StoreError("it is a PEM: set its type to PEM")
    return data.startswith(JKS_MAGIC)


# ---------------------------------------------------------------------------------------------------------- PKCS12


def _read_pkcs12(data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import InvalidVersion

    try:
        with warnings.catch_warnings(action="ignore"):  # about sloppy encodings, which some programs produce
            return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, UnsupportedAlgorithm, InvalidVersion):
        raise StoreError(f"{WRONG}, or it is neither PKCS12 nor JKS") from None


def _others(found: PKCS12KeyAndCertificates) -> list[x509.Certificate]:
    return [each.certificate for each in found.additional_certs]


def _chain(first: x509.Certificate, others: Iterable[x509.Certificate]) -> Iterator[x509.Certificate]:
    """The chain, each certificate followed by its issuer; a PKCS12 is unordered and may have other chains."""
    by_subject = {each.subject: each for each in others}
    at: x509.Certificate | None = first
    while at is not None:
        yield at
        at = by_subject.pop(at.issuer, None)


def _pem_of(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


# ------------------------------------------------------------------------------------------------------------- JKS


@dataclass(frozen=True, slots=True, repr=False)
class _Key:
    alias: str
    sealed: bytes
    chain: list[str]


@dataclass(frozen=True, slots=True, repr=False)
class _Entries:
    keys: list[_Key]
    trusted: list[str]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise StoreError("it ends too early")
        return self._data[begin : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def text(self) -> str:
        return self.take(self.number(2)).decode(errors="replace")

    def block(self) -> bytes:
        return self.take(self.number(4))

    def element(self) -> bytes:
        """The content of one DER element."""
        self.take(1)
        size = self.number(1)
        return self.take(self.number(size & 0x7F) if size & 0x80 else size)


def _read_jks(data: bytes, password: str | None) -> _Entries:
    body, proof = data[:-SHA1_BYTES], data[-SHA1_BYTES:]
    if password is not None and not _same(hashlib.sha1(_characters(password) + PROOF + body), proof):
        raise StoreError(WRONG)
    reader = _Reader(body)
    reader.take(len(JKS_MAGIC))
    version = reader.number(4)
    if version not in (1, 2):
        raise StoreError(f"it is a JKS of version {version}: there are 1 and 2")
    entries = _Entries([], [])
    for _ in range(reader.number(4)):
        kind, alias = reader.number(4), reader.text()
        reader.take(8)  # creation date
        if kind == CERTIFICATE_ENTRY:
            entries.trusted.append(_certificate(reader, version))
        elif kind == KEY_ENTRY:
            sealed = reader.block()
            entries.keys.append(_Key(alias, sealed, [_certificate(reader, version) for _ in range(reader.number(4))]))
        else:
            raise StoreError(f"its entry {alias} is neither a key nor a certificate")
    return entries


def _certificate(reader: _Reader, version: int) -> str:
    kind = reader.text() if version > 1 else "X.509"
    if kind != "X.509":
        raise StoreError(f"a certificate in it is of type {kind}: only X.509 is read")
    return _pem("CERTIFICATE", reader.block())


def _key_of(entries: _Entries, password: str | None) -> str:
    if not entries.keys:
        raise StoreError(NO_KEY)
    if len(entries.keys) > 1:
        names = ", ".join(sorted(key.alias for key in entries.keys))
        raise StoreError(f"it has {len(entries.keys)} private keys ({names}), and which is meant is not said: keep one")
    (key,) = entries.keys
    return _pem("PRIVATE KEY", _opened(key.sealed, password or "")) + "".join(key.chain)


def _opened(sealed: bytes, password: str) -> bytes:
    """Decrypt a JKS EncryptedPrivateKeyInfo: a salt, the key XORed with a SHA-1 stream from the salt, a digest."""
    info = _Reader(_Reader(sealed).element())
    info.element()  # the algorithm: there is only one
    hidden = info.element()
    block, hidden, proof = hidden[:SHA1_BYTES], hidden[SHA1_BYTES:-SHA1_BYTES], hidden[-SHA1_BYTES:]
    secret, stream = _characters(password), b""
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    if not _same(hashlib.sha1(secret + key), proof):
        raise StoreError("its key has another password: set ssl.key.password")
    return key


def _same(hashed: hashlib._Hash, proof: bytes) -> bool:
    return hmac.compare_digest(hashed.digest(), proof)


def _characters(password: str) -> bytes:
    return password.encode("utf-16-be")


def _pem(kind: str, der: bytes) -> str:
    text = b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"
