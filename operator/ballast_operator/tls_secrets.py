"""Reads the Secrets that a KafkaCluster names, and validates them before pods depend on them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ssl
from collections.abc import Iterable, Mapping

from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.pem import as_ascii, load_pair

# Rounds of a handshake; three are enough.
MAX_TURNS = 10


class SecretMissingError(Exception):
    """A Secret that a KafkaCluster names is not there, lacks a key, or has one that is no text."""


class SecretUnusableError(Exception):
    """With this Secret, nodes could not start or would not trust each other."""


async def read_secret(api: KubernetesApi, namespace: str, name: str, keys: Iterable[str]) -> Mapping[str, str]:
    """Those of these keys that the Secret has. Its other keys may be anything, such as a binary keystore."""
    found = await api.find(path_of("v1", "secrets", namespace, name))
    if found is None:
        raise SecretMissingError(f"Secret {name} does not exist")
    data = found.get("data") or {}
    values: dict[str, str] = {}
    for key in keys:
        try:
            values |= {key: base64.b64decode(data[key]).decode()} if key in data else {}
        except (UnicodeDecodeError, binascii.Error):
            raise SecretMissingError(f"Secret {name}: {key} is no text") from None
    return values


async def read_whole(api: KubernetesApi, namespace: str, name: str, keys: Iterable[str]) -> Mapping[str, str]:
    """Like `read_secret`, but all of these keys are required."""
    wanted = sorted(keys)
    found = await read_secret(api, namespace, name, wanted)
    for key in wanted:
        if not found.get(key, "").strip():
            raise SecretMissingError(f"Secret {name} has no key {key}")
    return found


def check_certificates(name: str, found: Mapping[str, str]) -> None:
    """Check that a node can start with them: the key matches the certificate, and the CAs can be parsed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if "tls.crt" in found:
        try:
            load_pair(context, found["tls.crt"], found["tls.key"])
        except (ssl.SSLError, ValueError) as error:
            why = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
            raise SecretUnusableError(f"Secret {name}: tls.crt and tls.key cannot be used together: {why}") from None
    if "ca.crt" in found:
        try:
            context.load_verify_locations(cadata=as_ascii(found["ca.crt"]))
        except (ssl.SSLError, ValueError):
            raise SecretUnusableError(f"Secret {name}: ca.crt has no certificate that can be read") from None


def check_believed(name: str, found: Mapping[str, str], hosts: Iterable[str]) -> None:
    """Check, by a real mutual TLS handshake, that nodes with these names and this certificate trust each other."""
    going, coming = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in (going, coming):
        load_pair(context, found["tls.crt"], found["tls.key"])
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as nodes do
        context.load_verify_locations(cadata=as_ascii(found["ca.crt"]))
    coming.verify_mode = ssl.CERT_REQUIRED
    for host in hosts:
        try:
            _shake_hands(going, coming, host)
        except ssl.SSLError as error:
            why = str(getattr(error, "verify_message", None) or error.reason or error).rstrip(".")
            said = f"Secret {name}: {host} would not be believed by the others with it: {why}"
            raise SecretUnusableError(said) from None


def _shake_hands(going: ssl.SSLContext, coming: ssl.SSLContext, host: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = going.wrap_bio(to_client, to_server, server_hostname=host)
    server = coming.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(MAX_TURNS):
        for side in waiting[:]:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    if waiting:
        raise ssl.SSLError("it does not come to an end")
