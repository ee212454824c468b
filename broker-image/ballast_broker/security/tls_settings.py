"""Reads the `ssl.…` properties: stores, client authentication, protocol versions. PURE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ballast_broker.config_types import ConfigError
from ballast_broker.security.names import RuleError, name_by_rules

PEM = "PEM"
STORE_TYPES = (PEM, "JKS", "PKCS12")


@dataclass(frozen=True, slots=True, repr=False)
class Store:
    """Certificates, and a key if it is a keystore: in a file or, as PEM, inline in the property."""

    type: str
    location: str | None
    certificates: str | None
    key: str | None = None
    password: str | None = None

    @property
    def is_there(self) -> bool:
        return self.location is not None or self.certificates is not None


class _Names(NamedTuple):
    type: str
    password: str
    location: str
    inline: str


KEYSTORE = _Names(
    "ssl.keystore.type", "ssl.keystore.password", "ssl.keystore.location", "ssl.keystore.certificate.chain"
)
TRUSTSTORE = _Names(
    "ssl.truststore.type", "ssl.truststore.password", "ssl.truststore.location", "ssl.truststore.certificates"
)


@dataclass(frozen=True, slots=True, repr=False)
class TlsSettings:
    listener: str  # as in `listener.name.…`, for messages
    keystore: Store
    key_password: str | None
    truststore: Store
    client_auth: str
    versions: tuple[str, ...]
    ciphers: tuple[str, ...]
    check_host: bool
    mapping_rules: str


def tls_settings(listener: str, value: Callable[[str], Any], client_auth: str, *, serving: bool) -> TlsSettings:
    keystore = _store(value, KEYSTORE, value("ssl.keystore.key"))
    truststore = _store(value, TRUSTSTORE)
    if serving and not keystore.is_there:
        raise ConfigError(
            f"listener {listener.upper()} has no certificate: set ssl.keystore.location, or ssl.keystore.type=PEM with "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if keystore.certificates is not None and keystore.key is None:
        raise ConfigError("ssl.keystore.certificate.chain is set and ssl.keystore.key is not: a certificate needs both")
    if serving and client_auth != "none" and not truststore.is_there:
        raise ConfigError(
            f"ssl.client.auth is {client_auth} and there is no truststore: set ssl.truststore.location, or "
            "ssl.truststore.type=PEM with ssl.truststore.certificates"
        )
    try:
        name_by_rules(value("ssl.principal.mapping.rules"))
    except RuleError as error:
        raise ConfigError(
            f"Invalid value {value('ssl.principal.mapping.rules')} for configuration ssl.principal.mapping.rules: "
            f"{error}"
        ) from None
    versions = value("ssl.enabled.protocols")
    if value("ssl.protocol") == "TLSv1.2":
        versions = tuple(each for each in versions if each == "TLSv1.2")
    if not versions:
        raise ConfigError("ssl.protocol and ssl.enabled.protocols have no version of TLS in common")
    return TlsSettings(
        listener=listener,
        keystore=keystore,
        key_password=value("ssl.key.password"),
        truststore=truststore,
        client_auth=client_auth,
        versions=versions,
        ciphers=value("ssl.cipher.suites"),
        check_host=value("ssl.endpoint.identification.algorithm") == "https",
        mapping_rules=value("ssl.principal.mapping.rules"),
    )


def _store(value: Callable[[str], Any], names: _Names, key: str | None = None) -> Store:
    store = Store(
        value(names.type).upper(), value(names.location), value(names.inline), key, value(names.password)
    )  # fmt: skip
    if store.is_there:
        _check_store(store, value(names.type), names)
    elif store.password is not None:
        raise ConfigError(f"{names.password} is set, and {names.location} is not")
    return store


def _check_store(store: Store, said: str, names: _Names) -> None:
    if store.type not in STORE_TYPES:
        raise ConfigError(f"Invalid value {said} for configuration {names.type}: there are {', '.join(STORE_TYPES)}")
    if store.type == PEM and store.password is not None:
        raise ConfigError(f"{names.password} is set, and a store of type PEM has none: a key's own is ssl.key.password")
    if store.type != PEM and (store.certificates is not None or store.key is not None):
        raise ConfigError(f"{names.inline} is PEM, and {names.type} is {said}: set it to PEM")
    if store.type != PEM and store.password is None and names is KEYSTORE:
        raise ConfigError(f"{names.password} is missing: a keystore of type {said} has one")
    if store.location is not None and (store.certificates is not None or store.key is not None):
        raise ConfigError(f"{names.location} and {names.inline} are both set: give one of them")
