"""Builds SSL contexts from certificates and keys, and reloads them when their files change.

A context is never modified: existing connections keep theirs, new ones get the new one. If new files cannot be read,
are expired or not yet valid, or would not be trusted by other nodes, the old context stays in force, which is logged
once. Files are checked when a connection is made, at most every few seconds: they are small and local.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import NamedTuple

from ballast_broker.config_types import ConfigError
from ballast_broker.security.tls_settings import KEYSTORE, PEM, TRUSTSTORE, Store, TlsSettings

log = logging.getLogger(__name__)

LOOK_EVERY_S = 3.0
MESSAGES_OF_A_HANDSHAKE = 4
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_OF_13 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
Stamp = tuple[object, ...]


class BetweenNodes(NamedTuple):
    """Marks a context used between nodes, whose certificate other nodes have to trust."""

    host: str | None  # the host name they connect to, if known


class _Times(NamedTuple):
    """Wall clock times: validity of the certificate, and the earliest expiry in its chain."""

    begins_s: float
    ends_s: float
    first_ends_s: float


class TlsContexts:
    """The current context of one listener and direction."""

    def __init__(
        self,
        settings: TlsSettings,
        monotonic: Callable[[], float],
        *,
        server: bool,
        between: BetweenNodes | None = None,
        wall_s: Callable[[], float] = time,
    ) -> None:
        self.settings = settings
        self._server = server
        self._monotonic = monotonic
        self._wall_s = wall_s
        self._stamp = self._files()
        self._context, times = _context(settings, server=server)
        self.ends_s = times and times.first_ends_s
        self._between = _what_holds(settings, between)
        self._refused: Stamp = ()
        self._refused_until: _Times | None = None
        self._look_at_s = monotonic() + LOOK_EVERY_S

    def current(self) -> ssl.SSLContext:
        now = self._monotonic()
        if now >= self._look_at_s:
            self._look_at_s = now + LOOK_EVERY_S
            stamp = self._files()
            if stamp != self._stamp and (stamp != self._refused or self._holds_by_now()):
                self._read_anew(stamp)
        return self._context

    def _read_anew(self, stamp: Stamp) -> None:
        self._refused_until = None
        try:
            context, times = _context(self.settings, server=self._server)
            if stamp[0] != self._stamp[0]:
                self._check_new(times)
        except ConfigError as error:
            self._refused = stamp
            log.error("listener %s keeps its old certificates: %s", self.settings.listener.upper(), error)
        else:
            self._context, self.ends_s = context, times and times.first_ends_s
            self._stamp, self._refused = stamp, ()
            log.info("listener %s has new certificates", self.settings.listener.upper())

    def _check_new(self, times: _Times | None) -> None:
        """Raise ConfigError if peers would reject the new certificate but not the one in force."""
        where = _where(self.settings.keystore)
        now_s = self._wall_s()
        if times is not None and not times.begins_s <= now_s < times.ends_s:
            self._refused_until = times
            said, at_s = ("ended", times.ends_s) if now_s >= times.ends_s else ("begins", times.begins_s)
            raise ConfigError(f"{where} cannot be used: it {said} at {datetime.fromtimestamp(at_s, UTC):%F %T} UTC")
        if self._between is not None and (said := _disbelieved(self.settings, self._between)):
            raise ConfigError(f"{where} cannot be used: other nodes would not believe it: {said}")

    def _holds_by_now(self) -> bool:
        times = self._refused_until
        return times is not None and times.begins_s <= self._wall_s() < times.ends_s

    def _files(self) -> Stamp:
        stores = (self.settings.keystore, self.settings.truststore)
        return tuple(() if each.location is None else tuple(map(_stamp_of, _files(each.location))) for each in stores)


def _files(location: str) -> tuple[Path, ...]:
    """The files of a store; a keystore may be a directory, as Kubernetes mounts a TLS Secret."""
    path = Path(location)
    return (path / "tls.key", path / "tls.crt") if path.is_dir() else (path,)


def _stamp_of(path: Path) -> Stamp:
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno,)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _context(settings: TlsSettings, *, server: bool) -> tuple[ssl.SSLContext, _Times | None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    versions = sorted(VERSIONS[each] for each in settings.versions)
    _choose_ciphers(context, settings.ciphers, versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    times = None
    if settings.keystore.is_there:
        times = _load_keystore(context, settings.keystore, settings.key_password)
    if server:
        context.verify_mode = CLIENT_AUTH[settings.client_auth]
    else:
        context.check_hostname = settings.check_host
    if settings.truststore.is_there:
        _load_truststore(context, settings.truststore)
    elif not server:
        context.load_default_certs()
    return context, times


def _what_holds(settings: TlsSettings, between: BetweenNodes | None) -> BetweenNodes | None:
    """The requirements the first certificate meets: if it fails one, nodes do not rely on that."""
    if between is None or not _disbelieved(settings, between):
        return between
    without_host = BetweenNodes(None)
    return None if _disbelieved(settings, without_host) else without_host


def _disbelieved(settings: TlsSettings, between: BetweenNodes) -> str:
    """Why another node with the same settings would reject this certificate; empty if it would not."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = (_context(settings, server=each)[0] for each in (True, False))
    client.check_hostname = settings.check_host and between.host is not None
    ends = (
        client.wrap_bio(back, there, server_hostname=between.host),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(MESSAGES_OF_A_HANDSHAKE):
        for each in ends:
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except (OSError, ValueError) as error:
                return reason_of(error)
    return ""


def _where(store: Store) -> str:
    if store.location is not None:
        return f"{KEYSTORE.location} {store.location}"
    return "ssl.keystore.certificate.chain with ssl.keystore.key"


def _load_keystore(context: ssl.SSLContext, store: Store, password: str | None) -> _Times | None:
    where = _where(store)
    if store.location is not None:
        text = _read(KEYSTORE.location, store, password)
    else:
        text = f"{store.key}\n{store.certificates}"
    blocks = _blocks(text)
    if not any(kind.endswith("PRIVATE KEY") for kind, _ in blocks):
        raise ConfigError(f"{where} has no private key in it")
    if not any(kind == "CERTIFICATE" for kind, _ in blocks):
        raise ConfigError(f"{where} has no certificate in it")
    try:
        with _as_file(store, "".join(block for _, block in blocks)) as path:
            context.load_cert_chain(path, password=password or "")  # without one OpenSSL would prompt on the terminal
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        hint = " (is ssl.key.password right?)" if any("ENCRYPTED" in kind for kind, _ in blocks) else ""
        raise ConfigError(f"{where} cannot be used: {reason_of(error)}{hint}") from None
    return _times([block for kind, block in blocks if kind == "CERTIFICATE"])


def _times(certificates: list[str]) -> _Times | None:
    from cryptography import x509  # imported only with TLS: a node starts faster without

    try:
        found = [x509.load_pem_x509_certificate(each.encode()) for each in certificates]
        ends_s = [each.not_valid_after_utc.timestamp() for each in found]
        return _Times(found[0].not_valid_before_utc.timestamp(), ends_s[0], min(ends_s))
    except (ValueError, x509.InvalidVersion):  # OpenSSL accepts some that this library does not
        return None


@contextmanager
def _as_file(store: Store, text: str) -> Iterator[str]:
    """Provide PEM as a file, since ssl loads keys only from files; content from properties, several files or Java
    stores goes into an in-memory file, never onto a disk.
    """
    if store.location is not None and store.type == PEM and not Path(store.location).is_dir():
        yield store.location
        return
    descriptor = os.memfd_create("keystore")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _load_truststore(context: ssl.SSLContext, store: Store) -> None:
    if store.location is not None:
        where = f"{TRUSTSTORE.location} {store.location}"
        text = _read(TRUSTSTORE.location, store)
    else:
        where, text = "ssl.truststore.certificates", store.certificates or ""
    authorities = "".join(block for kind, block in _blocks(text) if kind == "CERTIFICATE")
    if not authorities:
        raise ConfigError(f"{where} has no certificate in it")
    # As in Java whatever is in it is trusted, also where its own issuer is not: an authority below another, or a peer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where} cannot be used: {reason_of(error)}") from None


def _read(name: str, store: Store, key_password: str | None = None) -> str:
    """Read a store as PEM, converting Java formats."""
    assert store.location is not None
    if store.type == PEM:
        return "\n".join(_bytes(name, file).decode(errors="replace") for file in _files(store.location))
    from ballast_broker.security.java_stores import StoreError, keystore_pem, truststore_pem

    data = _bytes(name, Path(store.location))
    try:
        if name == KEYSTORE.location:
            return keystore_pem(data, store.password, key_password)
        return truststore_pem(data, store.password)
    except StoreError as error:
        raise ConfigError(f"{name} {store.location} cannot be used: {error}") from None


def _bytes(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} {file} cannot be read: {error.strerror}") from None


def _blocks(text: str) -> list[tuple[str, str]]:
    """The PEM blocks, as (kind, text); in a property their lines may have been joined."""
    found = []
    for match in _BLOCK.finditer(text):
        kind, body = match.groups()
        if ":" not in body:  # otherwise it has headers, whose lines must stay
            joined = "".join(body.split())
            body = "\n" + "\n".join(joined[at : at + 64] for at in range(0, len(joined), 64)) + "\n"
        found.append((kind, f"-----BEGIN {kind}-----{body}-----END {kind}-----\n"))
    return found


def _choose_ciphers(context: ssl.SSLContext, suites: tuple[str, ...], versions: list[ssl.TLSVersion]) -> None:
    if not suites:
        return
    modern, older = SUITES_OF_13.intersection(suites), [each for each in suites if each not in SUITES_OF_13]
    if modern and modern != SUITES_OF_13 and ssl.TLSVersion.TLSv1_3 in versions:
        raise ConfigError(
            "ssl.cipher.suites chooses among those of TLS 1.3, which cannot be done here: name all three of them, or "
            "none and TLS 1.2 is spoken"
        )
    if not modern and ssl.TLSVersion.TLSv1_3 in versions:
        versions.remove(ssl.TLSVersion.TLSv1_3)
    if not older and ssl.TLSVersion.TLSv1_2 in versions:
        versions.remove(ssl.TLSVersion.TLSv1_2)
    if not versions:
        raise ConfigError("ssl.cipher.suites has none for the versions of TLS that are enabled")
    names = [_openssl_name(each) for each in older]
    for name, suite in zip(names, older, strict=True):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(name)
        except ssl.SSLError:
            raise ConfigError(f"Invalid value {suite} for configuration ssl.cipher.suites: it is not known") from None
    if names:
        context.set_ciphers(":".join(names))


def _openssl_name(suite: str) -> str:
    """Convert `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` to OpenSSL's name `ECDHE-RSA-AES128-GCM-SHA256`."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("_CBC_", "_")
    if "POLY1305" in cipher:
        cipher = cipher.removesuffix("_SHA256")
    return (f"{exchange}-{cipher}" if exchange != "RSA" else cipher).replace("_", "-")


def reason_of(error: BaseException) -> str:
    """OpenSSL's message, without its source location."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
